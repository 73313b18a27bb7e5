//! The transactions, and what their replies mean.
//!
//! Each operation's decision is made inside one etcd transaction; this module builds them and decodes the replies. A record is the text
//! `OWNER:GRANT:TTL:INCARNATION:HOLDER` under the resource's key, attached to the etcd lease that its attempt made. Its create revision is
//! the fencing value: etcd counts revisions over the whole store, so a later grant always has a larger one.

use crate::keys::Keys;
use crate::sabotage::{Flaw, Sabotage};
use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use lease_core::{Attempt, GrantId, Lease, LeaseError, OwnerToken, ResourceName};
use std::time::Duration;

/// What a spent marker says, besides that this attempt must make no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spent {
    /// Its grant was live and its holder ended it.
    Ended,
    /// Its grant was live and was ended by force.
    Forced,
    /// Nothing.
    Over,
}

impl Spent {
    fn text(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Forced => "forced",
            Self::Over => "spent",
        }
    }

    fn read(marker: &KeyValue) -> Self {
        let says = |this: &Self| marker.value() == this.text().as_bytes();
        [Self::Ended, Self::Forced].into_iter().find(says).unwrap_or(Self::Over)
    }
}

/// Builds the transactions of one instance.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) keys: Keys,
    pub(crate) sabotage: Sabotage,
}

/// Which grant, as far as its keys go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) resource: &'a ResourceName,
    pub(crate) owner: &'a OwnerToken,
    pub(crate) grant: GrantId,
}

impl<'a> Subject<'a> {
    pub(crate) fn of_attempt(attempt: &'a Attempt) -> Self {
        Self { resource: attempt.resource(), owner: attempt.owner(), grant: attempt.grant() }
    }

    /// `None` for a lease without a token, which no etcd backend has made.
    pub(crate) fn of_lease(lease: &'a Lease) -> Option<Self> {
        Some(Self { resource: lease.resource(), owner: lease.owner(), grant: lease.token()?.grant() })
    }
}

/// Where a spent marker is attached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Marker {
    /// To the grant's own etcd lease, which must be this one: nothing of the attempt is on its way.
    OnOwnLease(i64),
    /// To an etcd lease of its own, which outlives whatever is on its way; needed whether or not the grant is live.
    OnLease(i64),
}

impl Wire {
    /// Reads all that decides about an attempt, in one linearizable step.
    pub(crate) fn look(&self, subject: Subject<'_>) -> Txn {
        Txn::new().and_then(self.reads(subject))
    }

    fn reads(&self, subject: Subject<'_>) -> Vec<TxnOp> {
        vec![
            TxnOp::get(self.keys.grant(subject.resource), None),
            TxnOp::get(self.keys.spent(subject.grant), None),
            TxnOp::get(self.keys.incarnation(), None),
        ]
    }

    /// Makes the grant if the resource is free, the attempt not spent, and the incarnation still this one; else reads.
    pub(crate) fn acquire(&self, attempt: &Attempt, etcd_lease: i64, ttl: i64, incarnation: &str) -> Txn {
        let subject = Subject::of_attempt(attempt);
        let key = self.keys.grant(subject.resource);
        let record = format!(
            "{}:{}:{ttl}:{incarnation}:{}",
            subject.owner.reveal(),
            subject.grant.to_hex(),
            attempt.holder().as_str()
        );
        let bound = (!self.sabotage.has(Flaw::AcquireWithoutLease)).then(|| PutOptions::new().with_lease(etcd_lease));
        let mut compares = self.sabotage.unless(Flaw::AcquireIgnoresHolder, vec![absent(&key)]);
        compares.push(absent(&self.keys.spent(subject.grant)));
        compares.push(Compare::value(self.keys.incarnation(), CompareOp::Equal, incarnation));
        Txn::new().when(compares).and_then([TxnOp::put(key, record, bound)]).or_else(self.reads(subject))
    }

    /// Puts the incarnation if there is none; else reads it.
    pub(crate) fn incarnate(&self, fresh: &str) -> Txn {
        let key = self.keys.incarnation();
        Txn::new()
            .when([absent(&key)])
            .and_then([TxnOp::put(key.clone(), fresh, None)])
            .or_else([TxnOp::get(key, None)])
    }

    /// True inside a transaction exactly while this grant is live.
    pub(crate) fn live(&self, lease: &Lease) -> Vec<Compare> {
        let key = self.keys.grant(lease.resource());
        // No key has the create revision -1: a lease without a token is never live here.
        let value = lease.token().map_or(-1, lease_core::FencingToken::value_i64);
        let mut compares = owned(&key, lease.owner());
        compares.push(Compare::create_revision(key, CompareOp::Equal, value));
        compares
    }

