//! The service in front of a destination, whose first request can be paused between the layer and the handler.

use super::client::PATH;
use crate::context::Stop;
use crate::history::RecordedDestination;
use crate::subject::TestDestination as _;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::put;
use lease_core::{GuardedDestination as _, ResourceName};
use lease_http::{PresentedToken, Problem, RequireTokenLayer};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// What the handler does with the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    /// Gives it to the guard, in the transaction that writes.
    Guarded,
    /// The same, and looks at no answer.
    IgnoringRefusal,
    /// Takes the layer's word for it.
    LayerAlone,
}

/// A service on a loopback socket. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Service {
    address: SocketAddr,
    gate: Arc<Gate>,
    serving: JoinHandle<()>,
}

impl Service {
    pub(super) async fn start(
        destination: RecordedDestination,
        resource: ResourceName,
        handling: Handling,
    ) -> Result<Self, Stop> {
        let failed = |e: std::io::Error| Stop::NotTried(format!("the test itself failed: no service: {e}"));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let gate = Arc::new(Gate::new());
        let app = Router::new()
            .route(PATH, put(handle))
            .with_state(Arc::new(Handler { destination, resource, handling }))
            .layer(from_fn_with_state(Arc::clone(&gate), pass))
            // The last one is the outermost.
            .layer(RequireTokenLayer::new());
        let serving = tokio::spawn(async move {
            // It serves until it is aborted; a client sees anything else.
            drop(axum::serve(listener, app).await);
        });
        Ok(Self { address, gate, serving })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the first request is past the layer.
    pub(super) async fn first_is_inside(&self) {
        wait(&self.gate.inside).await;
    }

    pub(super) fn let_the_first_go_on(&self) {
        self.gate.open.add_permits(1);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Pauses the first request.
#[derive(Debug)]
struct Gate {
    first: Semaphore,
    inside: Semaphore,
    open: Semaphore,
}

impl Gate {
    fn new() -> Self {
        Self { first: Semaphore::new(1), inside: Semaphore::new(0), open: Semaphore::new(0) }
    }
}

async fn wait(semaphore: &Semaphore) {
    // None of them is ever closed.
    if let Ok(permit) = semaphore.acquire().await {
        permit.forget();
    }
}

async fn pass(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if let Ok(first) = gate.first.try_acquire() {
        first.forget();
        gate.inside.add_permits(1);
        wait(&gate.open).await;
    }
    next.run(request).await
}

#[derive(Debug)]
struct Handler {
    destination: RecordedDestination,
    resource: ResourceName,
    handling: Handling,
}

const MOST_BYTES: usize = 10_000;

async fn handle(State(handler): State<Arc<Handler>>, mut request: Request) -> Response {
    let presented = match PresentedToken::take(request.extensions_mut()) {
        Ok(presented) => presented,
        Err(error) => return Problem::from(error).into_response::<Body>(),
    };
    let content = match to_bytes(request.into_body(), MOST_BYTES).await {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let Handler { destination, resource, handling } = handler.as_ref();
    let answer = match handling {
        Handling::Guarded => destination.write(resource, &presented.into_guard(), &content).await,
        Handling::IgnoringRefusal => {
            let told = destination.write_ignoring_refusal(resource, &presented.into_guard(), &content).await;
            return format!("done, for all the handler cares; what it was told: {told:?}").into_response();
        }
        Handling::LayerAlone => {
            presented.into_unguarded("the control: the layer's word is taken for it");
            destination.write_plain(resource, &content).await
        }
    };
    match answer {
        Ok(()) => "written".into_response(),
        Err(error) => Problem::from(&error).into_response::<Body>(),
    }
}
