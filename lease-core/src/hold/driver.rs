//! The task that renews: a queue of wake-ups, a queue of renewals that are due, and those that are under way.

use super::clean_up::{CleanUp, CleanUps};
use super::grant::Grant;
use super::keeper::KeeperOptions;
use super::{events, spans};
use crate::{Attempt, BootInstant, Effect, Lease, LeaseBackend, LeaseError, Operation, Renewal, SharedClock};
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};

/// What the task is told.
#[derive(Debug)]
pub(super) enum Command {
    /// Keep this grant.
    Hold(Arc<Grant>),
    /// The guard is gone, and there is nothing to release.
    Forget(Arc<Grant>),
    /// The guard was dropped, and the store may still have the grant: release it.
    Release(Arc<Grant>),
    /// Clean up after an attempt that nobody wants any more.
    Abandon(Attempt),
}

/// The answer to one renewal, with the task that it came from.
type Answer = Result<(Id, Result<Renewal, LeaseError>), JoinError>;

struct Driver {
    backend: Arc<dyn LeaseBackend>,
    clock: SharedClock,
    kept: HashMap<u64, Kept>,
    /// The next wake-up of each entry.
    wakes: BTreeSet<(BootInstant, u64)>,
    /// Due, and waiting until fewer than `at_once` are under way: by deadline, so that the most urgent is first.
    due: BTreeSet<(BootInstant, u64)>,
    /// Those that have waited until their last call, and may be sent over `at_once`, up to `pressing_at_once`: by deadline, too.
    pressing: BTreeSet<(BootInstant, u64)>,
    at_once: usize,
    pressing_at_once: usize,
    renewals: JoinSet<Result<Renewal, LeaseError>>,
    /// Which entry a renewal task belongs to.
    renewing: HashMap<Id, u64>,
    clean_ups: CleanUps,
    /// Random keys: processes that start together do not renew together.
    jitter: RandomState,
}

struct Kept {
    grant: Arc<Grant>,
    phase: Phase,
    wake_at: BootInstant,
}

/// Where an entry is between two renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next renewal is due at this instant.
    Resting(BootInstant),
    /// It is due, and waits in the queue.
    Due,
    /// It has waited so long that it may be sent over the limit, and waits in the other queue.
    Pressing,
    /// It is under way.
    UnderWay,
}

