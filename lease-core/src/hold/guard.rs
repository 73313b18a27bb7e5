//! One held lease.

use super::driver::Command;
use super::grant::Grant;
use super::held::HeldLease;
use super::keeper::Keeper;
use super::loss::{EnsureError, Loss};
use super::permit::{Permit, StaleBehaviour};
use super::{events, spans};
use crate::{FencingToken, HandOver, LeaseError, Release, ResourceName};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A held lease that is renewed in the background until it is released, dropped or lost.
///
/// # Drop
/// Dropping it stops renewal at once and asks the keeper's task to release the lease, once: best effort. When that fails, or no runtime is
/// left to do it, the TTL ends the grant. Use [`release`](Self::release) to know. Either one says that the work has stopped, so keep
/// the guard as long as anything of it runs, also when it is lost: a lost one is released too, unless the store itself has said that the
/// grant is over.
///
/// Leaking it (`std::mem::forget`) keeps it renewed as long as the process lives; set a hold limit where that could happen.
#[derive(Debug)]
pub struct LeaseGuard {
    keeper: Keeper,
    grant: Arc<Grant>,
    resource: ResourceName,
    token: Option<FencingToken>,
    /// Whether the grant has still to be released.
    armed: bool,
}

impl LeaseGuard {
    pub(super) fn new(keeper: Keeper, grant: Arc<Grant>) -> Self {
        let lease = grant.lease();
        Self { keeper, resource: lease.resource().clone(), token: lease.token().cloned(), grant, armed: true }
    }

    /// The resource.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    /// The fencing token, the same for the whole grant; `None` on a backend that mints none.
    #[must_use]
    pub fn token(&self) -> Option<&FencingToken> {
        self.token.as_ref()
    }

    /// The data of the grant as of its latest renewal, for the fence of the lease's own store ([`StaleBehaviour::Transactional`]).
    ///
    /// Renewing and releasing are the guard's business: whoever releases these data makes the guard lost. They can be looked at only; to give
    /// the grant to another process there is [`into_hand_over`](Self::into_hand_over).
    #[must_use]
    pub fn lease(&self) -> HeldLease {
        HeldLease::new(self.grant.lease())
    }

    /// Gives permission to begin protected work, whose behaviour in a stale worker is declared: [`StaleBehaviour`] shows with each
    /// declaration what it asks of the code that follows. Ask for one before each new piece of work; it says "may begin", not "is exclusive".
    ///
    /// ```
    /// use lease_core::hold::{HoldOptions, Keeper, LossCause, StaleBehaviour};
    /// use lease_core::{ManualClock, memory::{MemoryBackend, MemoryStore}};
    /// use std::{sync::Arc, time::Duration};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = ManualClock::new();
    /// let keeper = Keeper::start(Arc::new(MemoryBackend::on(MemoryStore::on_clock(clock.shared())?)))?;
    /// let guard = keeper.acquire("accounts/42", Duration::from_secs(10), HoldOptions::default()).await?.ok_or("held")?;
    /// let permit = guard.permit(StaleBehaviour::Fenced)?;
    /// assert!(permit.token().is_some());
    ///
    /// clock.advance(Duration::from_secs(60)); // the machine sleeps
    /// assert!(permit.remaining().is_zero(), "a permit that was given before takes nothing back: the destination has to refuse");
    /// let loss = guard.permit(StaleBehaviour::Fenced).unwrap_err();
    /// assert_eq!(loss.cause(), LossCause::Expired);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The loss, once the guard is lost; a process that slept past the deadline learns it here.
    pub fn permit(&self, behaviour: StaleBehaviour) -> Result<Permit, Loss> {
        let given_at = self.grant.touch()?;
        let permit = Permit {
            resource: self.resource.clone(),
            token: self.token.clone(),
            behaviour,
            given_at,
            deadline: self.grant.ends_at(),
            clock: self.grant.clock.clone(),
        };
        events::permit(&permit);
        Ok(permit)
    }

    /// Checks that at least `at_least` is left before a critical step.
    ///
    /// # Errors
    /// [`EnsureError::TooLittle`] when less is left; [`EnsureError::Lost`] once the guard is lost.
    pub fn ensure(&self, at_least: Duration) -> Result<(), EnsureError> {
        let now = self.grant.touch()?;
        let remaining = self.grant.ends_at().saturating_since(now);
        if remaining >= at_least {
            Ok(())
        } else {
            Err(EnsureError::TooLittle { resource: self.resource.clone(), remaining, needed: at_least })
        }
    }

