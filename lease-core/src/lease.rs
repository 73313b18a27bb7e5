//! One grant, as plain data.

use crate::attempt::AttemptState;
use crate::{Attempt, BootId, BootInstant, FencingToken, OwnerToken, ResourceName, SharedClock};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How much before the store's expiry a holder must stop: 1 % of the TTL, at least 5 ms (but never more than half of it).
///
/// It covers the rate difference between two clocks, not a wrong clock.
#[must_use]
pub fn safety_margin(granted_ttl: Duration) -> Duration {
    let hundredth = granted_ttl.checked_div(100).unwrap_or_default();
    let half = granted_ttl.checked_div(2).unwrap_or_default();
    hundredth.max(Duration::from_millis(5)).min(half)
}

/// One grant: what was granted, to whom, and until when its holder may act as holding.
///
/// It tells at the first touch, without any I/O, that its deadline has passed. That a deadline has *not* passed says "may begin",
/// never "is exclusive": a pause may follow. What protects data is the token at the destination.
#[derive(Clone)]
pub struct Lease {
    resource: ResourceName,
    owner: OwnerToken,
    token: Option<FencingToken>,
    granted_ttl: Duration,
    deadline: BootInstant,
    confirmed_by: Option<u32>,
    clock: SharedClock,
    state: Arc<AttemptState>,
}

impl Lease {
    /// The lease that `attempt` was granted; for backends. `sent` is when its first request was sent.
    #[must_use]
    pub fn granted(
        attempt: &Attempt,
        token: Option<FencingToken>,
        granted_ttl: Duration,
        sent: BootInstant,
        clock: SharedClock,
    ) -> Self {
        Self {
            resource: attempt.resource().clone(),
            owner: *attempt.owner(),
            token,
            granted_ttl,
            deadline: deadline(sent, granted_ttl),
            confirmed_by: None,
            clock,
            state: Arc::clone(attempt.state()),
        }
    }

    /// The same grant, renewed by a request that was sent at `sent`; for backends. The deadline never moves back.
    #[must_use]
    pub fn renewed(&self, sent: BootInstant) -> Self {
        let mut lease = self.clone();
        lease.deadline = self.deadline.max(deadline(sent, self.granted_ttl));
        lease
    }

    /// The same grant, which so many replicas have confirmed; for backends.
    #[must_use]
    pub fn with_confirmed_by(mut self, replicas: u32) -> Self {
        self.confirmed_by = Some(replicas);
        self
    }

    /// How many replicas of the store had confirmed the grant before it was answered; `None` where none was asked. It says nothing about renewals,
    /// and not that a replica which is promoted later is one of them.
    #[must_use]
    pub fn confirmed_by(&self) -> Option<u32> {
        self.confirmed_by
    }

    /// The resource.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    /// The secret of this grant, for the backend.
    #[must_use]
    pub fn owner(&self) -> &OwnerToken {
        &self.owner
    }

    /// The fencing token; `None` on a backend with nothing that orders grants.
    #[must_use]
    pub fn token(&self) -> Option<&FencingToken> {
        self.token.as_ref()
    }

    /// How long the store grants after each acquire and renew: never shorter than was asked.
    #[must_use]
    pub fn granted_ttl(&self) -> Duration {
        self.granted_ttl
    }

    /// The local instant after which the holder must act as not holding: sent + granted TTL − [`safety_margin`].
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.deadline
    }

    /// Time left until the deadline; zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_since(self.clock.now())
    }

    /// Whether the deadline has passed. Needs no network; true for good unless a renewal succeeds.
    #[must_use]
    pub fn is_past_deadline(&self) -> bool {
        self.clock.now() >= self.deadline
    }

    /// Notes that a release is about to be sent; every backend calls it right before.
    pub fn begin_release(&self) -> ReleaseTry {
        ReleaseTry {
            earlier_in_doubt: self.state.begin_release(),
            needs_tombstone: self.state.may_be_in_flight(),
            state: Arc::clone(&self.state),
        }
    }

    /// The data of this grant for another process. Whoever has them can renew and release it, so they are a secret.
    ///
    /// **The last thing to do with it here**, with each of its clones: nothing tells two holders of one grant apart, neither the owner token nor
    /// the fencing token, and when one of them releases, the other one has lost it. What a guard holds goes by
    /// [`LeaseGuard::into_hand_over`](crate::hold::LeaseGuard::into_hand_over), which stops its renewal.
    #[must_use]
    pub fn into_hand_over(self) -> HandOver {
        HandOver {
            resource: self.resource.as_str().to_owned(),
            owner: self.owner.reveal(),
            token: self.token.as_ref().map(ToString::to_string),
            granted_ttl_ms: u64::try_from(self.granted_ttl.as_millis()).unwrap_or(u64::MAX),
            deadline_boot_ns: self.deadline.as_nanos(),
            boot_id: self.clock.boot_id().as_str().to_owned(),
        }
    }
}

