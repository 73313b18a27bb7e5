//! Which faults come when: from the seed alone.

use super::random::Random;
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    BlackHole,
    Cut,
    Refused,
    RequestLost,
    ReplyLost,
    RequestHeld,
    ReplyHeld,
    WorkerStopped,
    WorkerKilled,
    ServerFrozen,
    ServerKilled,
}

impl Kind {
    pub(super) const PATH: [Self; 7] = [
        Self::BlackHole,
        Self::Cut,
        Self::Refused,
        Self::RequestLost,
        Self::ReplyLost,
        Self::RequestHeld,
        Self::ReplyHeld,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BlackHole => "black hole",
            Self::Cut => "cut",
            Self::Refused => "cut and refused",
            Self::RequestLost => "request lost",
            Self::ReplyLost => "reply lost",
            Self::RequestHeld => "request held",
            Self::ReplyHeld => "reply held",
            Self::WorkerStopped => "worker stopped",
            Self::WorkerKilled => "worker killed",
            Self::ServerFrozen => "server frozen",
            Self::ServerKilled => "server killed",
        }
    }

    /// Whether it lasts about as long as a lease; the others are short.
    fn is_long(self) -> bool {
        matches!(
            self,
            Self::BlackHole
                | Self::Refused
                | Self::RequestHeld
                | Self::ReplyHeld
                | Self::WorkerStopped
                | Self::ServerFrozen
        )
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// How long all is well before it.
    pub(super) wait: Duration,
    pub(super) kind: Kind,
    /// Whom it hits, where it does not hit all.
    pub(super) worker: usize,
    pub(super) lasts: Duration,
}

/// The faults for a soak of this length.
pub(super) fn schedule(seed: u64, time: Duration, ttl: Duration, workers: usize, kinds: &[Kind]) -> Vec<Step> {
    let mut random = Random::of(seed, u64::MAX);
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let ttl = millis(ttl);
    let workers: Vec<usize> = (0..workers).collect();
    let (mut steps, mut taken) = (Vec::new(), Duration::ZERO);
    // The first of each kind in turn, then at random, so that a short soak has them all.
    let mut first = kinds.to_vec();
    while taken < time {
        let at = usize::try_from(random.below(u64::try_from(first.len()).unwrap_or(0))).unwrap_or_default();
        let kind = if first.is_empty() { random.pick(kinds).copied() } else { Some(first.swap_remove(at)) };
        let (Some(kind), Some(worker)) = (kind, random.pick(&workers)) else { break };
        let lasts = if kind.is_long() { random.between(ttl / 5, ttl.saturating_mul(3) / 2) } else { 50 };
        let wait = random.between(50, ttl / 2);
        let step =
            Step { wait: Duration::from_millis(wait), kind, worker: *worker, lasts: Duration::from_millis(lasts) };
        taken = taken.saturating_add(step.wait).saturating_add(step.lasts);
        steps.push(step);
    }
    steps
}

/// A number that tells two schedules apart (FNV-1a).
pub(super) fn hash(steps: &[Step]) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in format!("{steps:?}").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_repeats_the_schedule() {
        let one = |seed| schedule(seed, Duration::from_mins(1), Duration::from_secs(1), 4, &Kind::PATH);
        assert_eq!(one(7), one(7));
        assert_eq!(hash(&one(7)), hash(&one(7)));
        assert_ne!(hash(&one(7)), hash(&one(8)));
        for kind in Kind::PATH {
            assert!(one(7).iter().any(|step| step.kind == kind), "{}", kind.name());
        }
        assert!(schedule(7, Duration::from_mins(1), Duration::from_secs(1), 4, &[]).is_empty());
    }
}