    /// Time left until the deadline, or until a limit of the [`HoldOptions`](super::HoldOptions) that comes first; zero once the
    /// guard is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.grant.touch().map_or(Duration::ZERO, |now| self.grant.ends_at().saturating_since(now))
    }

    /// The loss, if the guard is lost by now. Looks at the clock, not at the network.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.grant.touch().err()
    }

    /// Completes when the guard is lost, at the deadline at the latest.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn lost(&self) -> Loss {
        let mut state = self.grant.watch();
        loop {
            if let Some(loss) = self.loss() {
                return loss;
            }
            // Also by itself, so that a stuck renewal task cannot hide the loss.
            tokio::select! {
                // The sender lives in the grant that this guard holds.
                _ = state.changed() => {}
                () = self.grant.clock.sleep_until(self.grant.ends_at()) => {}
            }
        }
    }

    /// Reports progress, for guards with a progress limit.
    pub fn progress(&self) {
        self.grant.report_progress();
    }

    /// Runs `work` and stops polling it when the lease is lost. The guard is lent to the work, for permits; release it afterwards.
    ///
    /// The work ends at its next `await`: what has no `await` is not stopped, and what it spawned or sent before goes on. So it asks for a
    /// permit before each effect.
    ///
    /// ```
    /// use lease_core::hold::{HoldOptions, Keeper, RunError, StaleBehaviour};
    /// use lease_core::memory::MemoryBackend;
    /// use std::{sync::Arc, time::Duration};
    ///
    /// # async fn write(_page: u32, permit: lease_core::hold::Permit) -> Result<(), std::io::Error> { permit.committed(); Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let keeper = Keeper::start(Arc::new(MemoryBackend::new()?))?;
    /// let guard = keeper.acquire("nightly-report", Duration::from_secs(10), HoldOptions::default()).await?.ok_or("held")?;
    /// let report = guard.run(async |guard| {
    ///     for page in 1..=3 {
    ///         let permit = guard.permit(StaleBehaviour::Fenced).map_err(std::io::Error::other)?;
    ///         write(page, permit).await?;
    ///     }
    ///     Ok::<_, std::io::Error>(3)
    /// });
    /// match report.await {
    ///     Ok(pages) => assert_eq!(pages, 3),
    ///     // Another worker may have begun. Nothing more is written here; what was written is as good as its declaration.
    ///     Err(RunError::Lost(loss)) => return Err(loss.into()),
    ///     // The lease was held all the time, so this is the work's own failure. Release and report it.
    ///     Err(RunError::Work(error)) => return Err(error.into()),
    /// }
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`RunError::Lost`] when the lease was lost before the work's result was there, [`RunError::Work`] when the work itself failed.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work. The guard stays held.
    pub async fn run<'a, T, E, F>(&'a self, work: impl FnOnce(&'a Self) -> F) -> Result<T, RunError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        if let Some(loss) = self.loss() {
            return Err(RunError::Lost(loss));
        }
        let span = spans::work(&self.resource, self.token.as_ref());
        spans::within(span, spans::worked, self.run_live(work)).await
    }

    async fn run_live<'a, T, E, F>(&'a self, work: impl FnOnce(&'a Self) -> F) -> Result<T, RunError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        events::work_started(&self.resource, self.token.as_ref());
        let work = work(self);
        let result = tokio::select! {
            // The loss first: when both are ready, nobody may take the result for a good one.
            biased;
            loss = self.lost() => return Err(RunError::Lost(loss)),
            result = work => result,
        };
        // Again: the process may have been paused in the middle of the work's last step.
        if let Some(loss) = self.loss() {
            return Err(RunError::Lost(loss));
        }
        result.map_err(|error| {
            events::work_failed(&self.resource);
            RunError::Work(error)
        })
    }

    /// Releases the lease. Nothing is renewed any more from the moment of the call, and no loss is signalled.
    ///
    /// # Errors
    /// When the store fails; an unknown outcome is bounded by the TTL.
    ///
    /// # Cancel safety
    /// Nothing renews the grant any more. The release is in doubt, and sent once more in the background, as by dropping the guard.
    pub async fn release(mut self) -> Result<Release, LeaseError> {
        let was_live = self.grant.end();
        let lease = self.grant.lease();
        let release = async {
            let answer = self.keeper.backend().release(&lease).await;
            self.armed = false;
            let answer = answer?;
            if was_live {
                events::released(&lease, answer, self.grant.held_for());
            }
            Ok(answer)
        };
        spans::within(spans::release(&lease), spans::released, release).await
    }

    /// Stops renewing and gives the grant's data away, for another process to go on with.
    ///
    /// # Errors
    /// The loss, once the guard is lost.
    pub fn into_hand_over(mut self) -> Result<HandOver, Loss> {
        self.grant.touch()?;
        if !self.grant.end() {
            // Lost between the two.
            self.grant.touch()?;
        }
        self.armed = false;
        Ok(self.grant.lease().into_hand_over())
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.grant.end();
        // Only the store's own word says that the grant has ended there: a renewal whose reply was lost may have prolonged it. The
        // release compares the owner, so it harms nobody who came later.
        let release = self.armed && !self.grant.is_over_at_store();
        let grant = Arc::clone(&self.grant);
        self.keeper.send(if release { Command::Release(grant) } else { Command::Forget(grant) });
        debug_assert!(!self.grant.is_live(), "nothing renews after the guard");
    }
}

/// Why [`LeaseGuard::run`] has no result.
///
/// Exhaustive on purpose: a loss and a failure call for different answers, and a `_` arm would take one for the other.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E> {
    /// The lease was lost; the work was dropped. What it has begun elsewhere may go on, and the next worker may have begun.
    #[error(transparent)]
    Lost(Loss),
    /// The work failed by itself, while the lease was held. Its error is the source; the text here does not repeat it.
    #[error("the work failed")]
    Work(#[source] E),
}

impl<E> RunError<E> {
    /// The loss, or the work's own error, as one boxed error that keeps its sources. For `?` where the work's error is a box already, or of
    /// another kind that is not itself a [`std::error::Error`]: `guard.run(work).await.map_err(RunError::into_boxed)?`.
    #[must_use]
    pub fn into_boxed(self) -> Box<dyn std::error::Error + Send + Sync>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self {
            Self::Lost(loss) => loss.into(),
            Self::Work(error) => error.into(),
        }
    }
}
