//! How long a grant lasts.

use crate::LeaseError;
use std::time::Duration;

/// How long a grant is asked to last: positive, in whole milliseconds (rounded up), at most 100 years.
///
/// A backend may grant more (see [`Limits`](crate::Limits)), never less; the granted value is in
/// [`Lease::granted_ttl`](crate::Lease::granted_ttl).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(Duration);

impl Ttl {
    /// The longest TTL that any backend is asked for.
    pub const MAX: Duration = Duration::from_hours(100 * 365 * 24);

    /// Parses a TTL.
    ///
    /// # Errors
    /// [`LeaseError::InvalidTtl`] when it is zero or longer than [`MAX`](Self::MAX). Nothing was sent.
    pub fn parse(ttl: Duration) -> Result<Self, LeaseError> {
        if ttl.is_zero() {
            return Err(LeaseError::InvalidTtl { ttl, reason: "it is zero; a lease needs time to live".into() });
        }
        if ttl > Self::MAX {
            return Err(LeaseError::InvalidTtl { ttl, reason: "it is longer than 100 years".into() });
        }
        Ok(Self(round_up(ttl, Duration::from_millis(1))))
    }

    /// The TTL as a duration.
    #[must_use]
    pub fn duration(self) -> Duration {
        self.0
    }

    /// The TTL in milliseconds, exactly.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = LeaseError;
    fn try_from(ttl: Duration) -> Result<Self, LeaseError> {
        Self::parse(ttl)
    }
}

/// The smallest multiple of `step` that is not below `value`; `step` is positive.
pub(crate) fn round_up(value: Duration, step: Duration) -> Duration {
    let step = step.as_nanos().max(1);
    let nanos = value.as_nanos().div_ceil(step).saturating_mul(step);
    let per_second = 1_000_000_000_u128;
    let seconds = u64::try_from(nanos.checked_div(per_second).unwrap_or(0)).unwrap_or(u64::MAX);
    let rest = u32::try_from(nanos.checked_rem(per_second).unwrap_or(0)).unwrap_or(0);
    Duration::new(seconds, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_and_never_to_zero() {
        assert_eq!(Ttl::parse(Duration::from_nanos(1)).unwrap().as_millis(), 1);
        assert_eq!(Ttl::parse(Duration::from_micros(1_001)).unwrap().as_millis(), 2);
        assert_eq!(Ttl::parse(Duration::from_secs(3)).unwrap().as_millis(), 3_000);
        assert_eq!(Ttl::parse(Ttl::MAX).unwrap().duration(), Ttl::MAX);
        assert!(Ttl::parse(Duration::ZERO).is_err());
        assert!(Ttl::parse(Ttl::MAX + Duration::from_nanos(1)).is_err());
        assert!(Ttl::parse(Duration::MAX).is_err());
        assert_eq!(round_up(Duration::from_millis(1_001), Duration::from_secs(1)), Duration::from_secs(2));
    }
}
