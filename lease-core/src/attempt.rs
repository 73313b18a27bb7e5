//! One try to acquire, as a value that can be repeated without making a second grant.

use crate::{BootInstant, FencingToken, GrantId, HolderLabel, LeaseError, OwnerToken, ResourceName, Ttl};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One try to acquire a resource, with its own owner token. It makes at most one grant, ever.
///
/// Keep it when [`acquire`](crate::LeaseBackend::acquire) answered with an error whose effect is
/// [unknown](crate::Effect::Unknown): repeating the same attempt finds the grant that it made, with the same token, and
/// the deadline still counts from the *first* send. When nobody wants it any more,
/// [`abandon`](crate::LeaseBackend::abandon) it. Clones are the same attempt.
///
/// ```
/// use lease_core::memory::MemoryBackend;
/// use lease_core::testing::{Fault, Scripted};
/// use lease_core::{Acquisition, Attempt, Effect, LeaseBackend, LeaseError, Operation, Release, ResourceName, Ttl};
/// use std::{sync::Arc, time::Duration};
///
/// /// Repeats the attempt as long as nobody knows what became of it, and at last gives it up.
/// async fn settle(store: &dyn LeaseBackend, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
///     for _ in 0..3 {
///         match store.acquire(attempt).await {
///             Err(error) if error.effect() == Effect::Unknown => {}
///             known => return known,
///         }
///     }
///     // Whatever it made ends here, and what is still on its way makes nothing. If this fails too, the TTL ends it.
///     store.abandon(attempt).await?;
///     Err(LeaseError::AttemptOver { resource: attempt.resource().clone(), reason: "it was given up" })
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LeaseError> {
/// // A store that makes the grant, and whose reply is lost on its way back.
/// let store = Scripted::new(Arc::new(MemoryBackend::new()?));
/// store.next(Operation::Acquire, Fault::ReplyLost);
/// let (name, ttl) = (ResourceName::parse("accounts/42")?, Ttl::parse(Duration::from_secs(10))?);
/// let attempt = Attempt::new(name.clone(), ttl)?;
/// let Acquisition::Acquired(lease) = settle(&store, &attempt).await? else { panic!("it is free") };
/// assert_eq!(lease.token().map(|token| token.value()), Some(1), "the repeat found the grant; it made no second one");
///
/// // A new attempt is no repeat: it would wait for a grant that nobody knows of.
/// assert!(matches!(store.acquire(&Attempt::new(name.clone(), ttl)?).await?, Acquisition::Held(_)));
/// assert_eq!(store.release(&lease).await?, Release::Released);
///
/// // The replies stay away: given up, the attempt leaves nothing behind.
/// store.always(Operation::Acquire, Some(Fault::ReplyLost));
/// assert!(settle(&store, &Attempt::new(name.clone(), ttl)?).await.is_err());
/// assert!(store.inspect(&name).await?.held.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Attempt {
    resource: ResourceName,
    ttl: Ttl,
    holder: HolderLabel,
    owner: OwnerToken,
    grant: GrantId,
    floor: u64,
    state: Arc<AttemptState>,
}

/// What the clones of an attempt, and the lease that it made, know together.
#[derive(Debug, Default)]
pub(crate) struct AttemptState {
    first_sent: OnceLock<BootInstant>,
    sends: AtomicU64,
    answers: AtomicU64,
    /// Its grant was handed to the caller, in time.
    accepted: AtomicBool,
    ended: AtomicBool,
    release_in_doubt: AtomicBool,
}

impl Attempt {
    /// A new attempt on `resource`, held by this process's id until [`held_by`](Self::held_by) says otherwise.
    ///
    /// # Errors
    /// [`LeaseError::Entropy`] when the operating system gives no random numbers.
    pub fn new(resource: ResourceName, ttl: Ttl) -> Result<Self, LeaseError> {
        Ok(Self {
            resource,
            ttl,
            holder: HolderLabel::default(),
            owner: OwnerToken::random()?,
            grant: GrantId::random()?,
            floor: 0,
            state: Arc::default(),
        })
    }

    /// The same attempt with another label for people to read.
    #[must_use]
    pub fn held_by(mut self, holder: HolderLabel) -> Self {
        self.holder = holder;
        self
    }

    /// The same attempt, which only takes a grant whose fencing value is larger than `floor`: the highest value that the caller knows of this
    /// resource, such as the [mark](crate::Stored::floor) of its destination, or the value of a token that it has seen.
    ///
    /// So a store that has gone back makes no grant that the destination would refuse, or take for an older one: it mints above the
    /// floor in the same step that makes the grant, where it can choose its values
    /// ([`MintsAboveFloor`](crate::Claim::MintsAboveFloor)), and else the attempt fails with [`LeaseError::BelowFloor`] and leaves no grant.
    /// It cures only what the caller knows of: a lost value that reached no destination is not in any mark.
    ///
    /// The floor is of the same authority as the destination's mark. One of another authority is not comparable; at best it makes values
    /// larger than they need be. Values up to it are used up, for good: take it from a mark or a token, and make none up.
    ///
    /// Set it before the first send. The default, 0, asks for nothing.
    #[must_use]
    pub fn above(mut self, floor: u64) -> Self {
        self.floor = floor;
        self
    }

    /// What the fencing value of the grant has to be larger than; 0 when nothing is asked for.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The resource that is tried.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    /// The TTL that is asked for.
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The label that `inspect` shows.
    #[must_use]
    pub fn holder(&self) -> &HolderLabel {
        &self.holder
    }

    /// The secret of this attempt, for the backend.
    #[must_use]
    pub fn owner(&self) -> &OwnerToken {
        &self.owner
    }

