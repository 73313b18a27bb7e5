//! Acquires leases and keeps them renewed: one task for all leases of a backend.

use super::driver::{self, Command};
use super::events;
use super::grant::Grant;
use super::guard::LeaseGuard;
use crate::{Acquisition, Attempt, Effect, Lease, LeaseBackend, LeaseError, ResourceName, Ttl};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Acquires leases of one backend and renews them in the background. Clones share the task.
///
/// All guards share one task; a lease costs an entry in its timer queue, and a short-lived task while a renewal is under
/// way. A renewal is tried first after a third of the TTL (with jitter). Each try has a time-out of a third of what is left,
/// so that one stalled reply does not use up the rest; a failed one is repeated while the deadline allows.
#[derive(Clone, Debug)]
pub struct Keeper {
    backend: Arc<dyn LeaseBackend>,
    commands: mpsc::UnboundedSender<Command>,
}

/// How a lease is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldOptions {
    /// The longest total time to hold; then the guard is lost and the lease released. `None`: no limit.
    pub hold_limit: Option<Duration>,
    /// The longest time between two calls of [`LeaseGuard::progress`]; then the guard is lost. `None`: not asked for.
    pub progress_limit: Option<Duration>,
}

impl HoldOptions {
    /// The same with a limit on the total time.
    #[must_use]
    pub fn with_hold_limit(mut self, limit: Duration) -> Self {
        self.hold_limit = Some(limit);
        self
    }

    /// The same with a limit on the time without progress.
    #[must_use]
    pub fn with_progress_limit(mut self, limit: Duration) -> Self {
        self.progress_limit = Some(limit);
        self
    }
}

impl Keeper {
    /// Starts the renewal task on the current Tokio runtime. It ends when the keeper's clones and guards are gone.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] outside a Tokio runtime.
    pub fn start(backend: Arc<dyn LeaseBackend>) -> Result<Self, LeaseError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| LeaseError::InvalidConfig {
            reason: "a keeper needs a Tokio runtime with time enabled; start it inside one".into(),
        })?;
        let (commands, inbox) = mpsc::unbounded_channel();
        runtime.spawn(driver::drive(Arc::clone(&backend), inbox));
        Ok(Self { backend, commands })
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn LeaseBackend> {
        &self.backend
    }

    /// Tries once: a guard, or `None` when the lease is held by another.
    ///
    /// An unknown outcome is resolved by repeating the same attempt while its TTL lasts, then abandoned.
    ///
    /// # Errors
    /// As [`LeaseBackend::acquire`].
    ///
    /// # Cancel safety
    /// An attempt that was under way is abandoned in the background; if that fails, it ends with its TTL.
    pub async fn acquire(
        &self,
        resource: &str,
        ttl: Duration,
        options: HoldOptions,
    ) -> Result<Option<LeaseGuard>, LeaseError> {
        self.acquire_within(resource, ttl, Duration::ZERO, options).await
    }

    /// Tries until it gets the lease or `wait` has passed: then `None`. Tries at least once; what the store granted is
    /// always returned.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), at the first error that repeating does not cure.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(
        &self,
        resource: &str,
        ttl: Duration,
        wait: Duration,
        options: HoldOptions,
    ) -> Result<Option<LeaseGuard>, LeaseError> {
        let (resource, ttl) = (ResourceName::parse(resource)?, Ttl::parse(ttl)?);
        let clock = self.backend.clock();
        let (begin, mut pause) = (clock.now(), crate::ext::Pause::default());
        let end = begin.saturating_add(wait);
        loop {
            match self.try_once(&resource, ttl).await? {
                Acquisition::Acquired(lease) => {
                    events::granted(&lease, clock.now().saturating_since(begin));
                    return Ok(Some(self.hold(lease, options)));
                }
                Acquisition::Held(held) => {
                    let now = clock.now();
                    if now >= end {
                        return Ok(None);
                    }
                    clock.sleep_until(now.saturating_add(pause.after(&held)?).min(end)).await;
                }
            }
        }
    }

    /// Keeps a lease that was acquired otherwise, or handed over. One that is past its deadline makes a guard that is lost.
    #[must_use]
    pub fn hold(&self, lease: Lease, options: HoldOptions) -> LeaseGuard {
        let grant = Arc::new(Grant::new(lease, self.backend.clock()));
        self.send(Command::Hold(Arc::clone(&grant), options));
        LeaseGuard::new(self.clone(), grant)
    }

    /// One new attempt, repeated while its outcome is unknown.
    async fn try_once(&self, resource: &ResourceName, ttl: Ttl) -> Result<Acquisition, LeaseError> {
        events::attempt(resource);
        let attempt = Attempt::new(resource.clone(), ttl)?;
        let mut unsettled = Unsettled { keeper: self, attempt: Some(&attempt) };
        let clock = self.backend.clock();
        let mut pause = Duration::from_millis(20);
        loop {
            match self.backend.acquire(&attempt).await {
                Err(error) if error.effect() == Effect::Unknown && !matches!(error, LeaseError::LateGrant { .. }) => {
                    clock.sleep_until(clock.now().saturating_add(pause)).await;
                    pause = pause.saturating_mul(2).min(Duration::from_secs(1));
                }
                // A repeat after its own TTL: an earlier send may have made a grant, which `unsettled` cleans up.
                Err(LeaseError::AttemptOver { .. }) => {
                    return Err(LeaseError::LateGrant { resource: resource.clone() });
                }
                settled => {
                    unsettled.attempt = None;
                    return settled;
                }
            }
        }
    }

    /// Sends to the task; when it is gone with its runtime, the TTL ends what it would have ended.
    pub(super) fn send(&self, command: Command) {
        let _runtime_gone = self.commands.send(command);
    }
}

/// Abandons an attempt that nobody waits for any more and whose outcome is unknown.
struct Unsettled<'a> {
    keeper: &'a Keeper,
    attempt: Option<&'a Attempt>,
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt {
            self.keeper.send(Command::Abandon(attempt.clone()));
        }
    }
}