    /// Ends the grant if it is live, leaving a marker; else reads, leaving a marker where one is needed anyhow.
    pub(crate) fn release(&self, lease: &Lease, subject: Subject<'_>, marker: Marker) -> Txn {
        let key = self.keys.grant(subject.resource);
        let mut compares = self.sabotage.unless(Flaw::ReleaseIgnoresOwner, self.live(lease));
        if let (Marker::OnOwnLease(etcd_lease), false) = (marker, compares.is_empty()) {
            compares.push(Compare::lease(key, CompareOp::Equal, etcd_lease));
        }
        self.end(compares, subject, marker)
    }

    /// Ends whatever the attempt has made, and keeps the rest of it from making a grant.
    pub(crate) fn abandon(&self, subject: Subject<'_>, marker_lease: i64) -> Txn {
        let key = self.keys.grant(subject.resource);
        self.end(owned(&key, subject.owner), subject, Marker::OnLease(marker_lease))
    }

    /// Ends the grant with this fencing value if it is still there, leaving a marker for its attempt; else reads.
    pub(crate) fn force(&self, subject: Subject<'_>, value: u64, marker_lease: i64) -> Txn {
        let key = self.keys.grant(subject.resource);
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let named = vec![Compare::create_revision(key.clone(), CompareOp::Equal, value)];
        let on = PutOptions::new().with_lease(marker_lease);
        let marker = TxnOp::put(self.keys.spent(subject.grant), Spent::Forced.text(), Some(on));
        let mut ending = vec![TxnOp::delete(key, Some(DeleteOptions::new().with_prev_key()))];
        ending.extend(self.sabotage.unless(Flaw::ForceLeavesNoMarker, vec![marker]));
        Txn::new()
            .when(self.sabotage.unless(Flaw::ForceIgnoresValue, named))
            .and_then(ending)
            .or_else(self.reads(subject))
    }

    fn end(&self, compares: Vec<Compare>, subject: Subject<'_>, marker: Marker) -> Txn {
        let spent = self.keys.spent(subject.grant);
        let on = PutOptions::new().with_lease(match marker {
            Marker::OnOwnLease(etcd_lease) | Marker::OnLease(etcd_lease) => etcd_lease,
        });
        let mut otherwise = self.reads(subject);
        if matches!(marker, Marker::OnLease(_)) {
            // An earlier marker keeps what it says, and lives on with this lease.
            otherwise.push(TxnOp::txn(
                Txn::new()
                    .when([absent(&spent)])
                    .and_then([TxnOp::put(spent.clone(), Spent::Over.text(), Some(on.clone()))])
                    .or_else([TxnOp::put(spent.clone(), "", Some(on.clone().with_ignore_value()))]),
            ));
        }
        let gone = DeleteOptions::new().with_prev_key();
        let mut ending = vec![TxnOp::delete(self.keys.grant(subject.resource), Some(gone))];
        let on_another = matches!(marker, Marker::OnOwnLease(_)) && self.sabotage.has(Flaw::ReleaseIgnoresOwner);
        if !on_another {
            ending.push(TxnOp::put(spent, Spent::Ended.text(), Some(on)));
        }
        Txn::new().when(compares).and_then(ending).or_else(otherwise)
    }

    /// The native fence.
    pub(crate) fn fence(&self, lease: &Lease) -> Vec<Compare> {
        self.sabotage.unless(Flaw::FenceIgnoresOwner, self.live(lease))
    }

    /// Writes the register if the grant is live.
    pub(crate) fn fenced_write(&self, lease: &Lease, value: &str) -> Txn {
        Txn::new().when(self.fence(lease)).and_then([TxnOp::put(self.keys.register(lease.resource()), value, None)])
    }
}

/// True while there is no such key.
pub(crate) fn absent(key: &str) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

/// True while the record begins with this owner. etcd compares values byte by byte, and `;` follows `:`, so that exactly the
/// values with the prefix `OWNER:` and something behind it lie between the two.
fn owned(key: &str, owner: &OwnerToken) -> Vec<Compare> {
    let owner = owner.reveal();
    vec![
        Compare::value(key, CompareOp::Greater, format!("{owner}:")),
        Compare::value(key, CompareOp::Less, format!("{owner};")),
    ]
}

