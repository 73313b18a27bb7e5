//! What a guard and the renewal task know together of one grant.

use super::events;
use super::loss::{Loss, LossCause};
use crate::{BootInstant, Lease, SharedClock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// One held grant.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) clock: SharedClock,
    /// The deadline in boot nanoseconds, apart from the rest so that a permit costs no lock.
    deadline: AtomicU64,
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
    /// When the work last reported progress, in boot nanoseconds.
    progress: AtomicU64,
    pub(super) held_since: BootInstant,
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
    pub(super) fn new(lease: Lease, clock: SharedClock) -> Self {
        let now = clock.now();
        Self {
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

    pub(super) fn progress(&self) -> BootInstant {
        BootInstant::from_nanos(self.progress.load(Ordering::Acquire))
    }

    pub(super) fn report_progress(&self) {
        self.progress.store(self.clock.now().as_nanos(), Ordering::Release);
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn is_live(&self) -> bool {
        *self.state.borrow() == State::Live
    }

    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Looks at the clock, and makes the grant lost if its deadline has passed: what every touch does first.
    ///
    /// # Errors
    /// The loss; also for a grant that was given up.
    pub(super) fn touch(&self) -> Result<BootInstant, Loss> {
        let now = self.clock.now();
        if now >= self.deadline() {
            self.lose_by_deadline(now);
        }
        match &*self.state.borrow() {
            State::Live => Ok(now),
            State::Lost(loss) => Err(loss.clone()),
            State::Ended => Err(self.loss(LossCause::ReleasedElsewhere, now)),
        }
    }

    pub(super) fn lose_by_deadline(&self, now: BootInstant) {
        let cause = if self.inner().unresolved { LossCause::Unresolved } else { LossCause::Expired };
        self.lose(cause, now);
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
        if let Some(renewal) = self.inner().renewal.take() {
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

    /// Takes a good answer in, unless the grant ended meanwhile: a late one never revives it.
    pub(super) fn renewed(&self, lease: Lease) {
        if self.touch().is_err() {
            return;
        }
        let mut inner = self.inner();
        inner.renewal = None;
        inner.unresolved = false;
        self.deadline.fetch_max(lease.deadline().as_nanos(), Ordering::AcqRel);
        inner.lease = lease;
    }

    pub(super) fn renewal_failed(&self, unresolved: bool) {
        let mut inner = self.inner();
        inner.renewal = None;
        inner.unresolved |= unresolved;
    }

    pub(super) fn held_for(&self) -> std::time::Duration {
        self.clock.now().saturating_since(self.held_since)
    }
}
