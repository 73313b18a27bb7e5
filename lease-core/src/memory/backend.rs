//! Leases in memory. Each operation is one locked step: read it as the specification.

use super::MemoryStore;
use super::store::{Ended, Inner, Record, SWEEP_LEAST};
use crate::{
    Acquisition, Attempt, Claim, Claims, CleanUp, Description, Fence, FenceError, FencedRegister, FencingToken,
    ForceRelease, Forced, Held, Inspection, Lease, LeaseBackend, LeaseError, Limits, Listed, LossReason, NamePage,
    Release, Renewal, ResourceName, SharedClock, accept_grant,
};
use crate::{BootInstant, Ttl};
use std::time::Duration;

/// A lease backend on a [`MemoryStore`].
#[derive(Clone, Debug)]
pub struct MemoryBackend {
    store: MemoryStore,
}

impl MemoryBackend {
    /// A backend on a new store, on real time.
    ///
    /// # Errors
    /// [`LeaseError::Entropy`] when the operating system gives no random numbers.
    pub fn new() -> Result<Self, LeaseError> {
        MemoryStore::new().map(Self::on)
    }

    /// A backend on `store`, as one more client of it.
    #[must_use]
    pub fn on(store: MemoryStore) -> Self {
        Self { store }
    }

    fn now(&self) -> BootInstant {
        self.store.clock.now()
    }

    fn grant(&self, attempt: &Attempt, granted_ttl: Duration) -> Result<Result<u64, Held>, LeaseError> {
        let mut state = self.store.lock();
        let now = self.now();
        state.tombstones.retain(|_, until| now < *until);
        if state.tombstones.contains_key(attempt.owner()) {
            return Err(over(attempt));
        }
        let name = attempt.resource().as_str();
        let register = match state.records.get(name) {
            Some(record) if record.owner == *attempt.owner() => {
                return if record.is_live(now) { Ok(Ok(record.value)) } else { Err(over(attempt)) };
            }
            Some(record) if record.is_live(now) => {
                return Ok(Err(Held::for_another(Some(record.expires.saturating_since(now)))));
            }
            record => record.and_then(|r| r.register.clone()),
        };
        if let Some(expired) = state.records.get(name).filter(|record| record.ended.is_none()) {
            // The record says of the newer grant from here on that its attempt is over.
            let (owner, lasted) = (expired.owner, expired.expires.saturating_since(expired.renewed));
            state.tombstones.insert(owner, tombstone_until(now, lasted));
        }
        let value = state.last_value.max(attempt.floor()).saturating_add(1);
        FencingToken::new(self.store.authority.clone(), value, attempt.grant())?;
        state.last_value = value;
        let record = Record {
            owner: *attempt.owner(),
            holder: attempt.holder().as_str().to_owned(),
            value,
            expires: now.saturating_add(granted_ttl),
            granted: now,
            renewed: now,
            ended: None,
            register,
        };
        state.records.insert(name.to_owned(), record);
        if state.records.len() >= state.sweep_at {
            sweep(&mut state, now);
        }
        Ok(Ok(value))
    }

    fn force(&self, order: &ForceRelease) -> Forced {
        let mut state = self.store.lock();
        let now = self.now();
        let state = &mut *state;
        match state.records.get_mut(order.resource().as_str()).filter(|record| record.is_live(now)) {
            None => Forced::NotHeld,
            Some(record) if record.value != order.value() => Forced::OtherGrant { value: record.value },
            Some(record) => {
                // Nobody here knows what the holder's attempt still has on its way, nor its TTL but for what it asked for last.
                let granted_ttl = record.expires.saturating_since(record.renewed);
                state.tombstones.insert(record.owner, tombstone_until(now, granted_ttl));
                record.ended = Some(Ended::Forced);
                Forced::Ended
            }
        }
    }
}

fn over(attempt: &Attempt) -> LeaseError {
    LeaseError::AttemptOver { resource: attempt.resource().clone(), reason: "its grant has ended" }
}

/// How long the end of an attempt is remembered: as long as a request of it could still make a grant that counts.
fn tombstone_until(now: BootInstant, ttl: Duration) -> BootInstant {
    now.saturating_add(ttl.saturating_mul(2))
}

/// Removes idle records. The counter is the whole store's, so forgetting a name forgets no value. A record that carries data stays.
fn sweep(state: &mut Inner, now: BootInstant) -> usize {
    let before = state.records.len();
    state.records.retain(|_, record| record.is_live(now) || record.register.is_some());
    state.tombstones.retain(|_, until| now < *until);
    // The next sweep by itself comes when the store has doubled, so that each grant pays a constant share.
    state.sweep_at = state.records.len().saturating_mul(2).max(SWEEP_LEAST);
    before.saturating_sub(state.records.len())
}

fn loss(state: &Inner, lease: &Lease, now: BootInstant) -> Option<LossReason> {
    // The value is a second line: an owner token is of one grant only.
    let is_its = |record: &Record| {
        record.owner == *lease.owner() && lease.token().is_none_or(|token| token.value() == record.value)
    };
    match state.records.get(lease.resource().as_str()) {
        None => Some(LossReason::Gone),
        Some(record) if !is_its(record) => Some(LossReason::Superseded),
        Some(Record { ended: Some(Ended::Released), .. }) => Some(LossReason::Released),
        Some(Record { ended: Some(Ended::Forced), .. }) => Some(LossReason::Forced),
        Some(record) if now >= record.expires => Some(LossReason::Expired),
        Some(_) => None,
    }
}