/// A grant's record as etcd has it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    owner: OwnerToken,
    grant: GrantId,
    pub(crate) ttl: Duration,
    /// The incarnation under which the grant was made.
    pub(crate) incarnation: String,
    pub(crate) holder: String,
    /// The fencing value.
    pub(crate) value: u64,
    /// The etcd lease that it is attached to; 0 for none.
    pub(crate) etcd_lease: i64,
}

impl Record {
    /// `None` when it is not a record.
    pub(crate) fn read(kv: &KeyValue) -> Option<Self> {
        let mut parts = kv.value_str().ok()?.splitn(5, ':');
        let (owner, grant, ttl) = (parts.next()?, parts.next()?, parts.next()?);
        let (incarnation, holder) = (parts.next()?, parts.next()?);
        Some(Self {
            owner: OwnerToken::from_revealed(owner)?,
            grant: GrantId::from_hex(grant)?,
            ttl: Duration::from_secs(ttl.parse().ok()?),
            incarnation: incarnation.to_owned(),
            holder: holder.to_owned(),
            value: u64::try_from(kv.create_revision()).ok()?,
            etcd_lease: kv.lease(),
        })
    }

    /// The grant as its keys have it.
    pub(crate) fn subject<'a>(&'a self, resource: &'a ResourceName) -> Subject<'a> {
        Subject { resource, owner: &self.owner, grant: self.grant }
    }
}

/// What was found under a resource's key.
#[derive(Clone, Debug)]
pub(crate) enum Present {
    Nothing,
    Record(Record),
    Foreign,
}

impl Present {
    pub(crate) fn read(kv: Option<&KeyValue>) -> Self {
        match kv {
            None => Self::Nothing,
            Some(kv) => Record::read(kv).map_or(Self::Foreign, Self::Record),
        }
    }

    /// The record, if it is of this owner.
    pub(crate) fn own(&self, owner: &OwnerToken) -> Option<&Record> {
        match self {
            Self::Record(record) if record.owner == *owner => Some(record),
            _ => None,
        }
    }
}

/// What the three reads found.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) present: Present,
    /// Whether the attempt is spent, and if so, what its marker says.
    pub(crate) spent: Option<Spent>,
    pub(crate) incarnation: Option<String>,
    pub(crate) cluster: u64,
    pub(crate) raft_term: u64,
}

impl Look {
    /// Reads the reply to [`Wire::look`], or to the branch of another transaction that begins with the same reads.
    pub(crate) fn read(reply: &TxnResponse) -> Self {
        let replies = reply.op_responses();
        let kv = |at: usize| match replies.get(at) {
            Some(TxnOpResponse::Get(got)) => got.kvs().first(),
            _ => None,
        };
        let text = |kv: &KeyValue| String::from_utf8_lossy(kv.value()).into_owned();
        Self {
            present: Present::read(kv(0)),
            spent: kv(1).map(Spent::read),
            incarnation: kv(2).map(text),
            cluster: reply.header().map_or(0, etcd_client::ResponseHeader::cluster_id),
            raft_term: reply.header().map_or(0, etcd_client::ResponseHeader::raft_term),
        }
    }
}

/// The error for a key that holds no record.
pub(crate) fn foreign(resource: &ResourceName) -> LeaseError {
    LeaseError::ForeignData {
        resource: resource.clone(),
        reason: "the value under its key was not written by this backend".into(),
    }
}

/// The etcd lease of the record that [`Wire::abandon`], [`Wire::release`] or [`Wire::force`] deleted.
pub(crate) fn deleted_lease(reply: &TxnResponse) -> Option<i64> {
    match reply.op_responses().first() {
        // 0 is no etcd lease: somebody took it off.
        Some(TxnOpResponse::Delete(deleted)) => {
            deleted.prev_kvs().first().map(KeyValue::lease).filter(|lease| *lease != 0)
        }
        _ => None,
    }
}

/// The value that one `get` of a transaction found.
pub(crate) fn text_at(reply: &TxnResponse, at: usize) -> Option<String> {
    match reply.op_responses().get(at) {
        Some(TxnOpResponse::Get(got)) => first_text(got),
        _ => None,
    }
}

/// The first value that a `get` found.
pub(crate) fn first_text(got: &GetResponse) -> Option<String> {
    got.kvs().first().map(|kv| String::from_utf8_lossy(kv.value()).into_owned())
}

/// A range in key order, at most `limit` of it.
pub(crate) fn page(end: Vec<u8>, limit: i64) -> GetOptions {
    GetOptions::new().with_range(end).with_limit(limit)
}