/// Runs until all keepers and guards are gone and the last clean-up is done.
pub(super) async fn drive(
    backend: Arc<dyn LeaseBackend>,
    options: KeeperOptions,
    mut inbox: mpsc::UnboundedReceiver<Command>,
) {
    let clock = backend.clock();
    let at_once = usize::try_from(options.renewals_at_once).unwrap_or(usize::MAX);
    let mut driver = Driver {
        clean_ups: CleanUps::new(Arc::clone(&backend)),
        backend,
        clock: Arc::clone(&clock),
        kept: HashMap::new(),
        wakes: BTreeSet::new(),
        due: BTreeSet::new(),
        pressing: BTreeSet::new(),
        at_once,
        pressing_at_once: at_once.saturating_mul(PRESSING_FACTOR),
        renewals: JoinSet::new(),
        renewing: HashMap::new(),
        jitter: RandomState::new(),
    };
    loop {
        let next = driver.wakes.first().map(|(at, _)| *at);
        tokio::select! {
            command = inbox.recv() => match command {
                Some(command) => driver.take(command),
                None => break,
            },
            () = sleep_until(&clock, next) => driver.wake(),
            Some(answer) = driver.renewals.join_next_with_id() => driver.answered(answer),
            Some(()) = driver.clean_ups.next() => {}
        }
        driver.renew_most_urgent();
    }
    while driver.clean_ups.next().await.is_some() {}
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
            Command::Hold(grant) => {
                let (id, phase) = (grant.id, Phase::Resting(self.renewal_due(grant.id, &grant.lease())));
                self.kept.insert(id, Kept { grant, phase, wake_at: BootInstant::ZERO });
                self.schedule(id);
            }
            Command::Forget(grant) => self.let_go(grant.id),
            Command::Release(grant) => {
                self.let_go(grant.id);
                self.clean_ups.add(CleanUp::Release(grant));
            }
            Command::Abandon(attempt) => self.clean_ups.add(CleanUp::Abandon(attempt)),
        }
    }

    /// A third of the TTL after the deadline was last set, up to a tenth of that earlier.
    fn renewal_due(&self, id: u64, lease: &Lease) -> BootInstant {
        let now = self.clock.now();
        let since_send = lease.granted_ttl().saturating_sub(lease.deadline().saturating_since(now));
        now.saturating_add(self.earlier(id, third(lease)).saturating_sub(since_send))
    }

    /// `time`, or up to a tenth less, so that what came together parts again.
    fn earlier(&self, id: u64, time: Duration) -> Duration {
        let [spread, ..] = self.jitter.hash_one((id, self.clock.now())).to_le_bytes();
        time.saturating_sub(time.saturating_mul(u32::from(spread)).checked_div(2_560).unwrap_or_default())
    }

    /// Sets the next wake-up of an entry: the first of renewal, deadline and limits.
    fn schedule(&mut self, id: u64) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        self.wakes.remove(&(kept.wake_at, id));
        let end = kept.grant.ends_at();
        kept.wake_at = match kept.phase {
            Phase::Resting(until) => until.min(end),
            Phase::Due => last_call(&kept.grant.lease()).min(end),
            Phase::Pressing | Phase::UnderWay => end,
        };
        self.wakes.insert((kept.wake_at, id));
    }

    /// Takes an entry out. One that ended by a limit of its own is not released: its work may be running still, and the guard is there to
    /// say when it has stopped.
    fn let_go(&mut self, id: u64) {
        let Some(kept) = self.kept.remove(&id) else { return };
        self.wakes.remove(&(kept.wake_at, id));
        let queued = (kept.grant.deadline(), id);
        self.due.remove(&queued);
        self.pressing.remove(&queued);
    }

    fn wake(&mut self) {
        let now = self.clock.now();
        while let Some((at, id)) = self.wakes.first().copied()
            && at <= now
        {
            self.wakes.pop_first();
            self.look_at(id, now);
        }
    }

    fn look_at(&mut self, id: u64, now: BootInstant) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        if kept.grant.touch().is_err() {
            return self.let_go(id);
        }
        let queued = (kept.grant.deadline(), id);
        if matches!(kept.phase, Phase::Resting(until) if now >= until) {
            kept.phase = Phase::Due;
            self.due.insert(queued);
        }
        // It has waited long enough for places of the first kind.
        if kept.phase == Phase::Due && now >= last_call(&kept.grant.lease()) {
            kept.phase = Phase::Pressing;
            self.due.remove(&queued);
            self.pressing.insert(queued);
        }
        self.schedule(id);
    }

    /// Sends renewals that are due, as far as the limits let them.
    fn renew_most_urgent(&mut self) {
        while let Some(id) = self.next_to_renew() {
            self.renew(id);
            self.schedule(id);
        }
    }

    /// Takes the most urgent one out of its queue. Under the limit that is the first of both queues; over it only pressing ones have a place,
    /// and not without end: a process that slept has all of its leases here at once, each with a short time-out, and all sent together would
    /// keep each other from being answered in time.
    fn next_to_renew(&mut self) -> Option<u64> {
        let under_way = self.renewals.len();
        let next = match (self.due.first(), self.pressing.first()) {
            (Some(due), pressing) if under_way < self.at_once && pressing.is_none_or(|pressing| due < pressing) => {
                self.due.pop_first()
            }
            (_, Some(_)) if under_way < self.pressing_at_once => self.pressing.pop_first(),
            _ => None,
        };
        next.map(|(_, id)| id)
    }

    /// Sends a renewal. Its time-out begins here, however long it has waited in the queue.
    fn renew(&mut self, id: u64) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        // Lost while it waited.
        if kept.grant.touch().is_err() {
            return self.let_go(id);
        }
        kept.phase = Phase::UnderWay;
        let (grant, backend) = (Arc::clone(&kept.grant), Arc::clone(&self.backend));
        let lease = grant.lease();
        let (clock, limit) = (Arc::clone(&self.clock), attempt_limit(&lease));
        let renewal = self.renewals.spawn(spans::within(spans::renewal(&lease), spans::renewed, async move {
            let end = clock.now().saturating_add(limit);
            tokio::select! {
                answer = backend.renew(&lease) => answer,
                () = clock.sleep_until(end) => {
                    Err(LeaseError::Timeout { operation: Operation::Renew, limit, effect: Effect::Unknown })
                }
            }
        }));
        self.renewing.insert(renewal.id(), id);
        grant.renewal_begins(renewal);
    }

    fn answered(&mut self, answer: Answer) {
        let (task, result) = match answer {
            Ok((task, result)) => (task, Some(result)),
            // Stopped, because its grant has ended: no failure.
            Err(error) if error.is_cancelled() => (error.id(), None),
            // One more failed try.
            Err(error) => (error.id(), Some(Err(panicked()))),
        };
        let Some(id) = self.renewing.remove(&task) else { return };
        let Some(Kept { grant, .. }) = self.kept.get(&id) else { return };
        let (grant, now) = (Arc::clone(grant), self.clock.now());
        let slack = grant.deadline().saturating_since(now);
        let mut phase = Phase::UnderWay;
        match result {
            Some(Ok(Renewal::Renewed(lease))) => {
                if grant.renewed(lease.clone()) {
                    events::renewed(&lease, slack);
                    phase = Phase::Resting(self.renewal_due(id, &lease));
                }
            }
            Some(Ok(Renewal::Lost(reason))) => grant.lose(reason.into(), now),
            Some(Err(error)) if grant.is_live() => {
                events::renewal_failed(&grant.lease(), &error, slack);
                grant.renewal_failed(error.effect() == Effect::Unknown);
                phase = Phase::Resting(now.saturating_add(self.earlier(id, retry_pause(slack))));
            }
            Some(Err(_)) | None => {}
        }
        if !grant.is_live() {
            return self.let_go(id);
        }
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.phase = phase;
        }
        self.schedule(id);
    }
}

