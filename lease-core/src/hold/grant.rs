//! What a guard and the renewal task know together of one grant.

use super::events;
use super::keeper::HoldOptions;
use super::loss::{Loss, LossCause};
use crate::{BootInstant, Lease, SharedClock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// One held grant.
#[derive(Debug)]
pub(super) struct Grant {
    /// Its number in the keeper.
    pub(super) id: u64,
    pub(super) clock: SharedClock,
    /// The deadline in boot nanoseconds, apart from the rest so that a touch does not wait for the lease's lock.
    deadline: AtomicU64,
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
    /// When the work last reported progress, in boot nanoseconds.
    progress: AtomicU64,
    held_since: BootInstant,
    options: HoldOptions,
}

/// Live, or ended in one of two ways; never back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Live,
    /// Given up by its holder: nothing is signalled as lost any more.
    Ended,
    Lost(Loss),
}

#[derive(Debug)]
struct Inner {
    lease: Lease,
    renewal: Option<AbortHandle>,
    unresolved: bool,
}

impl Grant {
    pub(super) fn new(id: u64, lease: Lease, options: HoldOptions, clock: SharedClock) -> Self {
        let now = clock.now();
        Self {
            id,
            options,
            deadline: AtomicU64::new(lease.deadline().as_nanos()),
            state: watch::Sender::new(State::Live),
            progress: AtomicU64::new(now.as_nanos()),
            inner: Mutex::new(Inner { lease, renewal: None, unresolved: false }),
            held_since: now,
            clock,
        }
    }

    /// No step under the lock can panic half-way, so a poisoned lock still guards a whole state.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lease(&self) -> Lease {
        self.inner().lease.clone()
    }

    pub(super) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// When the guard is lost, if nothing is renewed and no progress reported until then, and by which limit of its own, if it is one.
    fn end_by(&self) -> (BootInstant, Option<LossCause>) {
        let progress = BootInstant::from_nanos(self.progress.load(Ordering::Acquire));
        let by = |since: BootInstant, limit: Option<Duration>, cause| Some((since.saturating_add(limit?), Some(cause)));
        let limits = [
            by(self.held_since, self.options.hold_limit, LossCause::HoldLimit),
            by(progress, self.options.progress_limit, LossCause::NoProgress),
        ];
        // Of two at the same instant the deadline counts: there the store may have made another grant.
        limits.into_iter().flatten().fold((self.deadline(), None), |a, b| if b.0 < a.0 { b } else { a })
    }

    /// When the guard is lost, if nothing is renewed and no progress reported until then.
    pub(super) fn ends_at(&self) -> BootInstant {
        self.end_by().0
    }

    pub(super) fn report_progress(&self) {
        // A report that comes too late revives nothing.
        if let Ok(now) = self.touch() {
            self.progress.store(now.as_nanos(), Ordering::Release);
        }
    }

    pub(super) fn is_live(&self) -> bool {
        *self.state.borrow() == State::Live
    }

    /// Whether its holder has given it up before it was lost.
    pub(super) fn is_ended(&self) -> bool {
        *self.state.borrow() == State::Ended
    }

    /// Whether it was lost because the store said that it has ended there. Otherwise the store may still have it.
    pub(super) fn is_over_at_store(&self) -> bool {
        matches!(&*self.state.borrow(), State::Lost(loss) if loss.cause().is_told_by_store())
    }

    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Looks at the clock, and makes the grant lost if its deadline or a limit has passed: what every touch does first.
    ///
    /// # Errors
    /// The loss; also for a grant that was given up.
    pub(super) fn touch(&self) -> Result<BootInstant, Loss> {
        let now = self.clock.now();
        let (end, limit) = self.end_by();
        if now >= end {
            self.lose(limit.unwrap_or_else(|| self.deadline_cause()), now);
        }
        match &*self.state.borrow() {
            State::Live => Ok(now),
            State::Lost(loss) => Err(loss.clone()),
            State::Ended => Err(self.loss(LossCause::ReleasedElsewhere, now)),
        }
    }

    fn deadline_cause(&self) -> LossCause {
        let inner = self.inner();
        if inner.unresolved || inner.renewal.is_some() { LossCause::Unresolved } else { LossCause::Expired }
    }

    /// Makes a live grant lost. Only the first cause counts.
    pub(super) fn lose(&self, cause: LossCause, now: BootInstant) {
        let loss = self.loss(cause, now);
        let is_first = self.state.send_if_modified(|state| {
            let live = *state == State::Live;
            if live {
                *state = State::Lost(loss.clone());
            }
            live
        });
        if is_first {
            events::lost(&loss, &self.lease(), self.held_for());
            self.stop_renewing();
        }
    }

    fn loss(&self, cause: LossCause, at: BootInstant) -> Loss {
        Loss { resource: self.inner().lease.resource().clone(), cause, at }
    }

    /// Gives a live grant up by its holder's will; false when it was lost or given up before.
    pub(super) fn end(&self) -> bool {
        let ended = self.state.send_if_modified(|state| {
            let live = *state == State::Live;
            if live {
                *state = State::Ended;
            }
            live
        });
        self.stop_renewing();
        ended
    }

    fn stop_renewing(&self) {
        let renewal = self.inner().renewal.take();
        if let Some(renewal) = renewal {
            renewal.abort();
        }
    }

    pub(super) fn renewal_begins(&self, renewal: AbortHandle) {
        self.inner().renewal = Some(renewal);
        // Ended between the decision to renew and here: then nobody else will stop it.
        if !self.is_live() {
            self.stop_renewing();
        }
    }

    /// Takes a good answer in, unless the grant ended meanwhile: a late one never revives it, and then this is false.
    pub(super) fn renewed(&self, lease: Lease) -> bool {
        if self.touch().is_err() {
            return false;
        }
        let mut inner = self.inner();
        inner.renewal = None;
        inner.unresolved = false;
        self.deadline.fetch_max(lease.deadline().as_nanos(), Ordering::AcqRel);
        inner.lease = lease;
        true
    }

    pub(super) fn renewal_failed(&self, unresolved: bool) {
        let mut inner = self.inner();
        inner.renewal = None;
        inner.unresolved |= unresolved;
    }

    pub(super) fn held_for(&self) -> Duration {
        self.clock.now().saturating_since(self.held_since)
    }
}
