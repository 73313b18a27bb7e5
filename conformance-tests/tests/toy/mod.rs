//! A lease backend in memory with one guarantee broken, or none: the honest twin.

mod breaks;
pub mod caught;
pub mod place;
mod session;
mod store;
pub mod subject;

pub use breaks::Break;

use lease_core::{
    Acquisition, Attempt, Authority, BootInstant, Claim, Claims, CleanUp, Clock, Description, Fence, FenceError,
    FencedRegister, ForceRelease, Forced, Held, Inspection, Lease, LeaseBackend, LeaseError, Limits, Listed,
    LossReason, NamePage, Release, Renewal, ResourceName, SharedClock, SystemClock,
};
use session::Session;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use store::{Record, Store};

/// One client of the toy store.
#[derive(Clone, Debug)]
pub struct Toy {
    store: Arc<Mutex<Store>>,
    broken: Option<Break>,
    client: u64,
    counter: Arc<AtomicU64>,
    session: Arc<Session>,
}

impl Toy {
    /// A new store with its first client.
    pub fn new(broken: Option<Break>) -> Self {
        Self { store: Arc::default(), broken, client: 0, counter: Arc::default(), session: Arc::default() }
    }

    /// One more client of the same store.
    pub fn another(&self) -> Self {
        let mut store = self.lock();
        store.clients += 1;
        let client = store.clients;
        drop(store);
        let holds = self.is(Break::GrantDiesWithItsClient).then(|| (Arc::clone(&self.store), client));
        let says_goodbye = self.is(Break::DropNeedsARuntime);
        let session = Arc::new(Session::new(holds, says_goodbye));
        Self { client, counter: Arc::default(), session, ..self.clone() }
    }

    fn is(&self, sabotage: Break) -> bool {
        self.broken == Some(sabotage)
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    fn key(&self, name: &ResourceName) -> String {
        let name = name.as_str();
        match self.broken {
            Some(Break::NameIsFolded) => name.to_lowercase(),
            Some(Break::NameIsTruncated) => name.chars().take(128).collect(),
            _ => name.to_owned(),
        }
    }

    fn is_live(&self, record: &Record) -> bool {
        !record.released && (self.is(Break::NoExpiry) || now() < record.expires)
    }

    /// Whether `owner` may act on the record.
    fn owns(&self, record: &Record, lease: &Lease, without: Break) -> bool {
        let by_client = without == Break::ReleaseWithoutOwner && self.is(Break::ReleaseByClient);
        record.owner == *lease.owner() || self.is(without) || by_client && record.client == self.client
    }

    fn granted_ttl(&self, attempt: &Attempt) -> Result<Duration, LeaseError> {
        let granted = self.limits().granted_ttl(attempt.ttl())?;
        if self.is(Break::TtlIsTruncated) && granted > Duration::from_secs(1) {
            return Ok(Duration::from_secs(granted.as_secs()));
        }
        if self.is(Break::TtlOfTheClient) {
            return Ok(*self.session.ttl.get_or_init(|| granted));
        }
        Ok(granted)
    }

    fn listed(&self, record: &Record) -> Listed {
        let holder = match self.broken {
            Some(Break::OwnerIsShown) => record.owner.reveal(),
            Some(Break::HolderIsNotShown) => "somebody".to_owned(),
            _ => record.holder.clone(),
        };
        let left = record.expires.saturating_since(now());
        Listed::new(record.name.clone(), holder, Some(record.value), left)
    }
}

/// The longest TTL.
const LONGEST: Duration = Duration::from_hours(1);

/// How long a step takes between a look and what is done after it.
const BETWEEN: Duration = Duration::from_millis(8);

fn now() -> BootInstant {
    SystemClock.now()
}

#[async_trait::async_trait]
impl LeaseBackend for Toy {
    fn description(&self) -> Description {
        Description::new("toy", "1".into(), "toy:".into())
    }

    fn claims(&self) -> Claims {
        let other = self.is(Break::ClaimsTheOtherFence);
        Claims::of(&[
            Claim::FencingToken,
            Claim::MintsAboveFloor,
            Claim::ListByPrefix,
            Claim::IdleNamesForgotten,
            Claim::LeaseSurvivesRestart,
            Claim::TokenSurvivesRestart,
        ])
        .and_if(!other, Claim::NativeFenceLiveOwner)
        .and_if(other, Claim::NativeFenceMark)
    }

