//! What the tests share: one private server, and short forms.

use lease_core::{Acquisition, Attempt, ForceRelease, Forced, HolderLabel, Lease, LeaseBackend, ResourceName, Ttl};
use lease_postgres::PostgresBackend;
use lease_servers::{PostgresSetup, Server};
use sqlx::postgres::{PgPool, PgPoolOptions};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The server that tests with namespaces of their own share; it ends with the last of them.
pub fn shared() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(own(&[]));
        *shared = Arc::downgrade(&server);
        server
    })
}

/// A server of the test's own, with settings.
pub fn own(settings: &[(&str, &str)]) -> Server {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    lease_servers::postgres(&PostgresSetup { settings }).unwrap()
}

/// The server's URL with parameters.
pub fn url(server: &Server, parameters: &str) -> String {
    format!("{}?{parameters}", server.url())
}

/// With a call limit that a slow machine keeps: no test is about how fast it is.
pub async fn connect(server: &Server, namespace: &str) -> PostgresBackend {
    connect_with(server, &format!("namespace={namespace}")).await
}

pub async fn connect_with(server: &Server, parameters: &str) -> PostgresBackend {
    let url = url(server, &format!("{parameters}&call_timeout_ms=30000&connect_timeout_ms=30000"));
    PostgresBackend::connect(&url).await.unwrap()
}

/// A plain connection pool, as an application has one.
pub async fn admin(server: &Server) -> PgPool {
    PgPoolOptions::new().max_connections(8).connect(server.url()).await.unwrap()
}

pub async fn sql(pool: &PgPool, text: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(text.to_owned())).execute(pool).await.unwrap();
}

pub async fn number(pool: &PgPool, text: &str) -> i64 {
    sqlx::query_scalar(sqlx::AssertSqlSafe(text.to_owned())).fetch_one(pool).await.unwrap()
}

pub fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).unwrap()
}

pub fn attempt(resource: &str, ttl_ms: u64) -> Attempt {
    Attempt::new(name(resource), Ttl::parse(Duration::from_millis(ttl_ms)).unwrap()).unwrap()
}

pub async fn take(backend: &PostgresBackend, resource: &str, ttl_ms: u64) -> Lease {
    match backend.acquire(&attempt(resource, ttl_ms)).await.unwrap() {
        Acquisition::Acquired(lease) => lease,
        Acquisition::Held(held) => panic!("{resource} is held: {held:?}"),
    }
}

pub async fn is_held(backend: &PostgresBackend, resource: &str) -> bool {
    matches!(backend.acquire(&attempt(resource, 10_000)).await.unwrap(), Acquisition::Held(_))
}

pub fn value(lease: &Lease) -> u64 {
    lease.token().unwrap().value()
}

/// An operator's order to end the grant with this value.
pub fn order(resource: &str, value: u64) -> ForceRelease {
    ForceRelease::new(name(resource), value, HolderLabel::parse("operator").unwrap(), "a test").unwrap()
}

/// Ends the grant of `lease` by force.
pub async fn force(backend: &PostgresBackend, lease: &Lease) -> Forced {
    backend.force_release(&order(lease.resource().as_str(), value(lease))).await.unwrap()
}

/// Lets the lease's time be over in so many ms, whatever TTL it was granted: no test depends on being quick.
pub async fn expire_in(pool: &PgPool, namespace: &str, resource: &str, ms: u64) {
    let expire = format!(
        "UPDATE {namespace}.lease SET expires_at = clock_timestamp() + interval '{ms} ms' WHERE name = '{resource}'"
    );
    sql(pool, &expire).await;
}

/// Waits until the server itself says that the lease's time is over.
pub async fn until_expired(backend: &PostgresBackend, resource: &str) {
    while backend.inspect(&name(resource)).await.unwrap().held.is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns when `task`, which works on this namespace, waits for another session's lock, and so many sessions do in all.
pub async fn until_blocked<T>(pool: &PgPool, namespace: &str, sessions: i64, task: &tokio::task::JoinHandle<T>) {
    assert!(until_blocked_or_done(pool, namespace, sessions, task).await, "it did not wait");
}

/// The same for a task that may not have to wait, where it was too late for that; whether it waits.
pub async fn until_blocked_or_done<T>(
    pool: &PgPool,
    namespace: &str,
    sessions: i64,
    task: &tokio::task::JoinHandle<T>,
) -> bool {
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%\"{namespace}\"%'"
    );
    while number(pool, &waiting).await < sessions {
        if task.is_finished() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    true
}
