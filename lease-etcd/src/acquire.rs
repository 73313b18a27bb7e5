//! How a grant is made: an etcd lease first, then one transaction that attaches the record to it.
//!
//! Each request for an etcd lease has an id of its own, and each transaction uses only the etcd lease that its own call made. So an etcd
//! lease that has ended is never made anew, and a transaction that was held up on its way for longer than that cannot make a grant: etcd
//! refuses it. The first request's id is derived from the grant's id, so that `renew` knows it without looking; a repeat
//! draws one.

use crate::backend::{ROUNDS, unsettled, whole_seconds};
use crate::keys::first_lease;
use crate::sabotage::Flaw;
use crate::wire::{Look, Present, Subject, foreign};
use crate::{EtcdBackend, error};
use lease_core::{Acquisition, Attempt, Effect, GrantId, Held, Lease, LeaseError, Operation, ResourceName};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

impl EtcdBackend {
    /// One try, from the first send to the definite answer.
    pub(crate) async fn acquire_once(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let limits = lease_core::LeaseBackend::limits(self);
        limits.check_floor(attempt)?;
        let asked = limits.granted_ttl(attempt.ttl())?;
        let now = self.options.clock.now();
        let sent = attempt.begin_send(now, asked)?;
        let mut call = Call { backend: self, attempt, asked, first: sent.first_sent() == now, made: None };
        let look_first = !call.first || self.busy.is_busy(attempt.resource());
        let answer = call.run(look_first).await;
        let first_sent = sent.first_sent();
        if is_over(&answer) {
            sent.answered();
        }
        Ok(match answer? {
            Answer::Held(held) => Acquisition::Held(held),
            Answer::Granted(grant) => {
                let token = attempt.token(grant.authority, grant.value)?;
                let clock = self.options.clock.clone();
                Acquisition::Acquired(Lease::granted(attempt, Some(token), grant.ttl, first_sent, clock))
            }
        })
    }
}

/// Whether nothing of a call is still on its way.
fn is_over<T>(answer: &Result<T, LeaseError>) -> bool {
    answer.as_ref().err().is_none_or(error::was_answered)
}

struct Grant {
    value: u64,
    ttl: Duration,
    authority: lease_core::Authority,
}

enum Answer {
    Granted(Grant),
    Held(Held),
}

/// One call of `acquire`.
struct Call<'a> {
    backend: &'a EtcdBackend,
    attempt: &'a Attempt,
    asked: Duration,
    /// Whether no request of this attempt was sent before.
    first: bool,
    /// The etcd lease that this call made, with its TTL.
    made: Option<(i64, Duration)>,
}

