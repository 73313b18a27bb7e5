//! etcd: the guard's conditions in the caller's own transaction, and careless writes by the client `etcd-client`.

use super::raw;
use crate::subject::{PlainWriter, TestDestination};
use etcd_client::{Client, ConnectOptions, Txn, TxnOp};
use lease_core::{
    Authority, Claims, FencingToken, GuardError, GuardedDestination, LeaseError, Operation, ResourceName, StoreUrl,
    Stored,
};
use lease_etcd::{EtcdDestination, EtcdGuard};

/// A guarded destination, with a client of the caller's own beside it.
#[derive(Debug)]
pub(super) struct Destination {
    guarded: EtcdDestination,
    own: Own,
}

impl Destination {
    pub(super) async fn open(url: &str) -> Result<Self, GuardError> {
        Ok(Self { guarded: EtcdDestination::connect(url).await?, own: Own::open(url).await? })
    }

    fn key(&self, resource: &ResourceName) -> String {
        format!("{}/guard/data/{resource}", self.own.namespace)
    }

    /// The caller's own transaction under the guard's conditions; whether it was committed.
    async fn commit(&self, guard: &EtcdGuard, resource: &ResourceName, value: &str) -> Result<bool, LeaseError> {
        let put = TxnOp::put(self.key(resource), value, None);
        let mut client = self.own.client.clone();
        let txn = client.txn(Txn::new().when(guard.compares()).and_then([put]));
        Ok(raw::bounded(Operation::GuardedWrite, txn).await?.succeeded())
    }
}

#[async_trait::async_trait]
impl GuardedDestination for Destination {
    fn kind(&self) -> &'static str {
        self.guarded.kind()
    }

    fn claims(&self) -> Claims {
        self.guarded.claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        self.guarded.adopt(expected_old, new).await
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.guarded.seal(resource, token).await
    }

    /// As a user does it: the guard's conditions in an own transaction, on an own client.
    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let guard = self.guarded.open(resource, token).await?;
        if self.commit(&guard, resource, value).await? {
            return Ok(());
        }
        guard.check().await?;
        let reason = "a guarded transaction without other conditions did not succeed, and its guard admits the token";
        Err(raw::failed(Operation::GuardedWrite, std::io::Error::other(reason)).into())
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        self.guarded.read(resource).await
    }
}

#[async_trait::async_trait]
impl TestDestination for Destination {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        Ok(self.own.put(self.key(resource), value).await?)
    }

    /// A refused caller gets no conditions, so there is no transaction to go on with; one that was admitted sends its transaction and
    /// does not look whether it succeeded.
    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        let guard = self.guarded.open(resource, token).await?;
        self.commit(&guard, resource, value).await?;
        Ok(())
    }

    /// The mark and the write in one transaction that does not succeed, for another condition in it.
    async fn write_and_roll_back(
        &self,
        _resource: &ResourceName,
        _token: &FencingToken,
        _value: &str,
    ) -> Option<Result<(), GuardError>> {
        None
    }
}

/// Writes the register of a lease store without asking its fence.
#[derive(Debug)]
pub(super) struct Plain(Own);

impl Plain {
    pub(super) async fn open(url: &str) -> Result<Self, LeaseError> {
        Own::open(url).await.map(Self)
    }

    /// Deletes the record of a resource's lease; the etcd lease that it hung on stays.
    pub(super) async fn delete_record(&self, resource: &ResourceName) -> Result<(), LeaseError> {
        let mut client = self.0.client.clone();
        let key = format!("{}/lease/grant/{resource}", self.0.namespace);
        raw::bounded(Operation::CleanUp, client.delete(key, None)).await.map(drop)
    }
}

#[async_trait::async_trait]
impl PlainWriter for Plain {
    async fn write(&self, resource: &ResourceName, value: &str) -> Result<(), LeaseError> {
        self.0.put(format!("{}/lease/register/{resource}", self.0.namespace), value).await
    }
}

/// The caller's own client.
struct Own {
    namespace: String,
    client: Client,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Own {
    async fn open(url: &str) -> Result<Self, LeaseError> {
        let parsed = StoreUrl::parse(url, &["endpoints"])?;
        let host = parsed.url.host_str().unwrap_or("127.0.0.1");
        let endpoint = format!("http://{host}:{}", parsed.url.port().unwrap_or(2379));
        let user = (!parsed.url.username().is_empty())
            .then(|| (parsed.url.username().to_owned(), parsed.url.password().unwrap_or_default().to_owned()));
        let options = user.map(|(user, password)| ConnectOptions::new().with_user(user, password));
        let client = raw::bounded(Operation::Connect, Client::connect([endpoint], options)).await?;
        Ok(Self { namespace: parsed.options.namespace.as_str().to_owned(), client })
    }

    async fn put(&self, key: String, value: &str) -> Result<(), LeaseError> {
        let mut client = self.client.clone();
        raw::bounded(Operation::GuardedWrite, client.put(key, value, None)).await.map(drop)
    }
}
