//! Acquires leases and keeps them renewed: one task for all leases of a backend.

use super::driver::{self, Command};
use super::grant::Grant;
use super::guard::LeaseGuard;
use super::{events, spans};
use crate::{Acquisition, Advice, Attempt, BootInstant, Effect, Lease, LeaseBackend, LeaseError, ResourceName, Ttl};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Acquires leases of one backend and renews them in the background. Clones share the task.
///
/// All guards share one task; a lease costs an entry in its timer queue, and a short-lived task while a renewal is under
/// way. A renewal is tried first after a third of the TTL (with jitter). Each try has a time-out of a third of what is left,
/// so that one stalled reply does not use up the rest; a failed one is repeated while the deadline allows.
///
/// # Many at once
/// Leases that were acquired together, or a process that was paused, make many renewals due together. At most
/// [`renewals_at_once`](KeeperOptions::renewals_at_once) of them are then sent at one time, the most urgent first, so that the store is not
/// flooded; the time-out of each begins when it is sent. A store that can carry these leases at all, each of which it renews once in a third
/// of the TTL, has answered all of them before they press.
///
/// A renewal presses when a third of its TTL or less is left: after a pause of about two thirds of the TTL, or when the store was silent as long. A
/// pressing one is sent over the limit too, until four times as many as the limit are under way altogether, and is never more. The others wait
/// for a place, and the lease whose deadline comes first gets it: when one is answered, or has timed out after a third of what was left of its
/// TTL. So of a crowd that has little time left, as many are saved as the store answers in that time through so many places; the
/// rest are lost at their deadlines, as they are by a store that is too slow.
#[derive(Clone, Debug)]
pub struct Keeper {
    backend: Arc<dyn LeaseBackend>,
    commands: mpsc::UnboundedSender<Command>,
    /// How many guards there have been.
    guards: Arc<AtomicU64>,
}

/// How a lease is held.
///
/// # What a limit does
/// When a limit is reached, the guard is lost and nothing renews any more. The lease is **not** released then: the work may be running
/// still, above all where it is stuck, and a release would let the next worker begin beside it for certain. The rest of the TTL is its time
/// to notice the loss and stop. Releasing or dropping the guard says that it has stopped, and frees the resource at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldOptions {
    /// The longest total time to hold; then the guard is lost. `None`: no limit. It ends what was leaked, too.
    pub hold_limit: Option<Duration>,
    /// The longest time between two calls of [`LeaseGuard::progress`]; then the guard is lost. `None`: not asked for.
    pub progress_limit: Option<Duration>,
    /// What the grant's fencing value has to be larger than, as [`Attempt::above`] says; 0 asks for nothing. A lease that was acquired otherwise is
    /// held as it is.
    pub floor: u64,
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

    /// The same for a grant whose fencing value is larger than `floor`.
    #[must_use]
    pub fn above(mut self, floor: u64) -> Self {
        self.floor = floor;
        self
    }
}

/// How a keeper renews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeeperOptions {
    /// How many renewals may be under way at one time; at least 1, default 64. While leases of which a third of the TTL or less is left wait for
    /// theirs, four times as many ([`Keeper`] says why). Never more.
    ///
    /// 64 is as many as it takes to keep any of the stores busy: from 16 requests at a time to 64, renewals per second grow little or not at
    /// all on etcd and PostgreSQL, and by half on Redis; more would only wait in the store's own queue. And it is enough for a store
    /// that is far away: at 20 ms it is asked 3,200 times a second, which keeps 32,000 leases of 30 s without any going over the limit.
    pub renewals_at_once: u32,
}

impl Default for KeeperOptions {
    fn default() -> Self {
        Self { renewals_at_once: 64 }
    }
}

impl KeeperOptions {
    /// The same with another limit on the renewals under way.
    #[must_use]
    pub fn with_renewals_at_once(mut self, limit: u32) -> Self {
        self.renewals_at_once = limit;
        self
    }
}

impl Keeper {
    /// Starts the renewal task on the current Tokio runtime. It ends when the keeper's clones and guards are gone.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] outside a Tokio runtime.
    pub fn start(backend: Arc<dyn LeaseBackend>) -> Result<Self, LeaseError> {
        Self::start_with(backend, KeeperOptions::default())
    }

