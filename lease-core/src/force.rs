//! Ending somebody else's grant: an operator's order that names the very grant that it means to break.

use crate::{FencingToken, HolderLabel, LeaseError, ResourceName};
use tracing::{error, warn};

/// An order to end a grant by force. It names the fencing value of that grant, as [`inspect`](crate::LeaseBackend::inspect) shows it,
/// so that it can't break a newer holder by mistake; who gives it and why go to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceRelease {
    resource: ResourceName,
    value: u64,
    who: HolderLabel,
    why: String,
}

/// What became of a [`ForceRelease`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "the order may have found another grant, or none"]
pub enum Forced {
    /// The named grant was live, and this order ended it. Its holder learns it at its next renewal at the latest.
    Ended,
    /// No grant is live: it had ended before, perhaps by an earlier send of this order.
    NotHeld,
    /// Another grant is live. It was left alone.
    OtherGrant {
        /// Its fencing value.
        value: u64,
    },
}

impl ForceRelease {
    /// An order of `who`, because of `why`, to end the grant of `resource` that has the fencing value `value`.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`] when `who` is empty or `why` isn't 1 to 512 bytes without control characters,
    /// [`LeaseError::TokenRange`] when `value` can't be a fencing value. Nothing was sent.
    pub fn new(resource: ResourceName, value: u64, who: HolderLabel, why: &str) -> Result<Self, LeaseError> {
        if who.as_str().trim().is_empty() {
            let reason = "say who orders it".into();
            return Err(LeaseError::InvalidName { what: "force-release", reason });
        }
        if why.trim().is_empty() || why.len() > 512 || why.chars().any(char::is_control) {
            let reason = "give the reason in 1 to 512 bytes without control characters".into();
            return Err(LeaseError::InvalidName { what: "force-release", reason });
        }
        if !(1..=FencingToken::MAX_VALUE).contains(&value) {
            return Err(LeaseError::TokenRange { value });
        }
        Ok(Self { resource, value, who, why: why.to_owned() })
    }

    /// The resource.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    /// The fencing value of the grant to end.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Logs the order and, from the store's answer, what became of it, also when that is not known; every backend's
    /// `force_release` runs through it.
    ///
    /// # Errors
    /// Those of `answer`.
    ///
    /// # Cancel safety
    /// The order is in the log; the outcome is not. Repeat it: it can only end the grant that it names.
    pub async fn carry_out(
        &self,
        answer: impl Future<Output = Result<Forced, LeaseError>> + Send,
    ) -> Result<Forced, LeaseError> {
        let Self { resource, value, who, why } = self;
        let who = who.as_str();
        warn!(target: "leasehold", event = "force_release", %resource, value, who, why);
        let answer = answer.await;
        match &answer {
            Ok(outcome) => {
                warn!(target: "leasehold", event = "force_released", %resource, value, who, outcome = outcome.id());
            }
            Err(error) => error!(target: "leasehold", event = "force_release_failed", %resource, value, who, %error),
        }
        answer
    }
}

impl Forced {
    /// The stable id, as the log prints it.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::NotHeld => "not-held",
            Self::OtherGrant { .. } => "other-grant",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_needs_a_value_a_person_and_a_reason() {
        let order = |value, who: &str, why: &str| {
            ForceRelease::new(ResourceName::parse("r").unwrap(), value, HolderLabel::parse(who).unwrap(), why)
        };
        assert!(order(7, "ops", "host 12 burned").is_ok());
        assert!(matches!(order(0, "ops", "x"), Err(LeaseError::TokenRange { value: 0 })));
        assert!(matches!(order(u64::MAX, "ops", "x"), Err(LeaseError::TokenRange { .. })));
        for (who, why) in [(" ", "x"), ("ops", " "), ("ops", "a\nb"), ("ops", &"x".repeat(513))] {
            assert!(matches!(order(7, who, why), Err(LeaseError::InvalidName { .. })), "{who:?} {why:?}");
        }
    }
}