/// How many times `renewals_at_once` may be under way when leases are pressing. So many more that stalled requests, which keep their places
/// until their time-out, do not hold up those that could be answered; so few that a store with a small pool of connections gets through them
/// within a try's time-out.
const PRESSING_FACTOR: usize = 4;

fn panicked() -> LeaseError {
    LeaseError::Connection {
        operation: Operation::Renew,
        reason: "the backend panicked".into(),
        effect: Effect::Unknown,
        source: None,
    }
}

/// Until when a renewal that is due may wait for others before it presses: until a third of the TTL is left. Each lease is renewed once in a
/// third of the TTL, so a store that can carry the leases at all has by then answered all those that were due together.
fn last_call(lease: &Lease) -> BootInstant {
    lease.deadline().saturating_sub(third(lease))
}

fn third(lease: &Lease) -> Duration {
    lease.granted_ttl().checked_div(3).unwrap_or_default()
}

/// How long one try may take: a third of what is left, so that a stalled one leaves time for others. One that had to wait for its turn gets
/// as long as one that is sent when it is due, two ninths of the TTL, if that is two thirds of what is left at most: a slow store
/// must not cost those who waited what the others keep.
fn attempt_limit(lease: &Lease) -> Duration {
    let (left, ttl) = (lease.remaining(), lease.granted_ttl());
    let when_due = ttl.checked_div(9).unwrap_or_default().saturating_mul(2);
    let third = left.checked_div(3).unwrap_or_default();
    third.max(when_due.min(third.saturating_mul(2))).max(Duration::from_millis(1))
}

/// How long to wait after a failed try: a tenth of what is left, within bounds.
fn retry_pause(left: Duration) -> Duration {
    left.checked_div(10).unwrap_or_default().clamp(Duration::from_millis(5), Duration::from_secs(1))
}
