//! Holding a lease: background renewal, loud loss, permits.
//!
//! A [`Keeper`] renews all leases of one backend in one task; a [`LeaseGuard`] is one of them. The guard is *lost* at the deadline at
//! the latest, whatever the network does, and stays lost. New protected work begins with a [`Permit`].
//!
//! ```
//! use lease_core::hold::{HoldOptions, Keeper, StaleBehaviour};
//! use lease_core::memory::MemoryBackend;
//! use std::{sync::Arc, time::Duration};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let keeper = Keeper::start(Arc::new(MemoryBackend::new()?))?;
//! let guard = keeper.acquire("nightly-report", Duration::from_secs(10), HoldOptions::default()).await?.expect("free");
//! let permit = guard.permit(StaleBehaviour::Fenced)?;
//! // … write with `permit.token()`; the destination refuses it once a newer grant was there …
//! permit.committed();
//! guard.release().await?;
//! # Ok(()) }
//! ```

mod driver;
mod events;
mod grant;
mod guard;
mod keeper;
mod loss;
mod permit;

pub use guard::{LeaseGuard, RunError};
pub use keeper::{HoldOptions, Keeper};
pub use loss::{Loss, LossCause};
pub use permit::{Permit, StaleBehaviour};
