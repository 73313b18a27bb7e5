//! The lease backend.

use crate::acquire::BusyHints;
use crate::claims::{self, Facts};
use crate::client::Store;
use crate::keys::{Keys, first_lease, marker_lease};
use crate::sabotage::{Flaw, Sabotage};
use crate::wire::{self, Look, Marker, Present, Record, Spent, Subject, Wire};
use crate::{EtcdConfig, error, look};
use etcd_client::{KeyValue, TxnResponse};
use lease_core::{
    Acquisition, Attempt, Claims, CleanUp, ConnectOptions, Description, Effect, Fence, ForceRelease, Forced,
    Inspection, Lease, LeaseBackend, LeaseError, Limits, LossReason, NamePage, Operation, Release, Renewal,
    ResourceName, SharedClock, accept_grant, bounded,
};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// A marker outlives whatever is on its way by as much as this, where twice the TTL is less.
const LEAST_MARKER: Duration = Duration::from_secs(10);
/// A released grant's own etcd lease may linger, with the marker of the release, if its TTL is no longer than this.
const LONGEST_LINGER: Duration = Duration::from_mins(1);
/// How often an operation looks again after it found that something has just changed.
pub(crate) const ROUNDS: u32 = 4;

/// Leases in etcd: one etcd lease and one key per grant. Clones share the connection.
///
/// # Cancel safety
/// As [`LeaseBackend`] says. A dropped `acquire` can leave an etcd lease behind until its TTL ends, `release`, `abandon` and `force_release` a
/// marker of at most twice the TTL or 10 s.
#[derive(Clone, Debug)]
pub struct EtcdBackend {
    pub(crate) store: Store,
    pub(crate) wire: Arc<Wire>,
    pub(crate) options: ConnectOptions,
    pub(crate) busy: Arc<BusyHints>,
    /// The incarnation as it was seen last; each grant's transaction checks it.
    incarnation: Arc<RwLock<String>>,
    facts: Facts,
    address: String,
}

