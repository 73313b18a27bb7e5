//! The contract of Leasehold: what a lease is, what a backend must do, and how a guarded destination refuses a stale worker.
//!
//! A lease ends by the store's clock; the worker that held it does not stop. Two protections are needed, and the first
//! does not imply the second:
//!
//! * **Ownership**: an unpredictable [`OwnerToken`], compared in the store, keeps an old worker from renewing or
//!   releasing a newer worker's lease. Every [`LeaseBackend`] does that.
//! * **Fencing**: a condition at the protected data, checked in the same atomic step as the write, keeps an old worker
//!   from committing stale work. A [`FencingToken`] checked by a [`GuardedDestination`], or the store's own [`Fence`].
//!
//! # Who reads what
//!
//! * Users of leases: [`LeaseExt`], [`Lease`], [`FencingToken`], [`LeaseError`].
//! * Owners of protected data: [`GuardedDestination`], [`DestinationExt`], [`Refusal`].
//! * Authors of backends: [`LeaseBackend`] with its numbered rules, [`Attempt`], [`Claims`], [`Limits`], [`ConnectOptions`].
//!
//! ```
//! use lease_core::{LeaseExt, memory::MemoryBackend};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lease_core::LeaseError> {
//! let backend = MemoryBackend::new()?;
//! let lease = backend.try_acquire("invoices/2026-12", Duration::from_secs(10)).await?.expect("nobody holds it");
//! assert!(!lease.is_past_deadline());
//! assert!(backend.try_acquire("invoices/2026-12", Duration::from_secs(10)).await?.is_none(), "not re-entrant");
//! # Ok(()) }
//! ```

mod attempt;
mod backend;
mod call;
mod claims;
mod clock;
mod destination;
mod error;
mod ext;
mod fence;
mod force;
pub mod hold;
mod lease;
pub mod memory;
mod name;
mod operation;
mod options;
mod owner;
pub mod plain;
pub mod testing;
mod token;
mod ttl;

pub use attempt::{Attempt, SentAttempt};
pub use backend::{
    Acquisition, CleanUp, Description, Held, Inspection, LeaseBackend, Listed, LossReason, NamePage, Release, Renewal,
};
pub use call::{accept_grant, bounded};
pub use claims::{Claim, Claims, Limits};
pub use clock::{BootId, BootInstant, Clock, ManualClock, SharedClock, SystemClock};
pub use destination::{GuardError, GuardedDestination, Refusal, Stored};
pub use error::{Advice, Effect, ErrorKind, LeaseError, Source};
pub use ext::{DestinationExt, LeaseExt};
pub use fence::{Fence, FenceError, FencedRegister};
pub use force::{ForceRelease, Forced};
pub use lease::{HandOver, Lease, ReleaseTry, safety_margin};
pub use name::{HolderLabel, Namespace, ResourceName};
pub use operation::Operation;
pub use options::{ConnectOptions, StoreUrl, redact_url};
pub use owner::OwnerToken;
pub use plain::{IdempotencyKey, Once, OnceError, Version, VersionError};
pub use token::{Authority, FencingToken, GrantId, ParseTokenError};
pub use ttl::Ttl;
