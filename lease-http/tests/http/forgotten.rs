//! A handler that gives the token to no guard shows it at its first request.

use super::server::{Server, guarded, resource, stored, text, token, trusting};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::{any, put};
use lease_core::memory::MemoryDestination;
use lease_http::{PresentedToken, RequireTokenLayer};

async fn never_looks(State(destination): State<MemoryDestination>, request: Request) -> &'static str {
    destination.write_plain(&resource(), &text(request).await);
    "written"
}

async fn takes_and_drops(State(destination): State<MemoryDestination>, mut request: Request) -> StatusCode {
    drop(PresentedToken::take(request.extensions_mut()).unwrap());
    destination.write_plain(&resource(), &text(request).await);
    StatusCode::SEE_OTHER
}

async fn says_why(mut request: Request) -> &'static str {
    PresentedToken::take(request.extensions_mut()).unwrap().into_unguarded("it only reads");
    "read"
}

async fn is_of_another_opinion() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "no such account")
}

#[tokio::test]
async fn a_forgotten_token_is_an_error_of_unknown_effect() {
    for handler in [put(never_looks), put(takes_and_drops)] {
        let destination = trusting().await;
        let app = Router::new().route("/", handler).with_state(destination.clone()).layer(RequireTokenLayer::new());
        let reply = Server::start(app).await.put_with(&token(7), "unfenced").await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "token-unused"));
        assert_eq!(reply.json()["effect"], "unknown");
        assert_eq!(stored(&destination).await.value.as_deref(), Some("unfenced"), "it can't take the write back");
    }
}

#[tokio::test]
async fn a_reason_or_an_error_of_the_handler_is_let_through() {
    for (handler, status, body) in [(any(says_why), 200, "read"), (any(is_of_another_opinion), 404, "no such account")]
    {
        let app: Router = Router::new().route("/", handler).layer(RequireTokenLayer::new());
        let reply = Server::start(app).await.put_with(&token(7), "").await;
        assert_eq!((reply.status, reply.body.as_str()), (status, body));
    }
}

#[tokio::test]
async fn a_handler_without_the_layer_says_that_it_is_missing() {
    let destination = trusting().await;
    let app = Router::new().route("/", put(guarded)).with_state(destination.clone());
    let reply = Server::start(app).await.put_with(&token(7), "must not land").await;
    assert_eq!((reply.status, reply.problem().as_str()), (500, "token-not-required"));
    assert_eq!(stored(&destination).await.value, None);
}
