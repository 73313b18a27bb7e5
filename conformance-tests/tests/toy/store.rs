//! The records of the toy store, and the steps that make a grant and end one by force.

use super::{Break, LONGEST, Toy, now};
use lease_core::{
    Attempt, BootInstant, Effect, ForceRelease, Forced, LeaseBackend as _, LeaseError, OwnerToken, ResourceName,
};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// How long a resource counts as just freed.
const SOON: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub struct Store {
    pub clients: u64,
    pub records: BTreeMap<String, Record>,
    pub counters: BTreeMap<String, u64>,
    pub spent: HashSet<OwnerToken>,
    pub last_value: u64,
}

impl Store {
    pub fn end_all_of(&mut self, client: u64) {
        for record in self.records.values_mut().filter(|record| record.client == client) {
            record.expires = now();
        }
    }
}

#[derive(Clone, Debug)]
pub struct Record {
    pub name: ResourceName,
    pub owner: OwnerToken,
    pub client: u64,
    pub holder: String,
    pub value: u64,
    pub since: BootInstant,
    pub expires: BootInstant,
    pub released: bool,
    pub renewed: bool,
    pub register: Option<String>,
}

impl Toy {
    /// The value of the attempt's grant, or nothing when it is held.
    pub(super) fn grant(&self, attempt: &Attempt, ttl: Duration, looked: bool) -> Result<Option<u64>, LeaseError> {
        let key = self.key(attempt.resource());
        let mut store = self.lock();
        let over = LeaseError::AttemptOver { resource: attempt.resource().clone(), reason: "it has ended" };
        if store.spent.contains(attempt.owner()) {
            return Err(over);
        }
        let last_value = store.last_value;
        let is_old = |record: &Record| self.is(Break::ContendersTtlCounts) && now() >= record.since.saturating_add(ttl);
        let live = |record: &&mut Record| self.is_live(record) && !looked && !is_old(record);
        let found = store.records.get_mut(&key).filter(live);
        if let Some(record) = found {
            if record.owner == *attempt.owner() && !self.is(Break::RepeatMakesAnotherGrant) {
                if self.is(Break::RepeatExtends) {
                    record.expires = now().saturating_add(ttl);
                }
                return Ok(Some(if self.is(Break::TokenReadLater) { last_value } else { record.value }));
            }
            if !self.takes_for_its_own(record, attempt) {
                if self.is(Break::HeldAttemptExtends) {
                    record.expires = now().saturating_add(ttl);
                }
                return Ok(None);
            }
        }
        let ended = store.records.get(&key).filter(|record| record.owner == *attempt.owner() && !self.is_live(record));
        if ended.is_some() && !self.is(Break::ReleasedAttemptIsGrantedAgain) {
            return Err(over);
        }
        if let Some(expired) = store.records.get(&key).filter(|record| !record.released && !looked)
            && !self.is(Break::TakeoverForgetsAttempt)
            && !self.is(Break::ForceForgetsAttempt)
        {
            let owner = expired.owner;
            store.spent.insert(owner);
        }
        let told_as_held = self.is(Break::HeldThoughJustGranted) && self.is_just_free(store.records.get(&key));
        let value = self.put(&mut store, key, attempt, ttl);
        Ok((!told_as_held).then_some(value))
    }

    fn takes_for_its_own(&self, record: &Record, attempt: &Attempt) -> bool {
        record.client == self.client && self.is(Break::ReentrantForOneClient)
            || record.holder == attempt.holder().as_str() && self.is(Break::ReentrantForOneLabel)
            || record.owner == *attempt.owner()
    }

    fn is_just_free(&self, before: Option<&Record>) -> bool {
        before.is_some_and(|r| r.client != self.client && now().saturating_since(r.expires) < SOON)
    }

    /// Makes the record of a new grant; its value.
    fn put(&self, store: &mut Store, key: String, attempt: &Attempt, ttl: Duration) -> u64 {
        let value = self.mint(store, &key, attempt.floor());
        let lasts = match self.broken {
            Some(Break::ExpiresEarly) => ttl / 2,
            Some(Break::LongestTtlOverflows) if ttl == LONGEST => Duration::ZERO,
            _ => ttl,
        };
        let register = store.records.get(&key).and_then(|record| record.register.clone());
        let record = Record {
            name: attempt.resource().clone(),
            owner: *attempt.owner(),
            client: self.client,
            holder: attempt.holder().as_str().to_owned(),
            value,
            since: now(),
            expires: now().saturating_add(lasts),
            released: false,
            renewed: false,
            register,
        };
        store.records.insert(key, record);
        value
    }

    /// That a value above the attempt's floor can be minted.
    pub(super) fn check_floor(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        if self.is(Break::FloorIsIgnored) {
            return Ok(());
        }
        if self.is(Break::FloorIsRefused) && attempt.floor() > 0 {
            let (resource, floor) = (attempt.resource().clone(), attempt.floor());
            return Err(LeaseError::BelowFloor { resource, value: 1, floor, effect: Effect::None });
        }
        self.limits().check_floor(attempt)
    }

    fn mint(&self, store: &mut Store, key: &str, floor: u64) -> u64 {
        let floor = if self.is(Break::FloorIsIgnored) { 0 } else { floor };
        store.last_value = store.last_value.max(floor) + 1;
        let own = store.counters.entry(key.to_owned()).or_default();
        *own += 1;
        match self.broken {
            Some(Break::TokenFromWallClock) => {
                let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
                wall.as_secs()
            }
            Some(Break::TokenOfTheClient) => self.counter.fetch_add(1, Ordering::SeqCst) + 1,
            Some(Break::TokenResetOnRelease | Break::CleanUpForgetsCounter) => *own,
            _ => store.last_value,
        }
    }

    /// Whether the attempt has the resource's grant.
    pub(super) fn is_granted(&self, attempt: &Attempt) -> bool {
        let store = self.lock();
        store.records.get(&self.key(attempt.resource())).is_some_and(|record| record.owner == *attempt.owner())
    }

    /// Whether the order names the grant that is live.
    pub(super) fn names(&self, order: &ForceRelease) -> bool {
        let store = self.lock();
        let live = store.records.get(&self.key(order.resource())).filter(|record| self.is_live(record));
        live.is_some_and(|record| record.value == order.value())
    }

    /// Ends a grant; `looked`: whichever it is, since it was looked at before.
    pub(super) fn force(&self, order: &ForceRelease, looked: bool) -> Forced {
        let mut store = self.lock();
        let Store { records, spent, .. } = &mut *store;
        match records.get_mut(&self.key(order.resource())).filter(|record| self.is_live(record)) {
            None => Forced::NotHeld,
            Some(record) if record.value != order.value() && !looked && !self.is(Break::ForceEndsAnyGrant) => {
                Forced::OtherGrant { value: record.value }
            }
            Some(record) => {
                if !self.is(Break::ForceForgetsAttempt) {
                    spent.insert(record.owner);
                }
                record.released = self.is(Break::ForceLooksLikeRelease);
                if !self.is(Break::ForceOnlyReports) {
                    record.expires = now();
                }
                Forced::Ended
            }
        }
    }
}