impl Call<'_> {
    async fn run(&mut self, look_first: bool) -> Result<Answer, LeaseError> {
        let answer = self.rounds(look_first).await;
        self.backend.busy.note(self.attempt.resource(), matches!(answer, Ok(Answer::Held(_))));
        if let Some((etcd_lease, _)) = self.made.take() {
            // No transaction of another call uses it. If this call's made a grant after all, that ends too.
            if is_over(&answer) {
                drop(self.backend.store.revoke(Operation::Acquire, etcd_lease).await);
            }
        }
        answer
    }

    async fn rounds(&mut self, look_first: bool) -> Result<Answer, LeaseError> {
        let backend = self.backend;
        let subject = Subject::of_attempt(self.attempt);
        let mut incarnation = Some(backend.last_incarnation());
        if look_first {
            let look = backend.look(Operation::Acquire, subject).await?;
            if let Some(answer) = self.judge(&look).await? {
                return Ok(answer);
            }
            incarnation = look.incarnation;
        }
        for _ in 0..ROUNDS {
            let history = match incarnation.take() {
                Some(history) => history,
                // It vanished: the namespace was wiped. Its tokens get a new authority.
                None => backend.incarnate(Operation::Acquire).await?,
            };
            check_incarnation(&history, &backend.wire.keys.incarnation())?;
            backend.saw_incarnation(&history);
            let (etcd_lease, ttl) = self.own_lease().await?;
            // Ends here if the attempt was abandoned meanwhile.
            let sent = self.attempt.begin_send(backend.options.clock.now(), ttl)?;
            let txn = backend.wire.acquire(self.attempt, etcd_lease, whole_seconds(ttl), &history);
            let reply = backend.store.txn(Operation::Acquire, txn).await;
            if is_over(&reply) {
                sent.answered();
            }
            let Some(reply) = reply? else {
                return Err(self.over("its etcd lease ended before the grant could be made"));
            };
            let look = Look::read(&reply);
            if reply.succeeded() {
                let mut value = reply.header().map_or(0, etcd_client::ResponseHeader::revision);
                if backend.wire.sabotage.has(Flaw::TokenIgnoresRevision) {
                    value = i64::try_from(look.raft_term).unwrap_or_default();
                }
                let authority = self.authority(look.cluster, &history)?;
                // It is the grant's from now on.
                self.made = None;
                return Ok(Answer::Granted(Grant { value: u64::try_from(value).unwrap_or_default(), ttl, authority }));
            }
            if let Some(answer) = self.judge(&look).await? {
                return Ok(answer);
            }
            incarnation = look.incarnation;
        }
        Err(unsettled(Operation::Acquire, Effect::None))
    }

    /// What was found decides, unless the resource is free for this attempt: then `None`.
    async fn judge(&self, look: &Look) -> Result<Option<Answer>, LeaseError> {
        if look.spent.is_some() {
            return Err(self.over("it was released, abandoned or ended by force"));
        }
        if let Some(record) = look.present.own(self.attempt.owner()) {
            return Ok(Some(Answer::Granted(Grant {
                value: record.value,
                ttl: record.ttl,
                // As it was when the grant was made: repeating an attempt finds the same token.
                authority: self.authority(look.cluster, &record.incarnation)?,
            })));
        }
        match &look.present {
            Present::Nothing => Ok(None),
            Present::Foreign => Err(foreign(self.attempt.resource())),
            Present::Record(record) => {
                // Only a hint: a failure to get it changes nothing.
                let left = self.backend.store.remaining(Operation::Acquire, record.etcd_lease).await;
                Ok(Some(Answer::Held(Held::for_another(left.unwrap_or_default()))))
            }
        }
    }

    /// The etcd lease of this call.
    async fn own_lease(&mut self) -> Result<(i64, Duration), LeaseError> {
        if let Some(made) = self.made {
            return Ok(made);
        }
        for round in 0..ROUNDS {
            let derived = self.first && round == 0;
            let id = first_lease(if derived { self.attempt.grant() } else { GrantId::random()? });
            let ttl = whole_seconds(self.asked);
            if let Some(granted) = self.backend.store.grant(Operation::Acquire, id, ttl).await? {
                let made = (id, granted.ttl);
                self.made = Some(made);
                self.check_floor(granted.revision)?;
                return Ok(made);
            }
        }
        Err(unsettled(Operation::Acquire, Effect::None))
    }

    /// A store that is behind the floor has gone back, so no grant is tried. A transaction cannot compare the store's revision, which only grows, so
    /// what has gone back since this look is found by `accept_grant`, and given up.
    fn check_floor(&self, revision: u64) -> Result<(), LeaseError> {
        let floor = self.attempt.floor();
        if revision >= floor {
            return Ok(());
        }
        let (resource, effect) = (self.attempt.resource().clone(), Effect::None);
        Err(LeaseError::BelowFloor { resource, value: revision.saturating_add(1), floor, effect })
    }

    /// The cluster's id is a part: a cluster that was restored from a snapshot has another one.
    fn authority(&self, cluster: u64, incarnation: &str) -> Result<lease_core::Authority, LeaseError> {
        self.backend.options.authority("etcd", &format!("{cluster:x}-{incarnation}"))
    }

    fn over(&self, reason: &'static str) -> LeaseError {
        LeaseError::AttemptOver { resource: self.attempt.resource().clone(), reason }
    }
}

/// Only what this backend writes is taken for an incarnation.
fn check_incarnation(text: &str, key: &str) -> Result<(), LeaseError> {
    if GrantId::from_hex(text).is_some() {
        return Ok(());
    }
    Err(LeaseError::NotSetUp {
        reason: format!("the value of {key} is no incarnation of this backend"),
        advice: "choose another namespace, or remove that key".into(),
        source: None,
    })
}

/// Which resources were held when last seen, roughly: for those it is cheaper to look before an etcd lease is made. A wrong
/// hint costs one request, nothing else.
#[derive(Debug)]
pub(crate) struct BusyHints([AtomicBool; 256]);

impl Default for BusyHints {
    fn default() -> Self {
        Self([const { AtomicBool::new(false) }; 256])
    }
}

impl BusyHints {
    fn slot(&self, resource: &ResourceName) -> Option<&AtomicBool> {
        let mut hasher = DefaultHasher::new();
        resource.hash(&mut hasher);
        self.0.get(usize::from(hasher.finish().to_le_bytes()[0]))
    }

    fn is_busy(&self, resource: &ResourceName) -> bool {
        self.slot(resource).is_some_and(|slot| slot.load(Ordering::Relaxed))
    }

    fn note(&self, resource: &ResourceName, busy: bool) {
        if let Some(slot) = self.slot(resource) {
            slot.store(busy, Ordering::Relaxed);
        }
    }
}
