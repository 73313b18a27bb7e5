//! A service that guards its own SQLite data, asked over HTTP by two workers. The first one's request is paused in the service, after the layer
//! has let it in and before the handler's transaction; the second one's passes meanwhile.
//!
//! ```text
//! cargo run -p leasehold --example http_guard --features http,sqlite
//! ```
//!
//! Below is also what makes the token an axum extractor, and a guard's error an axum answer, for you to copy.

#![expect(clippy::print_stdout, reason = "what happened is what this program is for")]

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::put};
use leasehold::http::{PresentedToken, Problem, RequireTokenLayer, TokenSource, present};
use leasehold::sqlite::{SqliteDestination, SqliteGuard};
use leasehold::{DestinationExt as _, GuardError, Lease, LeaseBackend, LeaseExt as _, ResourceName};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

// --- the service ---

/// The presented token as an extractor: the handler that has it gives it to its guard.
struct Fenced(PresentedToken);

impl<S: Sync> FromRequestParts<S> for Fenced {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Answer> {
        Ok(Self(PresentedToken::take(&mut parts.extensions).map_err(Problem::from)?))
    }
}

/// What the client is told instead of success.
struct Answer(Response);

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        self.0
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        Self(problem.into_response::<Body>())
    }
}

impl From<GuardError> for Answer {
    fn from(error: GuardError) -> Self {
        // The client is told nothing of the store's own words, so they have to be logged here.
        println!("service  {error}");
        Problem::from(&error).into()
    }
}

impl From<sqlx::Error> for Answer {
    fn from(error: sqlx::Error) -> Self {
        println!("service  {error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}

#[derive(Clone)]
struct Service {
    guard: SqliteGuard,
    pause: Arc<Pause>,
}

async fn put_account(
    State(service): State<Service>,
    Path(account): Path<String>,
    Fenced(token): Fenced,
    euros: String,
) -> Result<&'static str, Answer> {
    // The layer has let this request in. A process can be stopped here for any time.
    service.pause.first_request().await;

    let resource = ResourceName::parse(format!("accounts/{account}")).map_err(GuardError::Store)?;
    // The check and the write are one transaction, which a refused token never gets.
    let mut work = service.guard.begin(&resource, &token.into_guard()).await?;
    sqlx::query("INSERT INTO account VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET euros = excluded.euros")
        .bind(&account)
        .bind(&euros)
        .execute(&mut *work)
        .await?;
    work.commit().await?;
    println!("service  committed {euros}");
    Ok("written")
}

/// Stops the first request, so that something can happen meanwhile.
struct Pause {
    first: Semaphore,
    begun: Semaphore,
    over: Semaphore,
}

impl Pause {
    fn new() -> Self {
        Self { first: Semaphore::new(1), begun: Semaphore::new(0), over: Semaphore::new(0) }
    }

    async fn first_request(&self) {
        if let Ok(first) = self.first.try_acquire() {
            first.forget();
            self.begun.add_permits(1);
            // It is never closed.
            drop(self.over.acquire().await);
        }
    }
}

// --- the workers ---

type Failure = Box<dyn Error + Send + Sync>;

const TTL: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| format!("sqlite://{}", folder.path().join(name).display());
    let leases = leasehold::connect(&file("leases.db")).await?;
    let accounts = SqliteDestination::connect(&file("accounts.db")).await?;
    let pause = Arc::new(Pause::new());
    let service = Service { guard: accounts.guard(), pause: Arc::clone(&pause) };

    let a = acquire(&*leases).await?;
    let token = a.token().ok_or("this backend mints no tokens")?;
    accounts.trust(token.authority()).await?;
    let mut set_up = accounts.guard().begin(a.resource(), token).await?;
    sqlx::raw_sql("CREATE TABLE account (name TEXT PRIMARY KEY, euros TEXT)").execute(&mut *set_up).await?;
    set_up.commit().await?;

    let app = Router::new()
        .route("/accounts/{name}", put(put_account))
        // Every route above needs a token.
        .layer(RequireTokenLayer::new())
        .with_state(service);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    println!("nobody   {}", send(address, Request::put("/accounts/42").body("90")?).await?);
    let of_a = request(&a, "100")?;
    let answer_to_a = tokio::spawn(send(address, of_a));
    pause.begun.acquire().await?.forget();
    println!("A        its request is in the service, past the layer, and paused there");

    let b = acquire(&*leases).await?;
    println!("B        acquired after A's TTL");
    println!("B        {}", send(address, request(&b, "90")?).await?);

    pause.over.add_permits(1);
    let answer = answer_to_a.await??;
    println!("A        {answer}");
    if !answer.starts_with("412") {
        return Err("the stale write should have been refused".into());
    }
    println!("B        {:?}", leases.release(&b).await?);
    Ok(())
}

async fn acquire(leases: &dyn LeaseBackend) -> Result<Lease, Failure> {
    Ok(leases.acquire_within("accounts/42", TTL, Duration::from_mins(1)).await?.ok_or("somebody else holds it")?)
}

/// A worker's request, with the token of what it holds.
fn request(holder: &impl TokenSource, euros: &'static str) -> Result<Request<&'static str>, Failure> {
    let mut request = Request::put("/accounts/42").body(euros)?;
    present(&mut request, holder)?;
    Ok(request)
}

/// Sends a request and returns the status and the body. Use your HTTP client for this.
async fn send(address: SocketAddr, request: Request<&'static str>) -> Result<String, Failure> {
    let (parts, body) = request.into_parts();
    let mut bytes =
        format!("{} {} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n", parts.method, parts.uri).into_bytes();
    for (name, value) in &parts.headers {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(format!("content-length: {}\r\n\r\n{body}", body.len()).into_bytes());
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&bytes).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("half an answer")?;
    let status = head.split(' ').nth(1).ok_or("no status")?;
    Ok(format!("{status} {body}"))
}
