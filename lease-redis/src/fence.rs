//! The native fence: a write in this Redis that is refused from the moment the grant has ended.

use crate::backend::{RedisBackend, value_of};
use crate::error::CallError;
use lease_core::{FenceError, FencedRegister, Lease, LeaseError, Operation, ResourceName};
use std::fmt;

/// The fence for the caller's own script, on the caller's own connection to the same server and database.
///
/// The script checks, in the same atomic step as its writes, that the lease's record in this Redis is live and the lease's own. It protects data *in
/// this Redis* only; data elsewhere need the fencing token and a guarded destination.
///
/// ```no_run
/// # async fn example(backend: &lease_redis::RedisBackend, lease: &lease_core::Lease) {
/// let fence = backend.fence_for(lease);
/// let script = fence.script("return redis.call('INCRBY', KEYS[1], ARGV[1])");
/// let (keys, args) = (fence.keys(&["balance"]), fence.args(&["100"]));
/// // EVAL script keys.len() keys… args… with any client; then:
/// # let error_text = "";
/// let refused = lease_redis::RedisFence::is_refusal(error_text);
/// # }
/// ```
#[derive(Clone)]
pub struct RedisFence {
    prelude: String,
    key: String,
    owner: String,
    value: String,
}

impl RedisFence {
    /// `body` behind the fence. It finds its own keys from `KEYS[1]` on and its own arguments from `ARGV[1]` on. When the grant has ended it does
    /// not run, and the script answers with an error.
    #[must_use]
    pub fn script(&self, body: &str) -> String {
        format!("{}{body}", self.prelude)
    }

    /// The keys to send, given the body's own. (In a cluster all of them would have to share a slot; clusters are not supported.)
    #[must_use]
    pub fn keys(&self, own: &[&str]) -> Vec<String> {
        std::iter::once(&*self.key).chain(own.iter().copied()).map(str::to_owned).collect()
    }

    /// The arguments to send, given the body's own. **A secret**: the owner token is among them.
    #[must_use]
    pub fn args(&self, own: &[&str]) -> Vec<String> {
        [&*self.owner, &*self.value].into_iter().chain(own.iter().copied()).map(str::to_owned).collect()
    }

    /// Whether the text of an error that the server answered with says that the fence refused.
    #[must_use]
    pub fn is_refusal(error_text: &str) -> bool {
        error_text.contains(REFUSED)
    }
}

const REFUSED: &str = "LEASEHOLD_FENCED";

impl fmt::Debug for RedisFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFence").field("key", &self.key).finish_non_exhaustive()
    }
}

impl RedisBackend {
    /// The fence of `lease` for the caller's own script.
    #[must_use]
    pub fn fence_for(&self, lease: &Lease) -> RedisFence {
        RedisFence {
            prelude: self.scripts.fence.clone(),
            key: self.keys.lease(lease.resource()),
            owner: lease.owner().reveal(),
            value: value_of(lease),
        }
    }
}

#[async_trait::async_trait]
impl FencedRegister for RedisBackend {
    async fn write(&self, lease: &Lease, value: &str) -> Result<(), FenceError> {
        let resource = lease.resource();
        let call = self.link.begin(Operation::FencedWrite);
        let keys = [&*self.keys.lease(resource), &self.keys.register(resource)];
        let args = [&*lease.owner().reveal(), &value_of(lease), value];
        match call.eval(&self.scripts.fenced_write, &keys, &args).await {
            Ok(_) => Ok(()),
            Err(CallError::Server(reply)) if reply.code() == REFUSED => {
                Err(FenceError::Refused { resource: resource.clone() })
            }
            Err(error) => Err(error.into_lease(&call, Some(resource)).into()),
        }
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<String>, LeaseError> {
        let call = self.link.begin(Operation::Read);
        let reply = call.command(&["GET", &self.keys.register(resource)]).await;
        let reply = reply.map_err(|e| e.into_lease(&call, Some(resource)))?;
        Ok(reply.into_texts().into_iter().next())
    }
}
