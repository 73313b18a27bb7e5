//! Sugar over the core trait.

use crate::{
    Acquisition, Advice, Attempt, Authority, GuardError, GuardedDestination, Held, Lease, LeaseBackend, LeaseError,
    ResourceName, Ttl,
};
use std::time::Duration;

/// Shorter forms of the core operations, for every backend.
#[async_trait::async_trait]
pub trait LeaseExt: LeaseBackend {
    /// Tries once: the lease, or `None` when it is held by another.
    ///
    /// # Errors
    /// As [`LeaseBackend::acquire`]. After an error whose effect is unknown the attempt is abandoned here, since nobody else
    /// knows it; if that fails too, twice, its TTL ends whatever it made.
    ///
    /// # Cancel safety
    /// A grant that was under way ends with its TTL.
    async fn try_acquire(&self, resource: &str, ttl: Duration) -> Result<Option<Lease>, LeaseError> {
        let attempt = Attempt::new(ResourceName::parse(resource)?, Ttl::parse(ttl)?)?;
        match acquire_or_abandon(self, &attempt).await? {
            Acquisition::Acquired(lease) => Ok(Some(lease)),
            Acquisition::Held(_) => Ok(None),
        }
    }

    /// Tries until it gets the lease or `wait` has passed: then `None`. Tries at least once, and a grant that the store made is always
    /// returned, also at the very end of the wait.
    ///
    /// It polls: when the present grant ends, and before that after 10 ms, 20 ms and so on, at least every 500 ms, with jitter.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), at the first error.
    ///
    /// # Cancel safety
    /// A grant that was under way ends with its TTL.
    async fn acquire_within(&self, resource: &str, ttl: Duration, wait: Duration) -> Result<Option<Lease>, LeaseError> {
        let (resource, ttl) = (ResourceName::parse(resource)?, Ttl::parse(ttl)?);
        let clock = self.clock();
        let (end, mut pause) = (clock.now().saturating_add(wait), Pause::default());
        loop {
            let attempt = Attempt::new(resource.clone(), ttl)?;
            let held = match acquire_or_abandon(self, &attempt).await? {
                Acquisition::Acquired(lease) => return Ok(Some(lease)),
                Acquisition::Held(held) => held,
            };
            let now = clock.now();
            if now >= end {
                return Ok(None);
            }
            clock.sleep_until(now.saturating_add(pause.after(&held)?).min(end)).await;
        }
    }
}

impl<B: LeaseBackend + ?Sized> LeaseExt for B {}

/// Shorter forms of the destination's operations, for every guarded destination.
#[async_trait::async_trait]
pub trait DestinationExt: GuardedDestination {
    /// Makes sure that `authority` is the trusted one: adopts it where none is trusted yet, and does nothing where it is trusted already.
    /// Each program that writes may call it at its start, and again after a lost answer. It never replaces another authority: that is a
    /// decision, for which there is [`adopt`](GuardedDestination::adopt).
    ///
    /// # Errors
    /// [`GuardError::AdoptConflict`] when another authority is trusted. Otherwise as [`adopt`](GuardedDestination::adopt), the account's
    /// right to adopt included.
    ///
    /// # Cancel safety
    /// The authority may be adopted. Call it again.
    async fn trust(&self, authority: &Authority) -> Result<(), GuardError> {
        match self.adopt(None, authority).await {
            Err(GuardError::AdoptConflict { found: Some(found) }) if found == *authority => Ok(()),
            answer => answer,
        }
    }
}

impl<D: GuardedDestination + ?Sized> DestinationExt for D {}

/// How long a waiter pauses between two polls: until the present grant ends, but no longer than a limit that grows
/// while it waits, with up to an eighth more so that waiters spread.
#[derive(Debug)]
pub(crate) struct Pause {
    most: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { most: POLL_LEAST }
    }
}

const POLL_LEAST: Duration = Duration::from_millis(10);
const POLL_MOST: Duration = Duration::from_millis(500);

impl Pause {
    pub(crate) fn after(&mut self, held: &Held) -> Result<Duration, LeaseError> {
        let mut byte = [0];
        crate::owner::fill(&mut byte)?;
        let [byte] = byte;
        let pause = held.remaining.unwrap_or(POLL_MOST).clamp(Duration::from_millis(1), self.most);
        self.most = self.most.saturating_mul(2).min(POLL_MOST);
        Ok(pause.saturating_add(pause.saturating_mul(u32::from(byte)).checked_div(2_048).unwrap_or_default()))
    }
}

async fn acquire_or_abandon<B: LeaseBackend + ?Sized>(
    backend: &B,
    attempt: &Attempt,
) -> Result<Acquisition, LeaseError> {
    let answer = backend.acquire(attempt).await;
    if let Err(error) = &answer
        && error.effect() == crate::Effect::Unknown
    {
        // The first error is the one to report; the TTL bounds what a failed clean-up leaves.
        if backend.abandon(attempt).await.is_err_and(|error| error.advice() == Advice::TryAgain) {
            // It may have found out only that the connection is broken.
            drop(backend.abandon(attempt).await);
        }
    }
    answer
}
