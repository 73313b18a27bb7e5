//! Permission to begin protected work.

use super::events;
use crate::{BootInstant, FencingToken, ResourceName, SharedClock};
use std::time::Duration;

/// What happens when the work goes on although its lease has ended, as the caller declares it. Seen in events and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StaleBehaviour {
    /// The destination checks the fencing token in the same atomic step as the write.
    Fenced,
    /// The write and a check of the lease are one transaction of the store that holds the lease.
    Transactional,
    /// The write is conditional on a version that the work has read.
    VersionChecked,
    /// A repeated effect is recognised by its idempotency key.
    Idempotent,
    /// Nothing protects the effect; the reason says why that is acceptable.
    Unprotected {
        /// Why, for whoever reads the logs.
        reason: &'static str,
    },
}

impl StaleBehaviour {
    /// The stable name in events and metrics.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Fenced => "fenced",
            Self::Transactional => "transactional",
            Self::VersionChecked => "version_checked",
            Self::Idempotent => "idempotent",
            Self::Unprotected { .. } => "unprotected",
        }
    }
}

/// Permission to *begin* protected work. **Not a proof of exclusivity**: the process can be paused right after it was
/// given. What keeps a stale write out is what was declared: the token at the destination, a transaction, a version, a key.
#[derive(Debug)]
#[must_use = "a permit that is not used begins nothing"]
pub struct Permit {
    pub(super) resource: ResourceName,
    pub(super) token: Option<FencingToken>,
    pub(super) behaviour: StaleBehaviour,
    pub(super) given_at: BootInstant,
    pub(super) deadline: BootInstant,
    pub(super) clock: SharedClock,
}

impl Permit {
    /// The token to send with the write; `None` on a backend that mints none.
    #[must_use]
    pub fn token(&self) -> Option<&FencingToken> {
        self.token.as_ref()
    }

    /// What was declared.
    #[must_use]
    pub fn behaviour(&self) -> StaleBehaviour {
        self.behaviour
    }

    /// When it was given.
    #[must_use]
    pub fn given_at(&self) -> BootInstant {
        self.given_at
    }

    /// Time left until the deadline that held when the permit was given; zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_since(self.clock.now())
    }

    /// Notes that the effect was committed.
    pub fn committed(self) {
        events::effect(&self, true);
    }

    /// Notes that the destination refused the effect as stale.
    pub fn refused(self) {
        events::effect(&self, false);
    }
}
