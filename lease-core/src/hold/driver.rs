//! The task that renews: a queue of wake-ups, and the renewals that are under way.

use super::events;
use super::grant::{Grant, State};
use super::keeper::HoldOptions;
use super::loss::LossCause;
use crate::{Attempt, BootInstant, Effect, Lease, LeaseBackend, LeaseError, Operation, Renewal, SharedClock};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};

/// What the task is told.
#[derive(Debug)]
pub(super) enum Command {
    /// Keep this grant.
    Hold(Arc<Grant>, HoldOptions),
    /// Release the lease of a dropped guard.
    Release(Lease),
    /// Clean up after an attempt that nobody wants any more.
    Abandon(Attempt),
}

/// The answer to one renewal, with the task that it came from.
type Answer = Result<(Id, Result<Renewal, LeaseError>), JoinError>;

struct Driver {
    backend: Arc<dyn LeaseBackend>,
    clock: SharedClock,
    kept: HashMap<u64, Kept>,
    /// Wake-ups by time. One of an entry that is gone, or that has a newer one, is passed over.
    wakes: BinaryHeap<Reverse<(BootInstant, u64)>>,
    renewals: JoinSet<Result<Renewal, LeaseError>>,
    /// Which entry a renewal task belongs to.
    renewing: HashMap<Id, u64>,
    clean_ups: JoinSet<()>,
    last_id: u64,
}

struct Kept {
    grant: Arc<Grant>,
    options: HoldOptions,
    /// When the next renewal is due; `None` while one is under way.
    renew_at: Option<BootInstant>,
    wake_at: BootInstant,
}

/// Runs until all keepers and guards are gone and the last clean-up is done.
pub(super) async fn drive(backend: Arc<dyn LeaseBackend>, mut inbox: mpsc::UnboundedReceiver<Command>) {
    let clock = backend.clock();
    let mut driver = Driver {
        backend,
        clock: Arc::clone(&clock),
        kept: HashMap::new(),
        wakes: BinaryHeap::new(),
        renewals: JoinSet::new(),
        renewing: HashMap::new(),
        clean_ups: JoinSet::new(),
        last_id: 0,
    };
    loop {
        let next = driver.wakes.peek().map(|Reverse((at, _))| *at);
        tokio::select! {
            command = inbox.recv() => match command {
                Some(command) => driver.take(command),
                None => break,
            },
            () = sleep_until(&clock, next) => driver.wake(),
            Some(answer) = driver.renewals.join_next_with_id() => driver.answered(answer),
            Some(_) = driver.clean_ups.join_next() => {}
        }
    }
    while driver.clean_ups.join_next().await.is_some() {}
}