fn listed(name: ResourceName, record: &Record, now: BootInstant) -> Listed {
    Listed::new(name, record.holder.clone(), Some(record.value), record.expires.saturating_since(now))
        .with_times(Some(now.saturating_since(record.granted)), Some(now.saturating_since(record.renewed)))
}

#[async_trait::async_trait]
impl LeaseBackend for MemoryBackend {
    fn description(&self) -> Description {
        Description::new("memory", env!("CARGO_PKG_VERSION").into(), "memory:".into())
    }

    fn claims(&self) -> Claims {
        Claims::of(&[
            Claim::FencingToken,
            Claim::MintsAboveFloor,
            Claim::NativeFenceLiveOwner,
            Claim::ListByPrefix,
            Claim::IdleNamesForgotten,
        ])
    }

    fn limits(&self) -> Limits {
        Limits::new(Duration::from_millis(1), Ttl::MAX, Duration::from_millis(1))
    }

    fn clock(&self) -> SharedClock {
        self.store.clock.clone()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let granted_ttl = self.limits().granted_ttl(attempt.ttl())?;
        self.limits().check_floor(attempt)?;
        let sent = attempt.begin_send(self.now(), granted_ttl)?;
        let first_sent = sent.first_sent();
        let answer = self.grant(attempt, granted_ttl);
        sent.answered();
        let value = match answer? {
            Ok(value) => value,
            Err(held) => return Ok(Acquisition::Held(held)),
        };
        let token = attempt.token(self.store.authority.clone(), value)?;
        let lease = Lease::granted(attempt, Some(token), granted_ttl, first_sent, self.clock());
        accept_grant(self, attempt, lease).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let sent = self.now();
        let mut state = self.store.lock();
        let now = self.now();
        if let Some(reason) = loss(&state, lease, now) {
            return Ok(Renewal::Lost(reason));
        }
        if let Some(record) = state.records.get_mut(lease.resource().as_str()) {
            record.expires = record.expires.max(now.saturating_add(lease.granted_ttl()));
            record.renewed = now;
        }
        Ok(Renewal::Renewed(lease.renewed(sent)))
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let release = lease.begin_release();
        let mut state = self.store.lock();
        let now = self.now();
        if release.needs_tombstone() {
            state.tombstones.insert(*lease.owner(), tombstone_until(now, lease.granted_ttl()));
        }
        let loss = loss(&state, lease, now);
        if loss.is_none()
            && let Some(record) = state.records.get_mut(lease.resource().as_str())
        {
            record.ended = Some(Ended::Released);
        }
        let ended = matches!(loss, None | Some(LossReason::Released));
        Ok(release.answered(ended))
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        attempt.end();
        let granted_ttl = self.limits().granted_ttl(attempt.ttl())?;
        let mut state = self.store.lock();
        let now = self.now();
        state.tombstones.insert(*attempt.owner(), tombstone_until(now, granted_ttl));
        if let Some(record) = state.records.get_mut(attempt.resource().as_str())
            && record.owner == *attempt.owner()
            // A grant that has expired was lost, and a later release must say so.
            && record.is_live(now)
        {
            record.ended = Some(Ended::Released);
        }
        Ok(())
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        order.carry_out(async { Ok(self.force(order)) }).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let state = self.store.lock();
        let now = self.now();
        Ok(match state.records.get(resource.as_str()) {
            Some(record) if record.is_live(now) => Inspection::held(listed(resource.clone(), record, now)),
            record => Inspection::free(record.map(|r| r.value)),
        })
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        use std::ops::Bound;
        let state = self.store.lock();
        let now = self.now();
        let from = match after {
            Some(name) if name.as_str() >= prefix => Bound::Excluded(name.as_str()),
            _ => Bound::Included(prefix),
        };
        let mut live = state
            .records
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(prefix))
            .filter(|(_, record)| record.is_live(now));
        let most = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
        let mut grants = Vec::new();
        for (name, record) in live.by_ref().take(most) {
            grants.push(listed(ResourceName::parse(name)?, record, now));
        }
        let more = live.next().is_some();
        let next_after = if more { grants.last().map(|grant| grant.resource.clone()) } else { None };
        Ok(NamePage { grants, next_after })
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        let removed = sweep(&mut self.store.lock(), self.now());
        Ok(CleanUp::removed(u64::try_from(removed).unwrap_or(u64::MAX)))
    }

    fn fence(&self) -> Fence<'_> {
        Fence::LiveOwner(self)
    }
}

#[async_trait::async_trait]
impl FencedRegister for MemoryBackend {
    async fn write(&self, lease: &Lease, value: &str) -> Result<(), FenceError> {
        let mut state = self.store.lock();
        if loss(&state, lease, self.now()).is_some() {
            return Err(FenceError::Refused { resource: lease.resource().clone() });
        }
        if let Some(record) = state.records.get_mut(lease.resource().as_str()) {
            record.register = Some(value.to_owned());
        }
        Ok(())
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<String>, LeaseError> {
        Ok(self.store.lock().records.get(resource.as_str()).and_then(|record| record.register.clone()))
    }
}
