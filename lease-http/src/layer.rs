//! The layer: no request without a token gets past it.

use crate::presented::{Admitted, Used};
use crate::{FENCING_TOKEN, Problem};
use http::{HeaderMap, Request, Response, StatusCode};
use lease_core::FencingToken;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;
use tracing::{debug, error};

/// Requires a fencing token of every request, and hands it to the service as a [`PresentedToken`](crate::PresentedToken).
///
/// **This is admission, not fencing**: see the [crate's docs](crate). The body of an answer has to be made from a `String`, as axum's is.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequireTokenLayer {
    _later: (),
}

impl RequireTokenLayer {
    /// The layer.
    #[must_use]
    pub const fn new() -> Self {
        Self { _later: () }
    }
}

impl<S> Layer<S> for RequireTokenLayer {
    type Service = RequireToken<S>;

    fn layer(&self, inner: S) -> RequireToken<S> {
        RequireToken { inner }
    }
}

/// The service that [`RequireTokenLayer`] makes.
///
/// A request without the header is answered 428, one with a malformed or a repeated one 400; the inner service sees neither. Where
/// two of these are nested, the inner one hands on what the outer one has admitted.
///
/// # Errors
/// Those of the inner service.
///
/// # Cancel safety
/// Dropping the future drops the inner service's.
#[derive(Clone, Copy, Debug)]
pub struct RequireToken<S> {
    inner: S,
}

impl<S, Q, B> Service<Request<Q>> for RequireToken<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    B: From<String>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Q>) -> Answering<S::Future> {
        let step = match admit(&mut request) {
            Ok(used) => Step::Admitted { inner: self.inner.call(request), used },
            Err(problem) => {
                debug!(target: "leasehold", event = "request_refused", problem = problem.kind().id());
                Step::Refused { problem }
            }
        };
        Answering { step }
    }
}

fn admit<Q>(request: &mut Request<Q>) -> Result<Used, Problem> {
    if let Some(admitted) = request.extensions().get::<Admitted>() {
        return Ok(admitted.used());
    }
    let admitted = Admitted::new(token(request.headers())?);
    let used = admitted.used();
    request.extensions_mut().insert(admitted);
    Ok(used)
}

fn token(headers: &HeaderMap) -> Result<FencingToken, Problem> {
    let mut values = headers.get_all(FENCING_TOKEN).iter();
    let value = values.next().ok_or_else(Problem::missing)?;
    // Not even when they are equal: whoever sends two does not know what is sent.
    if values.next().is_some() {
        return Err(Problem::repeated());
    }
    value.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(Problem::malformed)
}

pin_project! {
    /// The future of [`RequireToken`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Answering<F> {
        #[pin]
        step: Step<F>,
    }
}

pin_project! {
    #[project = StepProjection]
    #[derive(Debug)]
    enum Step<F> {
        Refused { problem: Problem },
        Admitted { #[pin] inner: F, used: Used },
    }
}

impl<F, B, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: From<String>,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().step.project() {
            StepProjection::Refused { problem } => Ok(problem.response()),
            StepProjection::Admitted { inner, used } => {
                let response = ready!(inner.poll(context))?;
                Ok(if is_forgotten(response.status(), used) { forgotten() } else { response })
            }
        })
    }
}

/// Whether the service has answered as if it had written, and gave the token to no guard. An error before the transaction is none of it.
fn is_forgotten(status: StatusCode, used: &Used) -> bool {
    !status.is_client_error() && !status.is_server_error() && !used.is_noted()
}

fn forgotten<B: From<String>>() -> Response<B> {
    error!(target: "leasehold", event = "request_token_unused");
    Problem::unused().into_response()
}
