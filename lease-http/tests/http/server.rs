//! A server on a loopback socket, and a client that writes HTTP/1.1 by itself, so that it can send what no client library would.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::routing::put;
use lease_core::memory::MemoryDestination;
use lease_core::{Authority, FencingToken, GuardedDestination as _, ResourceName, Stored};
use lease_http::{PresentedToken, Problem};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A server that ends with the test.
pub(crate) struct Server {
    address: SocketAddr,
    serving: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, serving }
    }

    /// Puts `body`, with these headers as they are.
    pub(crate) async fn put(&self, headers: &[(&str, &[u8])], body: &str) -> Reply {
        let mut request =
            format!("PUT / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}", body.len()).into_bytes();
        for (name, value) in headers {
            request.extend([b"\r\n", name.as_bytes(), b": ", value].concat());
        }
        request.extend([b"\r\n\r\n", body.as_bytes()].concat());
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(&request).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        Reply::parse(&reply)
    }

    pub(crate) async fn put_with(&self, token: &FencingToken, body: &str) -> Reply {
        self.put(&[("fencing-token", token.to_string().as_bytes())], body).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// The end of the problem's type; empty when it is no problem.
    pub(crate) fn problem(&self) -> String {
        if !self.head.contains("\r\ncontent-type: application/problem+json") {
            return String::new();
        }
        let body = self.json();
        assert_eq!(body["status"], self.status, "{self:?}");
        body["type"].as_str().unwrap().strip_prefix("https://docs.rs/lease-http#").unwrap().to_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// The token number `value` of the authority that [`trusting`] trusts.
pub(crate) fn token(value: u64) -> FencingToken {
    format!("{value}.{value:016x}.a").parse().unwrap()
}

pub(crate) async fn trusting() -> MemoryDestination {
    let destination = MemoryDestination::new();
    destination.adopt(None, &Authority::parse("a").unwrap()).await.unwrap();
    destination
}

pub(crate) fn resource() -> ResourceName {
    ResourceName::parse("accounts/42").unwrap()
}

pub(crate) async fn stored(destination: &MemoryDestination) -> Stored {
    destination.read(&resource()).await.unwrap()
}

/// What a handler should do: the guard and the write are one step, with the token that was presented.
pub(crate) async fn guarded(
    State(destination): State<MemoryDestination>,
    mut request: Request,
) -> Result<&'static str, Response<Body>> {
    let presented = PresentedToken::take(request.extensions_mut()).map_err(|e| Problem::from(e).into_response())?;
    let value = text(request).await;
    match destination.write(&resource(), &presented.into_guard(), &value).await {
        Ok(()) => Ok("written"),
        Err(error) => Err(Problem::from(&error).into_response()),
    }
}

pub(crate) async fn text(request: Request) -> String {
    let body = axum::body::to_bytes(request.into_body(), 1_000).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The handler without any layer yet.
pub(crate) fn routes(destination: &MemoryDestination) -> Router {
    Router::new().route("/", put(guarded)).with_state(destination.clone())
}