    /// The id that the grant of this attempt has.
    #[must_use]
    pub fn grant(&self) -> GrantId {
        self.grant
    }

    /// Notes that a request for this attempt is about to be sent; every backend calls it right before each send of
    /// `acquire` and counts the deadline from [`SentAttempt::first_sent`].
    ///
    /// # Errors
    /// [`LeaseError::AttemptOver`] when the attempt has made its grant and that was released, when it was abandoned, or
    /// when `granted_ttl` has passed since the first send, so that no answer could be a success. Nothing was sent.
    pub fn begin_send(&self, now: BootInstant, granted_ttl: Duration) -> Result<SentAttempt, LeaseError> {
        // Counted before the look at `ended`: of a release at the same time and this, one sees the other.
        self.state.sends.fetch_add(1, Ordering::SeqCst);
        let first_sent = *self.state.first_sent.get_or_init(|| now);
        let sent = SentAttempt { first_sent, state: Arc::clone(&self.state) };
        let reason = if self.state.ended.load(Ordering::SeqCst) {
            "it was released or abandoned"
        } else if now.saturating_since(first_sent) >= granted_ttl {
            OVER_TTL
        } else {
            return Ok(sent);
        };
        sent.answered();
        Err(LeaseError::AttemptOver { resource: self.resource.clone(), reason })
    }

    /// Marks the attempt as over; every backend calls it when `abandon` is sent. Later repeats are refused without I/O.
    pub fn end(&self) {
        self.state.ended.store(true, Ordering::SeqCst);
    }

    /// A copy that does not know what became of the original, as a request that was held up on its way has it. For conformance
    /// tests of what the *store* does with such a request.
    #[doc(hidden)]
    #[must_use]
    pub fn as_held_up(&self) -> Self {
        Self { state: Arc::default(), ..self.clone() }
    }

    /// Whether its grant was handed to its caller in time. For backends: such a grant is in use, so no repeat gives it up.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.state.was_accepted()
    }

    pub(crate) fn state(&self) -> &Arc<AttemptState> {
        &self.state
    }

    /// The token of this attempt's grant, from what the store minted.
    ///
    /// # Errors
    /// [`LeaseError::TokenRange`] when the store's value has run out of range.
    pub fn token(&self, authority: crate::Authority, value: u64) -> Result<FencingToken, LeaseError> {
        FencingToken::new(authority, value, self.grant)
    }
}

pub(crate) const OVER_TTL: &str = "its own TTL has passed since it was first sent";

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("resource", &self.resource)
            .field("ttl", &self.ttl.duration())
            .field("holder", &self.holder.as_str())
            .field("grant", &self.grant)
            .field("floor", &self.floor)
            .finish_non_exhaustive()
    }
}

/// A request of an attempt that is under way.
#[derive(Debug)]
#[must_use = "tell it when the answer has come"]
pub struct SentAttempt {
    first_sent: BootInstant,
    state: Arc<AttemptState>,
}

impl SentAttempt {
    /// When the attempt was first sent, by whichever request.
    #[must_use]
    pub fn first_sent(&self) -> BootInstant {
        self.first_sent
    }

    /// Notes that this request was answered by the store, so that nothing of it is still on its way.
    pub fn answered(self) {
        self.state.answers.fetch_add(1, Ordering::SeqCst);
    }
}

impl AttemptState {
    /// The state of a grant that came from elsewhere: who knows what of it is still on its way.
    pub(crate) fn handed_over() -> Arc<Self> {
        let state = Self::default();
        state.sends.store(1, Ordering::SeqCst);
        Arc::new(state)
    }

    /// Whether a request of the attempt may still be on its way to the store.
    pub(crate) fn may_be_in_flight(&self) -> bool {
        self.sends.load(Ordering::SeqCst) != self.answers.load(Ordering::SeqCst)
    }

    /// Notes that the grant reached its caller in time.
    pub(crate) fn accept(&self) {
        self.accepted.store(true, Ordering::SeqCst);
    }

    pub(crate) fn was_accepted(&self) -> bool {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Marks the grant as ended by its holder; true when an earlier release is still in doubt.
    pub(crate) fn begin_release(&self) -> bool {
        self.ended.store(true, Ordering::SeqCst);
        self.release_in_doubt.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn release_settled(&self) {
        self.release_in_doubt.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> Attempt {
        Attempt::new(ResourceName::parse("r").unwrap(), Ttl::parse(Duration::from_secs(1)).unwrap()).unwrap()
    }

    #[test]
    fn deadline_counts_from_the_first_send_of_any_clone() {
        let attempt = attempt();
        let ttl = Duration::from_secs(1);
        let first = attempt.begin_send(BootInstant::from_nanos(10), ttl).unwrap();
        let again = attempt.clone().begin_send(BootInstant::from_nanos(50), ttl).unwrap();
        assert_eq!(first.first_sent(), again.first_sent());
        assert!(attempt.state().may_be_in_flight());
        first.answered();
        assert!(attempt.state().may_be_in_flight(), "one of two requests was answered");
        again.answered();
        assert!(!attempt.state().may_be_in_flight());
        assert!(matches!(
            attempt.begin_send(BootInstant::from_nanos(1_000_000_010), ttl),
            Err(LeaseError::AttemptOver { .. })
        ));
    }

    #[test]
    fn an_ended_attempt_is_refused() {
        let attempt = attempt();
        attempt.clone().end();
        assert!(attempt.begin_send(BootInstant::from_nanos(1), Duration::from_secs(1)).is_err());
    }

    #[test]
    fn debug_keeps_the_secret() {
        let attempt = attempt();
        assert!(!format!("{attempt:?}").contains(&attempt.owner().reveal()));
    }
}
