//! What the tests of this crate share: a file in a folder of its own, and short forms.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, of which each file uses a part"
)]

use lease_core::{
    Acquisition, Advice, Attempt, Authority, Effect, FencingToken, ForceRelease, Forced, GrantId, HolderLabel, Lease,
    LeaseBackend as _, LeaseError, ManualClock, ResourceName, Ttl,
};
use lease_sqlite::{SqliteBackend, SqliteConfig};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A folder that goes when it is dropped, and the path of a database in it.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("leases.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    pub(crate) async fn backend(&self) -> SqliteBackend {
        SqliteBackend::connect(&self.url()).await.unwrap()
    }

    pub(crate) async fn backend_with(&self, parameters: &str) -> SqliteBackend {
        SqliteBackend::connect(&format!("{}?{parameters}", self.url())).await.unwrap()
    }

    /// A backend on virtual time.
    pub(crate) async fn backend_on(&self, clock: &ManualClock) -> SqliteBackend {
        self.backend_on_with(clock, "").await
    }

    pub(crate) async fn backend_on_with(&self, clock: &ManualClock, parameters: &str) -> SqliteBackend {
        let mut config = SqliteConfig::parse(&format!("{}?{parameters}", self.url())).unwrap();
        config.options_mut().clock = clock.shared();
        SqliteBackend::connect_with(config).await.unwrap()
    }

    /// A connection of somebody else.
    pub(crate) async fn plain(&self) -> sqlx::SqliteConnection {
        use sqlx::ConnectOptions as _;
        sqlx::sqlite::SqliteConnectOptions::new().filename(self.path()).create_if_missing(true).connect().await.unwrap()
    }
}

pub(crate) fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).unwrap()
}

pub(crate) fn attempt(resource: &str, ttl: Duration) -> Attempt {
    Attempt::new(name(resource), Ttl::parse(ttl).unwrap()).unwrap()
}

pub(crate) const TEN: Duration = Duration::from_secs(10);

pub(crate) async fn try_acquire(backend: &SqliteBackend, attempt: &Attempt) -> Result<Option<Lease>, LeaseError> {
    Ok(match backend.acquire(attempt).await? {
        Acquisition::Acquired(lease) => Some(lease),
        Acquisition::Held(_) => None,
    })
}

/// Acquires a free resource for ten seconds.
pub(crate) async fn acquire(backend: &SqliteBackend, resource: &str) -> Lease {
    acquire_for(backend, resource, TEN).await
}

pub(crate) async fn acquire_for(backend: &SqliteBackend, resource: &str, ttl: Duration) -> Lease {
    try_acquire(backend, &attempt(resource, ttl)).await.unwrap().expect("it is free")
}

pub(crate) async fn is_held(backend: &SqliteBackend, resource: &str) -> bool {
    try_acquire(backend, &attempt(resource, TEN)).await.unwrap().is_none()
}

pub(crate) fn value(lease: &Lease) -> u64 {
    lease.token().unwrap().value()
}

pub(crate) fn authority(text: &str) -> Authority {
    Authority::parse(text).unwrap()
}

/// A token of authority `a`.
pub(crate) fn token(value: u64, grant: u64) -> FencingToken {
    let grant = GrantId::from_hex(&format!("{grant:016x}")).unwrap();
    FencingToken::new(authority("a"), value, grant).unwrap()
}

/// An operator's order to end the grant with this value.
pub(crate) fn order(resource: &str, value: u64) -> ForceRelease {
    ForceRelease::new(name(resource), value, HolderLabel::parse("operator").unwrap(), "a test").unwrap()
}

/// Ends the grant of `lease` by force.
pub(crate) async fn force(backend: &SqliteBackend, lease: &Lease) -> Forced {
    backend.force_release(&order(lease.resource().as_str(), value(lease))).await.unwrap()
}

/// A helper process, which runs the function `role` of the calling test's own file on `url`.
///
/// This test program is started again, for its test `helper_process` alone, which looks here for its [`role`]. A program of its own would be one more
/// target of the published crate.
pub(crate) fn helper(role: &str, url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "helper_process", "--nocapture"]).env(ROLE, role).env(ROLE_URL, url);
    command
}

/// The role that this process was started for by [`helper`], and on which file; `None` where it runs tests.
pub(crate) fn role() -> Option<(String, String)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(ROLE_URL).ok()?))
}

const ROLE: &str = "LEASE_SQLITE_TEST_ROLE";
const ROLE_URL: &str = "LEASE_SQLITE_TEST_URL";

/// One number from the file, asked by somebody else.
pub(crate) async fn number(connection: &mut sqlx::SqliteConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

/// Checks that the write lock was not to be had, so that nothing was done. On a slow machine the time-out comes before SQLite's answer.
pub(crate) fn assert_busy(error: &LeaseError) {
    let says = matches!(error, LeaseError::Timeout { .. }) || error.to_string().contains("write lock");
    assert!(says, "{error}");
    assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain), "{error}");
}