    fn limits(&self) -> Limits {
        let millisecond = Duration::from_millis(1);
        let own = if self.is(Break::LimitsOfTheClient) { self.client } else { 0 };
        let call_timeout = Duration::from_millis(500 + own);
        Limits::new(millisecond, LONGEST, millisecond).with_call_timeout(call_timeout)
    }

    fn clock(&self) -> SharedClock {
        SystemClock::shared()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        assert!(!self.is(Break::AcquirePanics), "sabotaged");
        if self.is(Break::AcquireHangs) {
            std::future::pending::<()>().await;
        }
        let ttl = self.granted_ttl(attempt)?;
        self.check_floor(attempt)?;
        let sent = if self.is(Break::ReleasedAttemptIsGrantedAgain) || self.is(Break::AbandonDoesNothing) {
            now()
        } else {
            let sent = attempt.begin_send(now(), ttl)?;
            let first = sent.first_sent();
            sent.answered();
            first
        };
        let first_try = self.session.first_try(attempt.resource(), sent);
        let sent = if self.is(Break::DeadlineOfTheFirstTry) { first_try } else { sent };
        let mut looked = false;
        if self.is(Break::AcquireInTwoSteps) {
            let free = self.lock().records.get(&self.key(attempt.resource())).is_none_or(|r| !self.is_live(r));
            tokio::task::yield_now().await;
            looked = free;
        }
        let Some(value) = self.grant(attempt, ttl, looked)? else {
            return Ok(Acquisition::Held(Held::for_another(None)));
        };
        if self.is(Break::TaskPerGrant) {
            tokio::spawn(std::future::pending::<()>());
        }
        let token = attempt.token(Authority::parse("toy:1:0")?, value)?;
        let token = (!self.is(Break::NoTokenAtAll)).then_some(token);
        let late = if self.is(Break::DeadlineFarTooLate) { LONGEST } else { Duration::ZERO };
        let lease = Lease::granted(attempt, token, ttl, sent.saturating_add(late), self.clock());
        if self.is(Break::FloorIsIgnored) {
            return Ok(Acquisition::Acquired(lease));
        }
        lease_core::accept_grant(self, attempt, lease).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let sent = now();
        let grants = self.lock().counters.get(&self.key(lease.resource())).copied();
        if self.is(Break::SecondGrantIsNeverRenewed) && grants > Some(1) {
            std::future::pending::<()>().await;
        }
        let mut store = self.lock();
        let last_value = store.last_value;
        let ttl = lease.granted_ttl();
        let Some(record) = store.records.get_mut(&self.key(lease.resource())) else {
            return Ok(Renewal::Lost(LossReason::Gone));
        };
        let live = self.is_live(record)
            || self.is(Break::RenewRecreates) && !record.released
            || self.is(Break::RenewRevivesReleased) && record.released;
        if self.is(Break::RenewTakesWhatIsFree) && record.released && record.owner != *lease.owner() {
            (record.owner, record.released) = (*lease.owner(), false);
            record.expires = now().saturating_add(ttl);
            return Ok(Renewal::Renewed(lease.renewed(sent)));
        }
        if !live || self.is(Break::RenewsOnlyOnce) && record.renewed {
            return Ok(Renewal::Lost(LossReason::Expired));
        }
        if !self.owns(record, lease, Break::RenewWithoutOwner) {
            if self.is(Break::RenewExtendsAnyGrant) {
                record.expires = now().saturating_add(ttl);
            }
            return Ok(Renewal::Lost(LossReason::Superseded));
        }
        (record.renewed, record.released) = (true, false);
        record.expires = if self.is(Break::RenewShortens) {
            now().saturating_add(ttl / 4)
        } else {
            record.expires.max(now().saturating_add(ttl))
        };
        if self.is(Break::TokenReadLater) {
            record.value = last_value;
            drop(store);
            return Ok(Renewal::Renewed(with_value(lease, last_value)?));
        }
        Ok(Renewal::Renewed(lease.renewed(sent)))
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let release = lease.begin_release();
        let key = self.key(lease.resource());
        let mut store = self.lock();
        let mut ended = self.is(Break::ReleaseDoesNothing);
        if release.needs_tombstone() && !self.is(Break::ReleaseForgetsAttempt) {
            store.spent.insert(*lease.owner());
        }
        if let Some(record) = store.records.get_mut(&key)
            && self.owns(record, lease, Break::ReleaseWithoutOwner)
            && !self.is(Break::ReleaseDoesNothing)
            && !(self.is(Break::ReleaseMissesRenewed) && record.renewed)
        {
            ended = record.released || self.is_live(record) || self.is(Break::ExpiredReleaseIsReleased);
            record.released = ended;
            record.expires = if ended { now() } else { record.expires };
        }
        if self.is(Break::TokenResetOnRelease) {
            store.counters.remove(&key);
        }
        if self.is(Break::ReleaseForgetsItself) {
            store.records.remove(&key);
        }
        if self.is(Break::ReleaseEndsAllOfItsClient) {
            store.end_all_of(self.client);
        }
        Ok(release.answered(ended))
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        if self.is(Break::AbandonDoesNothing) {
            return Ok(());
        }
        attempt.end();
        if self.is(Break::AbandonInTwoSteps) && !self.is_granted(attempt) {
            tokio::time::sleep(BETWEEN).await;
            self.lock().spent.insert(*attempt.owner());
            return Ok(());
        }
        let mut store = self.lock();
        if self.is(Break::AbandonOnlyDeletes) {
            let key = self.key(attempt.resource());
            if store.records.get(&key).is_some_and(|record| record.owner == *attempt.owner()) {
                store.records.remove(&key);
            }
            return Ok(());
        }
        store.spent.insert(*attempt.owner());
        if let Some(record) = store.records.get_mut(&self.key(attempt.resource()))
            && (record.owner == *attempt.owner() || self.is(Break::AbandonEndsAnyGrant))
        {
            record.released = true;
        }
        Ok(())
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        order
            .carry_out(async {
                let names_it = self.is(Break::ForceInTwoSteps) && self.names(order);
                if names_it {
                    tokio::time::sleep(BETWEEN).await;
                }
                Ok(self.force(order, names_it))
            })
            .await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let store = self.lock();
        Ok(match store.records.get(&self.key(resource)) {
            Some(record) if self.is_live(record) => Inspection::held(self.listed(record)),
            record => Inspection::free(record.map(|record| record.value)),
        })
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        let store = self.lock();
        let from = after.map_or("", |name| name.as_str());
        let skip = usize::from(self.is(Break::ListSkipsAPage) && after.is_some());
        let mut live = store
            .records
            .values()
            .filter(|r| self.is_live(r) && r.name.as_str().starts_with(prefix) && r.name.as_str() > from)
            .skip(skip);
        let grants: Vec<Listed> = live.by_ref().take(limit as usize).map(|record| self.listed(record)).collect();
        let more = live.next().is_some();
        let next_after = grants.last().filter(|_| more).map(|grant| grant.resource.clone());
        Ok(NamePage { grants, next_after })
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        let mut store = self.lock();
        let before = store.records.len();
        let quiet = |record: &Record| self.is(Break::CleanUpEndsQuietGrants) && !record.renewed;
        store.records.retain(|_, r| self.is_live(r) && !quiet(r) || r.register.is_some());
        if self.is(Break::CleanUpForgetsCounter) {
            let live: HashSet<String> = store.records.keys().cloned().collect();
            store.counters.retain(|key, _| live.contains(key));
        }
        Ok(CleanUp::removed((before - store.records.len()) as u64))
    }

