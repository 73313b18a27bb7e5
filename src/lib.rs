#![doc = include_str!("../README.md")]

mod builtin;
mod memory_url;
mod registry;

pub use lease_core::*;
pub use registry::{BackendFuture, DestinationFuture, Registry};

// The modules below have the names of what they are for, and some crates have those names too (`http`, `redis`, `postgres`). Nothing is hidden
// where names are imported one by one. After `use leasehold::*` such a crate is `::http`; forgetting that does not compile.
#[cfg(feature = "etcd")]
pub use lease_etcd as etcd;
#[cfg(feature = "http")]
pub use lease_http as http;
#[cfg(feature = "postgres")]
pub use lease_postgres as postgres;
#[cfg(any(feature = "redis", feature = "redis-fred"))]
pub use lease_redis as redis;
#[cfg(feature = "sqlite")]
pub use lease_sqlite as sqlite;

/// The attribute that an own [`LeaseBackend`] or [`GuardedDestination`] is written with.
#[doc(no_inline)]
pub use async_trait::async_trait;

use std::sync::Arc;

/// Connects to the lease store that `url` names. The scheme chooses the backend and its client; a feature only decides whether they
/// are compiled in.
///
/// `memory:` is a new, empty store at each connect. A named one, `memory:NAME`, has to live somewhere: use a [`Registry`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::LeaseError> {
/// use leasehold::LeaseExt;
/// let backend = leasehold::connect("memory:").await?;
/// let lease = backend.try_acquire("invoices/2026-12", std::time::Duration::from_secs(10)).await?;
/// assert!(lease.is_some());
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`LeaseError::UnknownScheme`] names the missing feature, or lists the schemes that there are. Otherwise as the backend's own
/// `connect`: a bad URL before any I/O, a store that cannot be reached, a login or a privilege that is missing.
///
/// # Cancel safety
/// The connection is given up. Nothing was granted.
pub async fn connect(url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
    Registry::for_one_connect().connect(url).await
}

/// Connects to the guarded destination that `url` names; the schemes are those of [`connect`].
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// The connection is given up. No mark was raised.
pub async fn connect_destination(url: &str) -> Result<Arc<dyn GuardedDestination>, LeaseError> {
    Registry::for_one_connect().connect_destination(url).await
}
