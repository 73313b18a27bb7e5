//! What an instance declares about itself, so that the suite can check it in both directions.

use crate::ttl::round_up;
use crate::{Attempt, LeaseError, Ttl};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

macro_rules! claims {
    ($($(#[doc = $doc:literal])+ $variant:ident = $id:literal,)+) => {
        /// A named guarantee. Each one has at least one case in the conformance suite that can refute it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Claim { $($(#[doc = $doc])+ $variant,)+ }

        impl Claim {
            /// Every claim there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The stable id, as reports print it.
            #[must_use]
            pub fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)+ }
            }

            /// What it says, in one sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

claims! {
    /// Lease backend: each grant has a fencing token, and a later grant of the same resource has a larger one.
    FencingToken = "fencing-token",
    /// Lease backend: a grant that is asked for above a floor is made, with a larger token.
    MintsAboveFloor = "mints-above-floor",
    /// Lease backend: a write through its own fence is refused from the moment the grant has ended.
    NativeFenceLiveOwner = "native-fence-live-owner",
    /// Lease backend: a write through its own fence is refused once a newer grant has sealed or written.
    NativeFenceMark = "native-fence-mark",
    /// Lease backend: separate processes exclude each other.
    CrossProcess = "cross-process",
    /// Lease backend: held resources can be listed by prefix without scanning the whole store.
    ListByPrefix = "list-by-prefix",
    /// Lease backend: what an idle resource leaves behind is removed in the end, and its next token is larger all the same.
    IdleNamesForgotten = "idle-names-forgotten",
    /// Lease backend: a live grant is still there after the store was killed and restarted.
    LeaseSurvivesRestart = "lease-survives-restart",
    /// Lease backend: the first grant after the store was killed and restarted has a larger token of the same authority.
    TokenSurvivesRestart = "token-survives-restart",
    /// Destination: the mark is still there after the store was killed and restarted.
    MarkSurvivesRestart = "mark-survives-restart",
    /// Destination: a caller that ignores the guard's refusal cannot commit its write.
    RefusalUncommittable = "refusal-uncommittable",
    /// Destination: a mutation that is rolled back takes the mark that was raised with it back.
    MarkRollsBack = "mark-rolls-back",
}

impl Claim {
    /// Finds a claim by its id.
    #[must_use]
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|claim| claim.id() == id)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// The guarantees that an instance declares. What is not in it is not claimed; there is no default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims(BTreeSet<Claim>);

impl Claims {
    /// Declares these and no others.
    #[must_use]
    pub fn of(claims: &[Claim]) -> Self {
        Self(claims.iter().copied().collect())
    }

    /// The same with `claim` where `condition` holds: for claims that depend on a server's setting.
    #[must_use]
    pub fn and_if(mut self, condition: bool, claim: Claim) -> Self {
        if condition {
            self.0.insert(claim);
        }
        self
    }

    /// Whether it is declared.
    #[must_use]
    pub fn has(&self, claim: Claim) -> bool {
        self.0.contains(&claim)
    }

    /// All that are declared.
    pub fn iter(&self) -> impl Iterator<Item = Claim> + '_ {
        self.0.iter().copied()
    }
}

/// The numbers that bound a backend instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The shortest TTL that is granted; shorter ones are granted as this.
    pub min_ttl: Duration,
    /// The longest TTL; longer ones are refused before any I/O.
    pub max_ttl: Duration,
    /// TTLs are rounded up to a multiple of this.
    pub ttl_granularity: Duration,
    /// How long after the granted TTL a resource may still look held, on a healthy store.
    pub expiry_lag: Duration,
    /// The largest fencing value before the store runs out; zero on a backend that mints none.
    pub max_token_value: u64,
    /// How long one call may take before it ends with a time-out.
    pub call_timeout: Duration,
}

impl Limits {
    /// Limits from their parts.
    #[must_use]
    pub fn new(min_ttl: Duration, max_ttl: Duration, ttl_granularity: Duration) -> Self {
        Self {
            min_ttl,
            max_ttl,
            ttl_granularity,
            expiry_lag: Duration::ZERO,
            max_token_value: crate::FencingToken::MAX_VALUE,
            call_timeout: Duration::from_secs(2),
        }
    }

    /// The same with another expiry lag.
    #[must_use]
    pub fn with_expiry_lag(mut self, expiry_lag: Duration) -> Self {
        self.expiry_lag = expiry_lag;
        self
    }

    /// The same with another largest fencing value.
    #[must_use]
    pub fn with_max_token_value(mut self, max_token_value: u64) -> Self {
        self.max_token_value = max_token_value;
        self
    }

    /// The same with another call limit.
    #[must_use]
    pub fn with_call_timeout(mut self, call_timeout: Duration) -> Self {
        self.call_timeout = call_timeout;
        self
    }

    /// Makes sure that a fencing value above the attempt's floor exists; every backend calls it before anything is sent.
    ///
    /// # Errors
    /// [`LeaseError::InvalidFloor`] when the floor is the largest value or more. Nothing was sent.
    pub fn check_floor(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        match attempt.floor() {
            0 => Ok(()),
            floor if floor < self.max_token_value => Ok(()),
            floor => Err(LeaseError::InvalidFloor { floor, largest: self.max_token_value }),
        }
    }

    /// What is granted when `ttl` is asked for: never shorter.
    ///
    /// # Errors
    /// [`LeaseError::InvalidTtl`] when it is longer than the longest. Nothing was sent.
    pub fn granted_ttl(&self, ttl: Ttl) -> Result<Duration, LeaseError> {
        let asked = ttl.duration();
        if asked > self.max_ttl {
            let reason = format!("the longest TTL here is {:?}", self.max_ttl);
            return Err(LeaseError::InvalidTtl { ttl: asked, reason });
        }
        Ok(round_up(asked.max(self.min_ttl), self.ttl_granularity).min(self.max_ttl))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_round_trip() {
        let ids: BTreeSet<_> = Claim::ALL.iter().map(|c| c.id()).collect();
        assert_eq!(ids.len(), Claim::ALL.len());
        assert!(Claim::ALL.iter().all(|c| Claim::from_id(c.id()) == Some(*c) && c.meaning().ends_with('.')));
    }

    #[test]
    fn a_floor_leaves_room_for_a_value() {
        let limits = Limits::new(Duration::ZERO, Ttl::MAX, Duration::ZERO).with_max_token_value(10);
        let attempt = Attempt::new(crate::ResourceName::parse("r").unwrap(), Ttl::parse(Ttl::MAX).unwrap()).unwrap();
        for (floor, fits) in [(0, true), (9, true), (10, false), (u64::MAX, false)] {
            assert_eq!(limits.check_floor(&attempt.clone().above(floor)).is_ok(), fits, "{floor}");
        }
        let tokenless = limits.with_max_token_value(0);
        assert!(tokenless.check_floor(&attempt).is_ok());
        assert!(tokenless.check_floor(&attempt.above(1)).is_err());
    }

    #[test]
    fn granted_is_never_shorter() {
        let limits = Limits::new(Duration::from_secs(2), Duration::from_secs(100), Duration::from_secs(1));
        let granted = |ms| limits.granted_ttl(Ttl::parse(Duration::from_millis(ms)).unwrap());
        assert_eq!(granted(1).unwrap(), Duration::from_secs(2));
        assert_eq!(granted(2_001).unwrap(), Duration::from_secs(3));
        assert_eq!(granted(100_000).unwrap(), Duration::from_secs(100));
        assert!(granted(100_001).is_err());
    }
}
