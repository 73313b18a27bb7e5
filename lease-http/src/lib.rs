//! Fencing tokens over HTTP: a [`tower`](https://docs.rs/tower) layer that requires one, an answer for each refusal, and the client's header.
//!
//! **The layer is admission, not fencing.** It lets a request in that carries a token. Between that moment and the handler's write the
//! process can be paused, and the request of a newer holder can pass meanwhile. What refuses the stale write is the guard *inside the
//! handler's own transaction*, so the layer hands the token on as a [`PresentedToken`], which the handler gives to that guard:
//!
//! ```
//! use axum::{Router, body::Body, extract::{Request, State}, http::Response, routing::put};
//! use lease_core::{GuardedDestination as _, ResourceName, memory::MemoryDestination};
//! use lease_http::{PresentedToken, Problem, RequireTokenLayer};
//!
//! async fn put_account(State(accounts): State<MemoryDestination>, mut request: Request) -> Result<&'static str, Response<Body>> {
//!     let presented = PresentedToken::take(request.extensions_mut()).map_err(|e| Problem::from(e).into_response())?;
//!     let account = ResourceName::parse("accounts/42").expect("a name");
//!     // Here it is one guarded write. With PostgreSQL or SQLite, give the token to the guard in your own transaction.
//!     match accounts.write(&account, &presented.into_guard(), "90 euros").await {
//!         Ok(()) => Ok("written"),
//!         Err(error) => Err(Problem::from(&error).into_response()),
//!     }
//! }
//!
//! # fn app(accounts: MemoryDestination) -> Router {
//! Router::new().route("/accounts/42", put(put_account)).layer(RequireTokenLayer::new()).with_state(accounts)
//! # }
//! ```
//!
//! **A token names no resource.** It says which grant of one resource is newer, and not of which one: the handler decides which resource it is
//! checked for. Derive that from what is written, the same way in every handler and in the worker that holds the lease. A token of one
//! resource that is checked for another may pass there, raise a mark too far, or be refused for nothing, and no check notices.
//!
//! Where the work goes on in a task of its own, call [`into_guard`](PresentedToken::into_guard) in the handler, before it is spawned, and move the token
//! into the task: the layer looks whether the token reached a guard when the handler answers, and not later.
//!
//! Put the layer on the routes that write. Everything that passes it needs a token, so a CORS preflight or a health check has to go around it.
//!
//! # The header
//!
//! [`Fencing-Token`](FENCING_TOKEN), once, with the text form of a [`FencingToken`](lease_core::FencingToken) and nothing else:
//!
//! ```text
//! Fencing-Token: 41.00000000000000aa.redis:5f3a:0
//! ```
//!
//! A client adds it with [`present`], from a permit, a guard, a lease or a token. It is no secret: whoever may send requests may write, so
//! who that is has to be settled by other means.
//!
//! # The answers
//!
//! A [`Problem`] is an `application/problem+json` body (RFC 9457). Its `type` is `https://docs.rs/lease-http#` and the name below. `effect`
//! says whether anything may have been written: `none` or `unknown`. `advice` says what to do, in a word. Numbers of tokens are
//! strings, since they can be larger than what a JSON number keeps exactly.
//!
//! | type | status | effect | advice | also in it |
//! |---|---|---|---|---|
//! | `token-missing` | 428 | none | `send-token` | |
//! | `token-malformed` | 400 | none | `fix-request` | |
//! | `token-repeated` | 400 | none | `fix-request` | |
//! | `request-invalid` | 400 | none | `fix-request` | |
//! | `stale` | 412 | none | `stop` | `resource`, `presented`, `mark` |
//! | `conflict` | 409 | none | `stop` | `resource`, `mark` |
//! | `unknown-authority` | 409 | none | `stop` | `resource`, `presented_authority`, `trusted_authority` |
//! | `refused` | 409 | none | `stop` | `resource` |
//! | `adopt-conflict` | 409 | none | `stop` | `trusted_authority` |
//! | `store-unavailable` | 503 | none | `try-again` | |
//! | `store-failed` | 500 | none | `fix-server` | |
//! | `effect-unknown` | 500 | unknown | `read-back` | |
//! | `token-not-required` | 500 | none | `fix-server` | |
//! | `token-unused` | 500 | unknown | `fix-server` | |
//!
//! **Stale is 412 Precondition Failed**: the token is a condition of the request ("unless a newer grant has been here"), 428 is what asks for
//! it, and the same request can never succeed later. 409 Conflict invites to resolve something and to send the request again, which
//! some clients do by themselves. It is what the other refusals get: there an operator has something to resolve.
//!
//! **An unknown effect is 500**, not 503 or 504: proxies and clients repeat those by themselves. Read what was to be written, under the
//! same token, before you write it again.
//!
//! The store's own words are not in a body, since they may name hosts and tables. Log the error.
//!
//! # What can be seen
//!
//! `tracing` events under the target `leasehold`, named by their field `event`: `request_refused` (by the layer, with `problem`),
//! `request_unguarded` (with the `reason` that the handler gave), `request_token_unused`.

mod client;
mod json;
mod kind;
mod layer;
mod presented;
mod problem;

pub use client::{NoToken, TokenSource, present, present_in};
pub use kind::ProblemKind;
pub use layer::{Answering, RequireToken, RequireTokenLayer};
pub use presented::{NotPresented, PresentedToken};
pub use problem::Problem;

use http::HeaderName;

/// The header that carries the token: `Fencing-Token`.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
