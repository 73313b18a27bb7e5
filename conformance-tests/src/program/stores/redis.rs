//! Redis: the guard's script around the caller's own, and careless writes by the client `redis`.

use super::raw;
use crate::subject::{PlainWriter, TestDestination};
use lease_core::{
    Authority, Claims, FencingToken, GuardError, GuardedDestination, LeaseError, Operation, ResourceName, StoreUrl,
    Stored,
};
use lease_redis::RedisDestination;
use redis::aio::MultiplexedConnection;

/// The caller's part of a guarded script.
const BODY: &str = "redis.call('SET', KEYS[1], ARGV[1]) return 'done'";

/// A guarded destination, with a connection of the caller's own beside it.
#[derive(Debug)]
pub(super) struct Destination {
    guarded: RedisDestination,
    own: Own,
}

impl Destination {
    pub(super) async fn open(url: &str) -> Result<Self, GuardError> {
        Ok(Self { guarded: RedisDestination::connect(url).await?, own: Own::open(url).await? })
    }

    fn key(&self, resource: &ResourceName) -> String {
        self.own.key(resource, "guarded")
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

    /// As a user does it: the guard around an own script, on an own connection.
    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let guard = self.guarded.guard_for(resource, token);
        let mut command = redis::cmd("EVAL");
        let keys = guard.keys(&[&self.key(resource)]);
        command.arg(guard.script(BODY)).arg(keys.len()).arg(keys).arg(guard.args(&[value]));
        match self.own.run(Operation::GuardedWrite, &command).await {
            Ok(()) => Ok(()),
            Err(error) => Err(match guard.refusal(&error.to_string()) {
                Some(refusal) => GuardError::Refused { resource: resource.clone(), refusal },
                None => error.into(),
            }),
        }
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        self.guarded.read(resource).await
    }
}

#[async_trait::async_trait]
impl TestDestination for Destination {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        Ok(self.own.set(&self.key(resource), value).await?)
    }

    /// The script is the transaction: the caller asks by sealing, does not look at the answer, and sends its guarded script all the same.
    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        drop(self.seal(resource, token).await);
        self.write(resource, token, value).await
    }

    /// Redis takes nothing back.
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

    /// Deletes the record of a resource's lease.
    pub(super) async fn delete_record(&self, resource: &ResourceName) -> Result<(), LeaseError> {
        let mut command = redis::cmd("DEL");
        command.arg(self.0.key(resource, "lease"));
        self.0.run(Operation::CleanUp, &command).await
    }
}

#[async_trait::async_trait]
impl PlainWriter for Plain {
    async fn write(&self, resource: &ResourceName, value: &str) -> Result<(), LeaseError> {
        self.0.set(&self.0.key(resource, "register"), value).await
    }
}

/// The caller's own connection.
struct Own {
    namespace: String,
    connection: MultiplexedConnection,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Own {
    async fn open(url: &str) -> Result<Self, LeaseError> {
        // Its parameters are the workspace's, and its scheme chooses the workspace's client; here it is always this one.
        let parsed = StoreUrl::parse(url, &[])?;
        let client = redis::Client::open(parsed.url.as_str().replacen("+fred:", ":", 1))
            .map_err(|e| raw::failed(Operation::Connect, e))?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = raw::bounded(Operation::Connect, connecting).await?;
        Ok(Self { namespace: parsed.options.namespace.as_str().to_owned(), connection })
    }

    /// Where the crate keeps a resource's data, as its documentation of keys says.
    fn key(&self, resource: &ResourceName, what: &str) -> String {
        format!("{}:{{{}}}:{what}", self.namespace, resource.encoded())
    }

    async fn set(&self, key: &str, value: &str) -> Result<(), LeaseError> {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value);
        self.run(Operation::GuardedWrite, &command).await
    }

    async fn run(&self, operation: Operation, command: &redis::Cmd) -> Result<(), LeaseError> {
        // Clones share the connection.
        let mut connection = self.connection.clone();
        raw::bounded(operation, command.exec_async(&mut connection)).await
    }
}
