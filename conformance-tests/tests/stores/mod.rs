//! Private stores, and this workspace's backends and destinations on them with an edit in their scripts or statements.

use lease_conformance::faults::{FaultBench, HandEdit};
use lease_conformance::subject::{
    Place, PlainWriter, ServerControl, Subject, TestDestination, Unfenced, faults_at_calls,
};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::{
    Authority, Claims, FencingToken, GuardError, GuardedDestination, LeaseBackend, LeaseError, ResourceName, Stored,
};
use lease_servers::{PostgresSetup, RedisSetup, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Redis,
    Postgres,
    Sqlite,
    #[cfg(feature = "etcd-saboteurs")]
    Etcd,
}

impl Store {
    pub(crate) const ALL: &[Self] = &[
        Self::Redis,
        Self::Postgres,
        Self::Sqlite,
        #[cfg(feature = "etcd-saboteurs")]
        Self::Etcd,
    ];
}

/// Time limits that a busy machine does not reach.
const LIMITS: &str = "call_timeout_ms=10000&connect_timeout_ms=60000";

/// One private server of each kind, and a folder for files.
#[derive(Debug)]
pub(crate) struct Stores {
    redis: Server,
    postgres: Server,
    #[cfg(feature = "etcd-saboteurs")]
    etcd: Server,
    files: TempDir,
    count: AtomicU32,
}

impl Stores {
    pub(crate) fn start() -> Self {
        Self {
            redis: lease_servers::redis(&RedisSetup::default()).unwrap(),
            postgres: lease_servers::postgres(&PostgresSetup::default()).unwrap(),
            #[cfg(feature = "etcd-saboteurs")]
            etcd: lease_servers::etcd(&lease_servers::EtcdSetup::default()).unwrap(),
            files: tempfile::tempdir().unwrap(),
            count: AtomicU32::new(0),
        }
    }

    /// A namespace, or a file, that nobody else uses.
    pub(crate) fn url(&self, store: Store) -> String {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        match store {
            Store::Redis => format!("{}?namespace=s{number}&{LIMITS}", self.redis.url()),
            Store::Postgres => format!("{}?namespace=s{number}&{LIMITS}", self.postgres.url()),
            #[cfg(feature = "etcd-saboteurs")]
            Store::Etcd => format!("{}?namespace=s{number}&{LIMITS}", self.etcd.url()),
            Store::Sqlite => {
                format!("sqlite://{}?{LIMITS}", self.files.path().join(format!("{number}.db")).display())
            }
        }
    }
}

/// One edit of a text, or none.
pub(crate) type Edit = Option<(&'static str, &'static str)>;

pub(crate) async fn backend(
    store: Store,
    url: &str,
    edits: &[(&str, &str)],
) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
    Ok(match store {
        Store::Redis => Arc::new(lease_redis::RedisBackend::connect_edited(url, edits).await?),
        Store::Postgres => Arc::new(lease_postgres::PostgresBackend::connect_edited(url, edits).await?),
        Store::Sqlite => Arc::new(lease_sqlite::SqliteBackend::connect_edited(url, edits).await?),
        #[cfg(feature = "etcd-saboteurs")]
        Store::Etcd => Arc::new(lease_etcd::EtcdBackend::connect_edited(url, edits).await?),
    })
}

pub(crate) async fn destination(
    store: Store,
    url: &str,
    edits: &[(&str, &str)],
) -> Result<Arc<dyn GuardedDestination>, LeaseError> {
    Ok(match store {
        Store::Redis => Arc::new(lease_redis::RedisDestination::connect_edited(url, edits).await?),
        Store::Postgres => Arc::new(lease_postgres::PostgresDestination::connect_edited(url, edits).await?),
        Store::Sqlite => Arc::new(lease_sqlite::SqliteDestination::connect_edited(url, edits).await?),
        #[cfg(feature = "etcd-saboteurs")]
        Store::Etcd => Arc::new(lease_etcd::EtcdDestination::connect_edited(url, edits).await?),
    })
}

/// A lease backend with an edit.
#[derive(Debug)]
pub(crate) struct Edited {
    pub(crate) store: Store,
    pub(crate) url: String,
    pub(crate) edit: Edit,
}

#[async_trait::async_trait]
impl Subject for Edited {
    fn name(&self) -> &'static str {
        "edited"
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        backend(self.store, &self.url, self.edit.as_slice()).await
    }

    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>> {
        None
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn own_store_url(&self) -> Option<String> {
        None
    }

    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        faults_at_calls(self, call_timeout).await
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

/// An honest lease backend, whose tokens go to an edited destination.
pub(crate) fn honest() -> Arc<dyn Subject> {
    let store = MemoryStore::new().unwrap();
    lease_conformance::subject("memory", move || std::future::ready(Ok(MemoryBackend::on(store.clone()))))
}

/// A destination with an edit. One namespace is enough: the cases that use it have names of their own.
#[derive(Debug)]
pub(crate) struct EditedPlace {
    pub(crate) store: Store,
    pub(crate) url: String,
    pub(crate) edit: Edit,
}

#[async_trait::async_trait]
impl Place for EditedPlace {
    fn kind(&self) -> &'static str {
        "edited"
    }

    fn store_of(&self) -> Option<&str> {
        None
    }

    fn url(&self, _namespace: &str) -> Option<String> {
        None
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        // Each namespace trusts its own authority, so it needs a store of its own. The statements to edit name the default namespace of
        // a file, so there a file takes its place.
        let url = if self.store == Store::Sqlite {
            self.url.replacen(".db", &format!("-{namespace}.db"), 1)
        } else {
            let (address, rest) = self.url.split_once("?namespace=").unwrap();
            let (_, rest) = rest.split_once('&').unwrap();
            format!("{address}?namespace={namespace}&{rest}")
        };
        let inner = destination(self.store, &url, self.edit.as_slice()).await?;
        Ok(Arc::new(EditedDestination(inner)))
    }

    fn unfenced(&self, _namespace: &str) -> Option<Arc<dyn Unfenced>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct EditedDestination(Arc<dyn GuardedDestination>);

#[async_trait::async_trait]
impl GuardedDestination for EditedDestination {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn claims(&self) -> Claims {
        self.0.claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        self.0.adopt(expected_old, new).await
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.0.seal(resource, token).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        self.0.write(resource, token, value).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        self.0.read(resource).await
    }
}

/// The cases that run here write through the guard only.
#[async_trait::async_trait]
impl TestDestination for EditedDestination {
    async fn write_plain(&self, _resource: &ResourceName, _value: &str) -> Result<(), GuardError> {
        Err(unsupported().into())
    }

    async fn write_ignoring_refusal(
        &self,
        _resource: &ResourceName,
        _token: &FencingToken,
        _value: &str,
    ) -> Result<(), GuardError> {
        Err(unsupported().into())
    }

    async fn write_and_roll_back(
        &self,
        _resource: &ResourceName,
        _token: &FencingToken,
        _value: &str,
    ) -> Option<Result<(), GuardError>> {
        None
    }
}

fn unsupported() -> LeaseError {
    LeaseError::Unsupported {
        operation: lease_core::Operation::GuardedWrite,
        backend: "edited",
        reason: "no case of this test writes past the guard",
    }
}