async fn sleep_until(clock: &SharedClock, at: Option<BootInstant>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Driver {
    fn take(&mut self, command: Command) {
        match command {
            Command::Hold(grant, options) => {
                self.last_id = self.last_id.saturating_add(1);
                let lease = grant.lease();
                let renew_at = Some(self.renewal_due(&lease));
                let kept = Kept { grant, options, renew_at, wake_at: BootInstant::ZERO };
                self.kept.insert(self.last_id, kept);
                self.schedule(self.last_id);
            }
            Command::Release(lease) => {
                let backend = Arc::clone(&self.backend);
                // Best effort, as `Drop` says: the TTL ends what this does not.
                self.clean_ups.spawn(async move { drop(backend.release(&lease).await) });
            }
            Command::Abandon(attempt) => {
                let backend = Arc::clone(&self.backend);
                self.clean_ups.spawn(async move { drop(backend.abandon(&attempt).await) });
            }
        }
    }

    /// A third of the TTL after the deadline was last set, a tenth of that earlier or later so that renewals spread.
    fn renewal_due(&self, lease: &Lease) -> BootInstant {
        let third = lease.granted_ttl().checked_div(3).unwrap_or_default();
        let spread = u32::from(self.last_id.to_le_bytes()[0].reverse_bits());
        let early = third.saturating_mul(spread).checked_div(2_560).unwrap_or_default();
        let left = lease.deadline().saturating_since(self.clock.now());
        let since_send = lease.granted_ttl().saturating_sub(left);
        self.clock.now().saturating_add(third.saturating_sub(early).saturating_sub(since_send))
    }

    /// Sets the next wake-up of an entry: the first of renewal, deadline and limits.
    fn schedule(&mut self, id: u64) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let limits = [
            kept.renew_at,
            Some(kept.grant.deadline()),
            kept.options.hold_limit.map(|limit| kept.grant.held_since.saturating_add(limit)),
            kept.options.progress_limit.map(|limit| kept.grant.progress().saturating_add(limit)),
        ];
        kept.wake_at = limits.into_iter().flatten().min().unwrap_or(BootInstant::ZERO);
        self.wakes.push(Reverse((kept.wake_at, id)));
    }

    fn wake(&mut self) {
        let now = self.clock.now();
        while let Some(Reverse((at, id))) = self.wakes.peek().copied() {
            if at > now {
                break;
            }
            self.wakes.pop();
            // Another wake-up of the same entry has taken the place of an old one.
            if self.kept.get(&id).is_some_and(|kept| kept.wake_at == at) {
                self.look_at(id, now);
            }
        }
    }

    fn look_at(&mut self, id: u64, now: BootInstant) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let past = |limit: Option<Duration>, since: BootInstant| {
            limit.is_some_and(|limit| now.saturating_since(since) >= limit)
        };
        if past(kept.options.hold_limit, kept.grant.held_since) {
            self.give_up(id, LossCause::HoldLimit, now);
        } else if past(kept.options.progress_limit, kept.grant.progress()) {
            self.give_up(id, LossCause::NoProgress, now);
        } else if kept.grant.touch().is_err() {
            self.kept.remove(&id);
        } else {
            if kept.renew_at.is_some_and(|at| now >= at) {
                kept.renew_at = None;
                self.renew(id);
            }
            self.schedule(id);
        }
    }

    /// Makes a grant lost by this process's own rule, and releases it, so that the next worker need not wait for the TTL.
    fn give_up(&mut self, id: u64, cause: LossCause, now: BootInstant) {
        if let Some(kept) = self.kept.remove(&id) {
            let was_live = kept.grant.is_live();
            kept.grant.lose(cause, now);
            if was_live {
                self.take(Command::Release(kept.grant.lease()));
            }
        }
    }

    fn renew(&mut self, id: u64) {
        let Some(kept) = self.kept.get(&id) else { return };
        let (grant, backend) = (Arc::clone(&kept.grant), Arc::clone(&self.backend));
        let lease = grant.lease();
        let (clock, limit) = (Arc::clone(&self.clock), attempt_limit(lease.remaining()));
        let renewal = self.renewals.spawn(async move {
            let end = clock.now().saturating_add(limit);
            tokio::select! {
                answer = backend.renew(&lease) => answer,
                () = clock.sleep_until(end) => {
                    Err(LeaseError::Timeout { operation: Operation::Renew, limit, effect: Effect::Unknown })
                }
            }
        });
        self.renewing.insert(renewal.id(), id);
        grant.renewal_begins(renewal);
    }

    fn answered(&mut self, answer: Answer) {
        let (task, result) = match answer {
            Ok((task, result)) => (task, result),
            // Stopped because its grant ended; or it panicked, which is one more failed try.
            Err(error) => (error.id(), Err(panicked())),
        };
        let Some(id) = self.renewing.remove(&task) else { return };
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let now = self.clock.now();
        let lease = kept.grant.lease();
        let slack = kept.grant.deadline().saturating_since(now);
        match result {
            Ok(Renewal::Renewed(lease)) => {
                kept.grant.renewed(lease.clone());
                events::renewed(&lease, slack);
                let due = self.renewal_due(&lease);
                if let Some(kept) = self.kept.get_mut(&id) {
                    kept.renew_at = Some(due);
                }
            }
            Ok(Renewal::Lost(reason)) => kept.grant.lose(reason.into(), now),
            Err(error) => {
                events::renewal_failed(&lease, &error, slack);
                kept.grant.renewal_failed(error.effect() == Effect::Unknown);
                kept.renew_at = Some(now.saturating_add(retry_pause(slack)));
            }
        }
        if self.kept.get(&id).is_some_and(|kept| kept.grant.state() == State::Live) {
            self.schedule(id);
        } else {
            self.kept.remove(&id);
        }
    }
}

fn panicked() -> LeaseError {
    LeaseError::Connection {
        operation: Operation::Renew,
        reason: "the backend panicked".into(),
        effect: Effect::Unknown,
        source: None,
    }
}

/// How long one try may take: a third of what is left, so that a stalled one leaves time for others.
fn attempt_limit(left: Duration) -> Duration {
    left.checked_div(3).unwrap_or_default().max(Duration::from_millis(1))
}

/// How long to wait after a failed try: a tenth of what is left, within bounds.
fn retry_pause(left: Duration) -> Duration {
    left.checked_div(10).unwrap_or_default().clamp(Duration::from_millis(5), Duration::from_secs(1))
}