impl EtcdBackend {
    /// Connects to `url`; see [the crate's page](crate) for its form.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] and its like for the URL, before any I/O; [`LeaseError::Unreachable`],
    /// [`LeaseError::LoginRefused`], [`LeaseError::MissingPrivilege`], or a time-out.
    ///
    /// # Cancel safety
    /// At most an etcd lease of the shortest TTL is left behind, and the namespace's incarnation.
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        Self::connect_with(EtcdConfig::parse(url)?).await
    }

    /// Connects with a parsed configuration.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(config: EtcdConfig) -> Result<Self, LeaseError> {
        Self::connect_sabotaged(config, Sabotage::default()).await
    }

    /// Connects, and leaves out the checks that `edits` name: each as `(name, "")`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`LeaseError::InvalidConfig`] for a check that does not exist.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn connect_edited(url: &str, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let sabotage = Sabotage::parse(edits, crate::sabotage::BACKEND)?;
        Self::connect_sabotaged(EtcdConfig::parse(url)?, sabotage).await
    }

    async fn connect_sabotaged(config: EtcdConfig, sabotage: Sabotage) -> Result<Self, LeaseError> {
        let keys = Keys::of(&config.options);
        let connecting = async {
            let store = Store::connect(&config, keys.leases()).await?;
            let backend = Self {
                facts: Facts::read(&store).await?,
                store,
                wire: Arc::new(Wire { keys, sabotage }),
                address: config.address(),
                options: config.options.clone(),
                busy: Arc::default(),
                incarnation: Arc::default(),
            };
            // Shows at once whether the account may write here.
            backend.incarnate(Operation::Connect).await?;
            Ok(backend)
        };
        let operation = Operation::Connect;
        bounded(config.options.connect_timeout, operation, error::in_doubt(operation), connecting).await
    }

    /// Removes everything that lease backends have in this namespace: for tests and decommissioning. Live grants end, and the next
    /// grant has another authority.
    ///
    /// # Errors
    /// As the store says.
    ///
    /// # Cancel safety
    /// A part may have been removed.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        let (prefix, spent) = (self.wire.keys.leases(), self.wire.keys.spent_prefix());
        let ours = |kv: &KeyValue| kv.key().starts_with(spent.as_bytes()) || Record::read(kv).is_some();
        look::purge(&self.store, &prefix, self.options.call_timeout, ours).await
    }

    /// The incarnation of this namespace, made if there is none.
    pub(crate) async fn incarnate(&self, operation: Operation) -> Result<String, LeaseError> {
        let fresh = lease_core::GrantId::random()?.to_hex();
        let reply = self.store.plain_txn(operation, self.wire.incarnate(&fresh)).await?;
        let incarnation = wire::text_at(&reply, 0).unwrap_or(fresh);
        self.saw_incarnation(&incarnation);
        Ok(incarnation)
    }

    pub(crate) fn last_incarnation(&self) -> String {
        self.incarnation.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn saw_incarnation(&self, incarnation: &str) {
        let mut last = self.incarnation.write().unwrap_or_else(PoisonError::into_inner);
        if *last != incarnation {
            incarnation.clone_into(&mut last);
        }
    }

    /// Runs an operation within the call limit.
    pub(crate) async fn within<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        self.store.within(self.options.call_timeout, operation, call).await
    }

    pub(crate) async fn look(&self, operation: Operation, subject: Subject<'_>) -> Result<Look, LeaseError> {
        let reply = self.store.plain_txn(operation, self.wire.look(subject)).await?;
        Ok(Look::read(&reply))
    }

    /// The keep-alive comes first and the key is read after it: a key that is still there has been there all the time, since a grant's
    /// key is never made twice. The other way round it could vanish in between.
    async fn extend(&self, lease: &Lease, subject: Subject<'_>) -> Result<Renewal, LeaseError> {
        let first = first_lease(subject.grant);
        let mut etcd_lease = first;
        for _ in 0..ROUNDS {
            let kept = self.store.keep_alive(Operation::Renew, etcd_lease).await?;
            if self.wire.sabotage.has(Flaw::RenewIgnoresKey) {
                let answer = kept.map(|kept| Renewal::Renewed(lease.renewed(kept.sent)));
                return Ok(answer.unwrap_or(Renewal::Lost(LossReason::Expired)));
            }
            let look = self.look(Operation::Renew, subject).await?;
            let record = match &look.present {
                Present::Record(record) if self.wire.sabotage.has(Flaw::RenewIgnoresOwner) => Some(record),
                _ => live_record(&look, lease),
            };
            let Some(record) = record else {
                return Ok(Renewal::Lost(loss(&look, lease)));
            };
            match kept {
                // A member that lost the leadership without knowing can go on answering keep-alives that no longer count. An
                // equal term shows that whoever took this one still led when a majority confirmed the read.
                Some(kept) if record.etcd_lease == etcd_lease && kept.raft_term == look.raft_term => {
                    return Ok(Renewal::Renewed(lease.renewed(kept.sent)));
                }
                _ => {}
            }
            if record.etcd_lease != first && etcd_lease == first {
                // The grant was made by a repeat; what the first request of the attempt left serves nothing.
                drop(self.store.revoke(Operation::Renew, first).await);
            }
            etcd_lease = record.etcd_lease;
        }
        Err(unsettled(Operation::Renew, Effect::Unknown))
    }

    async fn end(&self, lease: &Lease, subject: Subject<'_>, needs_tombstone: bool) -> Result<bool, LeaseError> {
        if needs_tombstone {
            return self.end_apart(lease, subject, marker_ttl(lease.granted_ttl())).await;
        }
        if lease.granted_ttl() > LONGEST_LINGER {
            return self.end_apart(lease, subject, LEAST_MARKER).await;
        }
        let mut etcd_lease = first_lease(subject.grant);
        for _ in 0..ROUNDS {
            let txn = self.wire.release(lease, subject, Marker::OnOwnLease(etcd_lease));
            let Some(reply) = self.store.txn(Operation::Release, txn).await? else {
                return Err(unsettled(Operation::Release, Effect::None));
            };
            let look = Look::read(&reply);
            match live_record(&look, lease) {
                _ if reply.succeeded() => return Ok(true),
                // Somebody took the lease off: a marker on none would stay for ever.
                Some(record) if record.etcd_lease == 0 => return self.end_apart(lease, subject, LEAST_MARKER).await,
                Some(record) if record.etcd_lease != etcd_lease => etcd_lease = record.etcd_lease,
                _ => return Ok(look.spent == Some(Spent::Ended)),
            }
        }
        Err(unsettled(Operation::Release, Effect::None))
    }

    /// Ends the grant with a marker on an etcd lease of its own.
    async fn end_apart(&self, lease: &Lease, subject: Subject<'_>, ttl: Duration) -> Result<bool, LeaseError> {
        let marker = Marker::OnLease(self.ensure_marker(Operation::Release, subject, ttl).await?);
        let txn = self.wire.release(lease, subject, marker);
        let Some(reply) = self.store.txn(Operation::Release, txn).await? else {
            return Err(unsettled(Operation::Release, Effect::None));
        };
        // The marker stands; what follows only leaves less behind.
        self.revoke_left(Operation::Release, subject, &reply).await;
        Ok(reply.succeeded() || Look::read(&reply).spent == Some(Spent::Ended))
    }

    /// Makes sure that the marker's etcd lease lives for a whole `ttl` from now.
    pub(crate) async fn ensure_marker(
        &self,
        operation: Operation,
        subject: Subject<'_>,
        ttl: Duration,
    ) -> Result<i64, LeaseError> {
        let id = marker_lease(subject.grant);
        for _ in 0..ROUNDS {
            if self.store.grant(operation, id, whole_seconds(ttl)).await?.is_some()
                || self.store.keep_alive(operation, id).await?.is_some()
            {
                return Ok(id);
            }
        }
        Err(unsettled(operation, Effect::None))
    }

    async fn give_up(&self, subject: Subject<'_>, ttl: Duration) -> Result<(), LeaseError> {
        let operation = Operation::Abandon;
        let marker = self.ensure_marker(operation, subject, marker_ttl(ttl)).await?;
        let Some(reply) = self.store.txn(operation, self.wire.abandon(subject, marker)).await? else {
            return Err(unsettled(operation, Effect::None));
        };
        // From here on nothing of the attempt can become a grant; what follows only leaves less behind.
        self.revoke_left(operation, subject, &reply).await;
        Ok(())
    }

    /// Revokes what an attempt that is over has left: the etcd lease of the record that `reply` deleted, and that of its first request.
    /// Should it fail, their TTL ends them.
    pub(crate) async fn revoke_left(&self, operation: Operation, subject: Subject<'_>, reply: &TxnResponse) {
        let first = first_lease(subject.grant);
        let deleted = wire::deleted_lease(reply).filter(|lease| *lease != first);
        for etcd_lease in deleted.into_iter().chain([first]) {
            drop(self.store.revoke(operation, etcd_lease).await);
        }
    }
}

