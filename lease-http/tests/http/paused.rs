//! A request is paused between the layer and its write while a newer one passes. The same at real stores, with leases, is in the suite.

use super::server::{Server, guarded, resource, stored, text, token, trusting};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{MethodRouter, put};
use lease_core::memory::MemoryDestination;
use lease_http::{PresentedToken, RequireTokenLayer};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Stops the first request between the layer and the handler.
#[derive(Debug)]
struct Gate {
    first: Semaphore,
    inside: Semaphore,
    open: Semaphore,
}

async fn pass(gate: Arc<Gate>, request: Request, next: Next) -> Response {
    if let Ok(first) = gate.first.try_acquire() {
        first.forget();
        gate.inside.add_permits(1);
        gate.open.acquire().await.unwrap().forget();
    }
    next.run(request).await
}

/// Takes the layer's word for it.
async fn trusting_the_layer(State(destination): State<MemoryDestination>, mut request: Request) -> &'static str {
    PresentedToken::take(request.extensions_mut()).unwrap().into_unguarded("the control");
    destination.write_plain(&resource(), &text(request).await);
    "written"
}

/// A's answer, after A was paused and B's request passed.
async fn a_is_paused(
    handler: MethodRouter<MemoryDestination>,
    destination: &MemoryDestination,
) -> super::server::Reply {
    let gate = Arc::new(Gate { first: Semaphore::new(1), inside: Semaphore::new(0), open: Semaphore::new(0) });
    let between = Arc::clone(&gate);
    let app = Router::new()
        .route("/", handler)
        .with_state(destination.clone())
        .layer(from_fn(move |request, next| pass(Arc::clone(&between), request, next)))
        .layer(RequireTokenLayer::new());
    let server = Arc::new(Server::start(app).await);
    let of_a = Arc::clone(&server);
    let a = tokio::spawn(async move { of_a.put_with(&token(41), "A").await });
    gate.inside.acquire().await.unwrap().forget();
    assert_eq!(server.put_with(&token(42), "B").await.status, 200);
    assert_eq!(stored(destination).await.value.as_deref(), Some("B"));
    gate.open.add_permits(1);
    a.await.unwrap()
}

#[tokio::test]
async fn the_guard_in_the_handler_refuses_it() {
    let destination = trusting().await;
    let reply = a_is_paused(put(guarded), &destination).await;
    assert_eq!((reply.status, reply.problem().as_str()), (412, "stale"));
    let body = reply.json();
    assert_eq!((&body["presented"], &body["mark"]), (&"41".into(), &"42".into()));
    assert_eq!((&body["effect"], &body["advice"]), (&"none".into(), &"stop".into()));
    assert_eq!(stored(&destination).await.value.as_deref(), Some("B"));
}

#[tokio::test]
async fn without_the_guard_it_lands() {
    let destination = trusting().await;
    let reply = a_is_paused(put(trusting_the_layer), &destination).await;
    assert_eq!(reply.status, 200);
    assert_eq!(stored(&destination).await.value.as_deref(), Some("A"), "the layer alone is admission, not fencing");
}