    /// As [`start`](Self::start), with options.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] outside a Tokio runtime, or when no renewal could ever be sent.
    pub fn start_with(backend: Arc<dyn LeaseBackend>, options: KeeperOptions) -> Result<Self, LeaseError> {
        if options.renewals_at_once == 0 {
            return Err(LeaseError::InvalidConfig {
                reason: "with `renewals_at_once` 0 no lease would be renewed; give at least 1".into(),
            });
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| LeaseError::InvalidConfig {
            reason: "a keeper needs a Tokio runtime with time enabled; start it inside one".into(),
        })?;
        let (commands, inbox) = mpsc::unbounded_channel();
        runtime.spawn(driver::drive(Arc::clone(&backend), options, inbox));
        Ok(Self { backend, commands, guards: Arc::default() })
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn LeaseBackend> {
        &self.backend
    }

    /// Tries once: a guard, or `None` when the lease is held by another.
    ///
    /// An unknown outcome is resolved by repeating the same attempt, for twice the backend's call time-out (and while the TTL lasts);
    /// if that does not help, the attempt is abandoned in the background, and the error says that the effect is unknown.
    ///
    /// # Errors
    /// As [`LeaseBackend::acquire`]; [`LeaseError::InvalidConfig`] when the runtime that the keeper was started on has ended.
    ///
    /// # Cancel safety
    /// An attempt that was under way is abandoned in the background; if that fails again and again, it ends with its TTL.
    pub async fn acquire(
        &self,
        resource: &str,
        ttl: Duration,
        options: HoldOptions,
    ) -> Result<Option<LeaseGuard>, LeaseError> {
        self.acquire_within(resource, ttl, Duration::ZERO, options).await
    }

    /// Tries until it gets the lease or `wait` has passed: then `None`. Tries at least once; what the store granted is
    /// always returned. An unknown outcome is resolved as by [`acquire`](Self::acquire), and while the wait lasts.
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
        if self.commands.is_closed() {
            return Err(LeaseError::InvalidConfig {
                reason:
                    "the runtime that this keeper was started on has ended, so nobody would renew; start another keeper"
                        .into(),
            });
        }
        let (resource, ttl) = (ResourceName::parse(resource)?, Ttl::parse(ttl)?);
        let acquiring = self.acquire_until(&resource, ttl, wait, options);
        spans::within(spans::acquire(&resource), spans::acquired, acquiring).await
    }

    async fn acquire_until(
        &self,
        resource: &ResourceName,
        ttl: Ttl,
        wait: Duration,
        options: HoldOptions,
    ) -> Result<Option<LeaseGuard>, LeaseError> {
        let clock = self.backend.clock();
        let (begin, mut pause) = (clock.now(), crate::ext::Pause::default());
        let end = begin.saturating_add(wait);
        loop {
            let attempt = self.try_once(resource, ttl, options.floor, end);
            match spans::within(spans::attempt(resource), spans::attempted, attempt).await? {
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
        let id = self.guards.fetch_add(1, Ordering::Relaxed);
        let grant = Arc::new(Grant::new(id, lease, options, self.backend.clock()));
        self.send(Command::Hold(Arc::clone(&grant)));
        LeaseGuard::new(self.clone(), grant)
    }

    /// One new attempt, repeated while its outcome is unknown, until `end` and for two call time-outs in any case.
    async fn try_once(
        &self,
        resource: &ResourceName,
        ttl: Ttl,
        floor: u64,
        end: BootInstant,
    ) -> Result<Acquisition, LeaseError> {
        events::attempt(resource);
        let attempt = Attempt::new(resource.clone(), ttl)?.above(floor);
        let mut unsettled = Unsettled { keeper: self, attempt: Some(&attempt) };
        let clock = self.backend.clock();
        let least = clock.now().saturating_add(self.backend.limits().call_timeout.saturating_mul(2));
        let (end, mut pause) = (end.max(least), Duration::from_millis(20));
        let mut doubt = None;
        loop {
            let answer = self.backend.acquire(&attempt).await;
            let error = match answer {
                Err(error) if doubt.is_some() || error.effect() == Effect::Unknown => error,
                settled => {
                    let done = matches!(settled, Ok(Acquisition::Acquired(_))) || !attempt.state().may_be_in_flight();
                    unsettled.attempt = unsettled.attempt.filter(|_| !done);
                    return settled;
                }
            };
            let (again, now) = (error.advice() == Advice::TryAgain, clock.now());
            // That this request had no effect says nothing about an earlier one.
            let unknown = if error.effect() == Effect::Unknown { error } else { doubt.take().unwrap_or(error) };
            if !again || now >= end {
                return Err(unknown);
            }
            doubt = Some(unknown);
            clock.sleep_until(now.saturating_add(pause).min(end)).await;
            pause = pause.saturating_mul(2).min(Duration::from_secs(1));
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
