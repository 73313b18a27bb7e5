//! The payment API: somebody else's service, with a database of its own, that no worker's transaction and no guard reaches.
//!
//! `POST /charges` with `{"invoice": …, "cents": …}` takes money and answers 201 with a receipt. A request with the header `Idempotency-Key` takes it
//! at most once per key: a repetition is answered 200 with the first one's receipt, another payload under the same key 409. Keys are kept
//! for 24 hours; a repetition after that takes the money again. `GET /charges/{invoice}` answers how often and how much was taken.

use crate::director::Event;
use crate::timeline::{Tone, Who};
use crate::{Failure, euros, said::Said};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use sqlx::PgPool;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};

/// What this service remembers. Not even its owner can take one key twice.
const TABLE: &str = "CREATE TABLE charge (
    receipt bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    invoice text NOT NULL,
    cents bigint NOT NULL,
    key text UNIQUE,
    key_until timestamptz
)";

/// The running service.
#[derive(Debug)]
pub(crate) struct Payments {
    address: SocketAddr,
}

impl Payments {
    /// Starts it on a thread of its own, which ends with this process. What it does it tells to `events`.
    pub(crate) fn start(url: String, events: Sender<Event>) -> Result<Self, Failure> {
        let (ready, answer) = channel();
        std::thread::Builder::new().name("payments".into()).spawn(move || {
            let failed = ready.clone();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let outcome = match runtime {
                Ok(runtime) => runtime.block_on(serve(&url, events, &ready)),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = outcome {
                // Nobody listens any more once it has started.
                drop(failed.send(Err(error)));
            }
        })?;
        Ok(Self { address: answer.recv()?? })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

#[derive(Clone)]
struct Service {
    records: PgPool,
    events: Sender<Event>,
}

async fn serve(url: &str, events: Sender<Event>, ready: &Sender<Result<SocketAddr, Failure>>) -> Result<(), Failure> {
    let records = PgPool::connect(url).await?;
    sqlx::raw_sql(TABLE).execute(&records).await?;
    let app = axum::Router::new()
        .route("/charges", post(charge))
        .route("/charges/{invoice}", get(charges))
        .with_state(Service { records, events });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    ready.send(Ok(listener.local_addr()?))?;
    Ok(axum::serve(listener, app).await?)
}

impl Service {
    fn tell(&self, tone: Tone, what: String) {
        // The director is gone only when the process ends.
        drop(self.events.send(Event::Said(Who::Payments, Said::Tell(tone, what))));
    }

    /// Takes the money, or finds the charge that was made under the key before.
    async fn take(&self, invoice: &str, cents: i64, key: Option<&str>) -> Result<Response, sqlx::Error> {
        let mut work = self.records.begin().await?;
        // The end of a key's retention.
        sqlx::query("UPDATE charge SET key = NULL WHERE key = $1 AND key_until < now()")
            .bind(key)
            .execute(&mut *work)
            .await?;
        let made: Option<i64> = sqlx::query_scalar(
            "INSERT INTO charge (invoice, cents, key, key_until) VALUES ($1, $2, $3, now() + interval '24 hours')
             ON CONFLICT (key) DO NOTHING RETURNING receipt",
        )
        .bind(invoice)
        .bind(cents)
        .bind(key)
        .fetch_optional(&mut *work)
        .await?;
        if let Some(receipt) = made {
            work.commit().await?;
            let key = key.map_or_else(|| "no key".into(), |key| format!("key {key}"));
            self.tell(Tone::Plain, format!("TAKES {} for {invoice}, receipt {receipt} ({key})", euros(cents)));
            return Ok(answer(StatusCode::CREATED, &json!({ "receipt": receipt })));
        }
        let (receipt, of, before): (i64, String, i64) =
            sqlx::query_as("SELECT receipt, invoice, cents FROM charge WHERE key = $1")
                .bind(key)
                .fetch_one(&mut *work)
                .await?;
        if (of.as_str(), before) == (invoice, cents) {
            self.tell(Tone::Good, format!("takes nothing: this key was used before, receipt {receipt}"));
            return Ok(answer(StatusCode::OK, &json!({ "receipt": receipt })));
        }
        let why = format!("this key was used for {}, not for {}", euros(before), euros(cents));
        self.tell(Tone::Good, format!("takes nothing, answers 409: {why}"));
        Ok(answer(StatusCode::CONFLICT, &json!({ "error": why })))
    }
}

async fn charge(State(service): State<Service>, headers: HeaderMap, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    let invoice = body.get("invoice").and_then(Value::as_str);
    let (Some(invoice), Some(cents)) = (invoice, body.get("cents").and_then(Value::as_i64)) else {
        return answer(StatusCode::BAD_REQUEST, &json!({ "error": "send {\"invoice\": \"…\", \"cents\": …}" }));
    };
    let key = match headers.get("idempotency-key").map(|key| key.to_str()) {
        None => None,
        Some(Ok(key)) if !key.is_empty() => Some(key),
        // To take it for no key would charge twice.
        Some(_) => {
            return answer(StatusCode::BAD_REQUEST, &json!({ "error": "the idempotency key is not visible ASCII" }));
        }
    };
    match service.take(invoice, cents, key).await {
        Ok(response) => response,
        Err(error) => service.failed(&error),
    }
}

async fn charges(State(service): State<Service>, Path(invoice): Path<String>) -> Response {
    let sums = sqlx::query_as("SELECT count(*), coalesce(sum(cents), 0)::bigint FROM charge WHERE invoice = $1");
    match sums.bind(&invoice).fetch_one(&service.records).await {
        Ok((charges, cents)) => {
            let (charges, cents): (i64, i64) = (charges, cents);
            answer(StatusCode::OK, &json!({ "charges": charges, "cents": cents }))
        }
        Err(error) => service.failed(&error),
    }
}

impl Service {
    fn failed(&self, error: &sqlx::Error) -> Response {
        self.tell(Tone::Bad, format!("answers 500: {error}"));
        answer(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": "see the service's log" }))
    }
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [("content-type", "application/json")], body.to_string()).into_response()
}
