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
//! `release_failed` (in the background, after a guard was dropped: its TTL ends the grant), `clean_up_dropped` (a release or an abandoned
//! attempt in the background that was given up because ten thousand later ones wait for the store: the TTL ends it).
//!
//! And spans under the same target, around what takes time: the backend's own spans and events are inside of them. Each has the fields `resource`,
//! `token` (once it is known) and `outcome` (when it ends by itself; one that was dropped half-way has none).
//!
//! | span | level | outcome | from, to |
//! |---|---|---|---|
//! | `acquire` | info | `granted`, `held`, `failed` | a call of [`Keeper::acquire`] or `acquire_within`, with all its waiting |
//! | `attempt` | debug | `granted`, `held`, `failed` | inside `acquire`: one attempt, with its repetitions while its outcome is unknown |
//! | `renewal` | debug | `renewed`, `lost`, `failed` | one renewal in the background, from its being sent |
//! | `release` | info | `released`, `not_held`, `ended_cause_unknown`, `failed` | [`LeaseGuard::release`], or the release of a dropped guard in the background |
//! | `work` | info | `done`, `failed`, `lost` | [`LeaseGuard::run`] |
//! | `abandon` | debug | `done`, `failed` | in the background: the clean-up after an attempt that nobody waits for any more |
//!
//! With the feature `metrics`, counters `leasehold_attempts_total`, `leasehold_grants_total`, `leasehold_releases_total`,
//! `leasehold_renewals_total{outcome}`, `leasehold_losses_total{reason}`, `leasehold_work_failures_total`,
//! `leasehold_permits_total{behaviour}`, `leasehold_effects_committed_total{behaviour}`,
//! `leasehold_stale_writes_refused_total{behaviour}`, `leasehold_clean_ups_dropped_total`; histograms `leasehold_wait_seconds`, `leasehold_hold_seconds`,
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
mod spans;

pub use guard::{LeaseGuard, RunError};
pub use held::HeldLease;
pub use keeper::{HoldOptions, Keeper, KeeperOptions};
pub use loss::{EnsureError, Loss, LossCause};
pub use permit::{Permit, StaleBehaviour};