    fn fence(&self) -> Fence<'_> {
        Fence::LiveOwner(self)
    }
}

/// The same grant under another value: what no honest backend can do.
fn with_value(lease: &Lease, value: u64) -> Result<Lease, LeaseError> {
    let token = lease.token().unwrap();
    let changed = lease_core::FencingToken::new(token.authority().clone(), value, token.grant())?;
    let json = serde_json::to_string(&lease.clone().into_hand_over()).unwrap();
    let json = json.replace(&token.to_string(), &changed.to_string());
    let hand_over: lease_core::HandOver = serde_json::from_str(&json).unwrap();
    hand_over.into_lease(SystemClock::shared())
}

#[async_trait::async_trait]
impl FencedRegister for Toy {
    async fn write(&self, lease: &Lease, value: &str) -> Result<(), FenceError> {
        let mut store = self.lock();
        if let Some(record) = store.records.get_mut(&self.key(lease.resource())) {
            let owns = self.is_live(record) && record.owner == *lease.owner();
            if owns || self.is(Break::FenceDoesNotCheck) {
                record.register = Some(value.to_owned());
                return Ok(());
            }
        }
        Err(FenceError::Refused { resource: lease.resource().clone() })
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<String>, LeaseError> {
        let store = self.lock();
        Ok(store.records.get(&self.key(resource)).and_then(|record| record.register.clone()))
    }
}
