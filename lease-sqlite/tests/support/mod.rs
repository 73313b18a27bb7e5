//! What the tests of this crate share: a file in a folder of its own, and short forms.
#![allow(dead_code, reason = "each test file uses a part of it")]

use lease_core::{
    Acquisition, Attempt, Authority, FencingToken, GrantId, Lease, LeaseBackend as _, LeaseError, ManualClock,
    ResourceName, Ttl,
};
use lease_sqlite::{SqliteBackend, SqliteConfig};
use std::path::PathBuf;
use std::time::Duration;

/// A folder that goes when it is dropped, and the path of a database in it.
pub struct Place {
    pub folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("leases.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    pub async fn backend(&self) -> SqliteBackend {
        SqliteBackend::connect(&self.url()).await.unwrap()
    }

    pub async fn backend_with(&self, parameters: &str) -> SqliteBackend {
        SqliteBackend::connect(&format!("{}?{parameters}", self.url())).await.unwrap()
    }

    /// A backend on virtual time.
    pub async fn backend_on(&self, clock: &ManualClock) -> SqliteBackend {
        self.backend_on_with(clock, "").await
    }

    pub async fn backend_on_with(&self, clock: &ManualClock, parameters: &str) -> SqliteBackend {
        let mut config = SqliteConfig::parse(&format!("{}?{parameters}", self.url())).unwrap();
        config.options_mut().clock = clock.shared();
        SqliteBackend::connect_with(config).await.unwrap()
    }

    /// A connection of somebody else.
    pub async fn plain(&self) -> sqlx::SqliteConnection {
        use sqlx::ConnectOptions as _;
        sqlx::sqlite::SqliteConnectOptions::new().filename(self.path()).create_if_missing(true).connect().await.unwrap()
    }
}

pub fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).unwrap()
}

pub fn attempt(resource: &str, ttl: Duration) -> Attempt {
    Attempt::new(name(resource), Ttl::parse(ttl).unwrap()).unwrap()
}

pub const TEN: Duration = Duration::from_secs(10);

pub async fn try_acquire(backend: &SqliteBackend, attempt: &Attempt) -> Result<Option<Lease>, LeaseError> {
    Ok(match backend.acquire(attempt).await? {
        Acquisition::Acquired(lease) => Some(lease),
        Acquisition::Held(_) => None,
    })
}

/// Acquires a free resource for ten seconds.
pub async fn acquire(backend: &SqliteBackend, resource: &str) -> Lease {
    acquire_for(backend, resource, TEN).await
}

pub async fn acquire_for(backend: &SqliteBackend, resource: &str, ttl: Duration) -> Lease {
    try_acquire(backend, &attempt(resource, ttl)).await.unwrap().expect("it is free")
}

pub async fn is_held(backend: &SqliteBackend, resource: &str) -> bool {
    try_acquire(backend, &attempt(resource, TEN)).await.unwrap().is_none()
}

pub fn value(lease: &Lease) -> u64 {
    lease.token().unwrap().value()
}

pub fn authority(text: &str) -> Authority {
    Authority::parse(text).unwrap()
}

/// A token of authority `a`.
pub fn token(value: u64, grant: u64) -> FencingToken {
    let grant = GrantId::from_hex(&format!("{grant:016x}")).unwrap();
    FencingToken::new(authority("a"), value, grant).unwrap()
}

/// One number from the file, asked by somebody else.
pub async fn number(connection: &mut sqlx::SqliteConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}
