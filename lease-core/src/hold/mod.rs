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
//!
//! # Processes
//!
//! A process that was made by `fork`, and started no program of its own, must not use its parent's clients, keepers and guards: the threads
//! that renew are not in it, and the two would read each other's answers. Connect anew there; another process goes on with a lease by
//! [`LeaseGuard::into_hand_over`].
//!
//! # What can be seen
//!
//! `tracing` events under the target `leasehold`, named by their field `event`: `attempt`, `granted`, `renewed`,
//! `renewal_failed`, `lost`, `permit`, `work_started`, `work_failed`, `effect_committed`, `effect_refused`, `released`,
//! `release_failed` (in the background, after a guard was dropped: its TTL ends the grant).
//!
//! With the feature `metrics`, counters `leasehold_attempts_total`, `leasehold_grants_total`, `leasehold_releases_total`,
//! `leasehold_renewals_total{outcome}`, `leasehold_losses_total{reason}`, `leasehold_work_failures_total`,
//! `leasehold_permits_total{behaviour}`, `leasehold_effects_committed_total{behaviour}`,
//! `leasehold_stale_writes_refused_total{behaviour}`; histograms `leasehold_wait_seconds`, `leasehold_hold_seconds`,
//! `leasehold_renewal_slack_seconds` (what was left of the deadline when a renewal was answered).
//!
//! `reason`, of a loss in events and metrics, is [`LossCause::id`]: `expired`, `unresolved`, `superseded`, `released_elsewhere`, `forced`
//! (somebody's order, which is in the log), `revoked` (the record is gone), `expired_at_store`, `hold_limit`, `no_progress`.

mod clean_up;
mod driver;
mod events;
mod grant;
mod guard;
mod held;
mod keeper;
mod loss;
mod permit;

pub use guard::{LeaseGuard, RunError};
pub use held::HeldLease;
pub use keeper::{HoldOptions, Keeper, KeeperOptions};
pub use loss::{EnsureError, Loss, LossCause};
pub use permit::{Permit, StaleBehaviour};
