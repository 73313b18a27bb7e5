//! The workers' HTTP client: one request, one connection.

use crate::context::Stop;
use axum::http::Request;
use lease_core::FencingToken;
use lease_http::present;
use std::fmt;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Where the guarded content is.
pub(super) const PATH: &str = "/content";

/// What the service answered.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Reply {
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some(Self { status, body: body.to_owned() })
    }

    /// The name of the problem that it is.
    pub(super) fn problem(&self) -> Option<&str> {
        let kind = self.body.strip_prefix("{\"type\":\"")?.split('"').next()?;
        kind.split_once('#').map(|(_, name)| name)
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.body)
    }
}

/// Puts `content` with a token.
pub(super) async fn put(address: SocketAddr, token: FencingToken, content: &'static str) -> Result<Reply, Stop> {
    let failed = |why: String| Stop::NotTried(format!("the test itself failed: a request: {why}"));
    let mut request = Request::put(PATH).body(content).map_err(|e| failed(e.to_string()))?;
    present(&mut request, &token).map_err(|e| failed(e.to_string()))?;
    let reply = exchange(address, &request).await.map_err(|e| failed(e.to_string()))?;
    Reply::parse(&reply).ok_or_else(|| failed(format!("no answer that can be read: {reply:?}")))
}

async fn exchange(address: SocketAddr, request: &Request<&str>) -> std::io::Result<String> {
    let (method, path, body) = (request.method(), request.uri(), request.body());
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n").into_bytes();
    for (name, value) in request.headers() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(format!("content-length: {}\r\n\r\n{body}", body.len()).into_bytes());
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&bytes).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    Ok(reply)
}