/// The record, while it is this very grant's: owner and revision are its own.
fn live_record<'a>(look: &'a Look, lease: &Lease) -> Option<&'a Record> {
    let value = lease.token().map(lease_core::FencingToken::value);
    look.present.own(lease.owner()).filter(|record| Some(record.value) == value)
}

fn loss(look: &Look, lease: &Lease) -> LossReason {
    match &look.present {
        _ if look.spent == Some(Spent::Ended) => LossReason::Released,
        _ if look.spent == Some(Spent::Forced) => LossReason::Forced,
        Present::Record(_) => LossReason::Superseded,
        Present::Nothing if lease.is_past_deadline() => LossReason::Expired,
        // Before its time: its etcd lease was revoked, or its key was deleted.
        Present::Nothing | Present::Foreign => LossReason::Gone,
    }
}

/// As long as a request of the attempt could still make a grant that counts.
pub(crate) fn marker_ttl(ttl: Duration) -> Duration {
    ttl.saturating_mul(2).max(LEAST_MARKER)
}

pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    let up = u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(ttl.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

/// The error for an operation that found something changed each time it looked.
pub(crate) fn unsettled(operation: Operation, effect: Effect) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: "the leadership or the keys changed each time it was tried".into(),
        effect,
        advice: lease_core::Advice::TryAgain,
        source: None,
    }
}

#[async_trait::async_trait]
impl LeaseBackend for EtcdBackend {
    fn description(&self) -> Description {
        Description::new("etcd", self.facts.server_version.clone(), self.address.clone())
    }

    fn claims(&self) -> Claims {
        claims::backend()
    }

    fn limits(&self) -> Limits {
        claims::limits(&self.facts, &self.options)
    }

    fn clock(&self) -> SharedClock {
        self.options.clock.clone()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        match self.within(Operation::Acquire, self.acquire_once(attempt)).await? {
            Acquisition::Acquired(lease) => accept_grant(self, attempt, lease).await,
            held @ Acquisition::Held(_) => Ok(held),
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let Some(subject) = Subject::of_lease(lease) else {
            return Ok(Renewal::Lost(LossReason::Gone));
        };
        self.within(Operation::Renew, self.extend(lease, subject)).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let release = lease.begin_release();
        let Some(subject) = Subject::of_lease(lease) else {
            return Ok(release.answered(false));
        };
        let ending = self.end(lease, subject, release.needs_tombstone());
        match self.within(Operation::Release, ending).await {
            Ok(ended) => Ok(release.answered(ended)),
            Err(error) => {
                if error.effect() == Effect::None {
                    release.not_sent();
                }
                Err(error)
            }
        }
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        attempt.end();
        let ttl = self.limits().granted_ttl(attempt.ttl())?;
        let subject = Subject::of_attempt(attempt);
        self.within(Operation::Abandon, self.give_up(subject, ttl)).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        // Boxed, since it is large.
        order.carry_out(Box::pin(self.within(Operation::ForceRelease, self.force(order)))).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let looking = async {
            let key = self.wire.keys.grant(resource).into_bytes();
            let got = self.store.get(Operation::Inspect, key, etcd_client::GetOptions::new()).await?;
            match Present::read(got.kvs().first()) {
                Present::Nothing => Ok(None),
                Present::Foreign => Err(wire::foreign(resource)),
                Present::Record(record) => self.listed(Operation::Inspect, resource.clone(), record).await,
            }
        };
        let listed = self.within(Operation::Inspect, looking).await?;
        Ok(listed.map_or_else(|| Inspection::free(None), Inspection::held))
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        // Boxed, since it is large.
        self.within(Operation::List, Box::pin(self.page(prefix, after, limit))).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        // Each key but the fence's registers goes with its etcd lease.
        Ok(CleanUp::removed(0))
    }

    fn fence(&self) -> Fence<'_> {
        Fence::LiveOwner(self)
    }
}