fn deadline(sent: BootInstant, granted_ttl: Duration) -> BootInstant {
    sent.saturating_add(granted_ttl.saturating_sub(safety_margin(granted_ttl)))
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("resource", &self.resource)
            .field("token", &self.token)
            .field("granted_ttl", &self.granted_ttl)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A release that is under way: remembers whether its answer can be taken for the whole truth.
#[derive(Debug)]
#[must_use = "tell it what the store answered"]
pub struct ReleaseTry {
    earlier_in_doubt: bool,
    needs_tombstone: bool,
    state: Arc<AttemptState>,
}

impl ReleaseTry {
    /// Whether a request of the attempt may still be on its way, so that the store has to remember that it is over.
    #[must_use]
    pub fn needs_tombstone(&self) -> bool {
        self.needs_tombstone
    }

    /// Turns the store's definite answer into the result: `ended` says whether this request (or an earlier one of the
    /// same grant, as far as the store can tell) ended the grant while it was live.
    pub fn answered(self, ended: bool) -> crate::Release {
        self.state.release_settled();
        match (ended, self.earlier_in_doubt) {
            (true, _) => crate::Release::Released,
            (false, true) => crate::Release::EndedCauseUnknown,
            (false, false) => crate::Release::NotHeld,
        }
    }

    /// Notes that the request was definitely refused or never sent: an earlier doubt stays, this one adds none.
    pub fn not_sent(self) {
        if !self.earlier_in_doubt {
            self.state.release_settled();
        }
    }
}

/// A grant on its way to another process. **A secret**: it carries the owner token; `Debug` leaves that out.
///
/// On another boot or machine the lease begins as expired until it was renewed, because its deadline means nothing there.
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HandOver {
    resource: String,
    owner: String,
    token: Option<String>,
    granted_ttl_ms: u64,
    deadline_boot_ns: u64,
    boot_id: String,
}

impl HandOver {
    /// Takes the grant over.
    ///
    /// # Errors
    /// [`LeaseError::InvalidName`](crate::LeaseError::InvalidName) or [`InvalidTtl`](crate::LeaseError::InvalidTtl) when the data
    /// were damaged.
    pub fn into_lease(self, clock: SharedClock) -> Result<Lease, crate::LeaseError> {
        let damaged =
            |reason: &str| crate::LeaseError::InvalidName { what: "hand-over", reason: format!("damaged: {reason}") };
        let token = self.token.map(|t| t.parse().map_err(|_| damaged("token"))).transpose()?;
        let same_boot = BootId::from_text(&self.boot_id) == clock.boot_id();
        let granted_ttl = crate::Ttl::parse(Duration::from_millis(self.granted_ttl_ms))?.duration();
        // A deadline further away than one TTL can't be right, whoever wrote it.
        let latest = deadline(clock.now(), granted_ttl);
        Ok(Lease {
            resource: ResourceName::parse(&self.resource)?,
            owner: OwnerToken::from_revealed(&self.owner).ok_or_else(|| damaged("owner"))?,
            token,
            granted_ttl,
            deadline: if same_boot {
                BootInstant::from_nanos(self.deadline_boot_ns).min(latest)
            } else {
                BootInstant::ZERO
            },
            confirmed_by: None,
            clock,
            state: AttemptState::handed_over(),
        })
    }
}

impl fmt::Debug for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOver").field("resource", &self.resource).field("token", &self.token).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Clock, ManualClock, Release, Ttl};

    fn lease(clock: &ManualClock) -> Lease {
        let attempt =
            Attempt::new(ResourceName::parse("r").unwrap(), Ttl::parse(Duration::from_secs(10)).unwrap()).unwrap();
        let sent = attempt.begin_send(clock.now(), Duration::from_secs(10)).unwrap();
        let first = sent.first_sent();
        sent.answered();
        let token = attempt.token(Authority::parse("a").unwrap(), 7).unwrap();
        Lease::granted(&attempt, Some(token), Duration::from_secs(10), first, clock.shared())
    }

    #[test]
    fn margin_is_declared() {
        assert_eq!(safety_margin(Duration::from_secs(10)), Duration::from_millis(100));
        assert_eq!(safety_margin(Duration::from_millis(100)), Duration::from_millis(5));
        assert_eq!(safety_margin(Duration::from_millis(2)), Duration::from_millis(1));
    }

    #[test]
    fn tells_at_the_first_touch_and_renewal_never_shortens() {
        let clock = ManualClock::new();
        let lease = lease(&clock);
        assert_eq!(lease.remaining(), Duration::from_millis(9_900));
        clock.advance(Duration::from_millis(9_899));
        assert!(!lease.is_past_deadline());
        clock.advance(Duration::from_millis(1));
        assert!(lease.is_past_deadline());
        assert_eq!(lease.renewed(BootInstant::ZERO).deadline(), lease.deadline());
        assert!(!lease.renewed(clock.now()).is_past_deadline());
    }

    #[test]
    fn a_release_in_doubt_never_becomes_not_held() {
        let clock = ManualClock::new();
        let lease = lease(&clock);
        drop(lease.begin_release()); // the reply was lost
        assert_eq!(lease.begin_release().answered(false), Release::EndedCauseUnknown);
        assert_eq!(lease.begin_release().answered(false), Release::NotHeld, "settled by the definite answer");
        assert!(!lease.begin_release().needs_tombstone());
    }

    #[test]
    fn hand_over_keeps_the_secret_and_expires_elsewhere() {
        let clock = ManualClock::new();
        let lease = lease(&clock);
        let secret = lease.owner().reveal();
        let data = lease.clone().into_hand_over();
        assert!(!format!("{data:?} {lease:?}").contains(&secret));
        let here = data.clone().into_lease(clock.shared()).unwrap();
        assert_eq!(here.deadline(), lease.deadline());
        assert!(here.begin_release().needs_tombstone(), "its attempt's requests are not known here");
        let elsewhere = data.into_lease(crate::SystemClock::shared()).unwrap();
        assert!(elsewhere.is_past_deadline());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn hand_over_round_trips_as_json() {
        let clock = ManualClock::new();
        let lease = lease(&clock);
        let json = serde_json::to_string(&lease.clone().into_hand_over()).unwrap();
        let back = serde_json::from_str::<HandOver>(&json).unwrap().into_lease(clock.shared()).unwrap();
        assert_eq!((back.token(), back.deadline()), (lease.token(), lease.deadline()));
    }
}
