//! What the lease's own store can do against a stale worker.

use crate::{Lease, LeaseError, ResourceName};

/// What the lease's own store can do against a stale worker, as a value that has to be looked at.
///
/// `LiveOwner` and `Mark` protect writes **in this store**. Anything that lives elsewhere needs the fencing token at a
/// [`GuardedDestination`](crate::GuardedDestination).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use = "data that no fence protects is open to stale writes"]
pub enum Fence<'a> {
    /// A write is refused from the moment the grant has ended.
    LiveOwner(&'a dyn FencedRegister),
    /// A write is refused once a newer grant has sealed or written.
    Mark(&'a dyn FencedRegister),
    /// The store hands out tokens, and cannot itself check them: the destination has to.
    TokenOnly,
    /// There is nothing that orders grants.
    None,
}

impl<'a> Fence<'a> {
    /// The register behind a native fence.
    #[must_use]
    pub fn register(self) -> Option<&'a dyn FencedRegister> {
        match self {
            Self::LiveOwner(register) | Self::Mark(register) => Some(register),
            Self::TokenOnly | Self::None => None,
        }
    }

    /// The name, as reports print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LiveOwner(_) => "native, live owner",
            Self::Mark(_) => "native, mark",
            Self::TokenOnly => "token only",
            Self::None => "none",
        }
    }
}

/// A small register in the lease's own store, one per resource, whose writes pass the native fence: the same check that
/// each backend offers for the caller's own data (an SQL transaction, an etcd compare, a Redis script).
#[async_trait::async_trait]
pub trait FencedRegister: std::fmt::Debug + Send + Sync {
    /// Writes `value` if the fence lets this lease; check and write are one atomic step.
    ///
    /// # Errors
    /// [`FenceError::Refused`] when the grant has ended: nothing was written.
    ///
    /// # Cancel safety
    /// The write may or may not have happened; if so, the lease was good then.
    async fn write(&self, lease: &Lease, value: &str) -> Result<(), FenceError>;

    /// Reads the register.
    ///
    /// # Errors
    /// When the store cannot be read.
    ///
    /// # Cancel safety
    /// No effect.
    async fn read(&self, resource: &ResourceName) -> Result<Option<String>, LeaseError>;
}

/// Why a fenced write did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The grant has ended; nothing was written.
    #[error("the fence refused the write on {resource}: this grant has ended; stop the work and acquire anew")]
    Refused {
        /// The resource.
        resource: ResourceName,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] LeaseError),
}
