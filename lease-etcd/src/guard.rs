//! The guarded destination: etcd keeps the protected data, whichever store the lease is from.
//!
//! A mark is the text `VALUE19:GRANT16`, so that etcd's comparison of bytes orders marks by value. One transaction compares the trusted
//! authority and the mark, raises the mark and writes; a refused one does nothing.

use crate::client::Store;
use crate::keys::Keys;
use crate::sabotage::{Flaw, Sabotage};
use crate::wire::{absent, text_at};
use crate::{EtcdConfig, claims, error};
use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse, TxnResponse};
use lease_core::{
    Authority, Claims, Effect, FencingToken, GrantId, GuardError, GuardedDestination, LeaseError, Operation, Refusal,
    ResourceName, Stored, bounded,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How often a read looks again after the trusted authority changed under it.
const ROUNDS: u32 = 4;

/// Protected data in etcd, behind a guard that takes tokens of any lease backend. Clones share the connection.
#[derive(Clone, Debug)]
pub struct EtcdDestination {
    store: Store,
    keys: Arc<Keys>,
    call_timeout: Duration,
    sabotage: Sabotage,
}

/// The guard for the caller's own etcd transactions: it was sealed with a token, and its conditions hold until a newer grant has sealed
/// or written, or another authority is trusted.
#[derive(Clone, Debug)]
pub struct EtcdGuard {
    destination: EtcdDestination,
    resource: ResourceName,
    token: FencingToken,
}

impl EtcdDestination {
    /// Connects to `url`; see [the crate's page](crate) for its form.
    ///
    /// # Errors
    /// As [`EtcdBackend::connect`](crate::EtcdBackend::connect).
    ///
    /// # Cancel safety
    /// Nothing is left behind.
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
        let sabotage = Sabotage::parse(edits, crate::sabotage::DESTINATION)?;
        Self::connect_sabotaged(EtcdConfig::parse(url)?, sabotage).await
    }

    async fn connect_sabotaged(config: EtcdConfig, sabotage: Sabotage) -> Result<Self, LeaseError> {
        let operation = Operation::Connect;
        let connecting = async {
            let keys = Keys::of(&config.options);
            let destination = Self {
                store: Store::connect(&config, keys.guards()).await?,
                keys: Arc::new(keys),
                call_timeout: config.options.call_timeout,
                sabotage,
            };
            // The client connects with the first request; this one also shows whether the account may read here.
            destination.trusted(operation).await?;
            Ok(destination)
        };
        bounded(config.options.connect_timeout, operation, error::in_doubt(operation), connecting).await
    }

    /// Seals `resource` with `token` and answers the guard for the caller's own transactions.
    ///
    /// # Errors
    /// As [`seal`](GuardedDestination::seal).
    ///
    /// # Cancel safety
    /// The mark may have been raised.
    pub async fn open(&self, resource: &ResourceName, token: &FencingToken) -> Result<EtcdGuard, GuardError> {
        self.seal(resource, token).await?;
        Ok(EtcdGuard { destination: self.clone(), resource: resource.clone(), token: token.clone() })
    }

    /// Removes everything that destinations have in this namespace, marks included: for tests and decommissioning. Every token is
    /// refused afterwards, until an authority was adopted; then old tokens would be admitted again.
    ///
    /// # Errors
    /// As the store says.
    ///
    /// # Cancel safety
    /// A part may have been removed.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        crate::look::purge(&self.store, &self.keys.guards(), self.call_timeout, |_| false).await
    }

    async fn within<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        self.store.within(self.call_timeout, operation, call).await
    }

    async fn trusted(&self, operation: Operation) -> Result<Option<Authority>, LeaseError> {
        let txn = Txn::new().and_then([TxnOp::get(self.keys.trusted(), None)]);
        let reply = self.store.plain_txn(operation, txn).await?;
        text_at(&reply, 0).map(Authority::parse).transpose()
    }

    fn trusts(&self, authority: &Authority) -> Vec<Compare> {
        let trusted = Compare::value(self.keys.trusted(), CompareOp::Equal, authority.as_str());
        self.sabotage.unless(Flaw::GuardIgnoresAuthority, vec![trusted])
    }

    /// Raises the mark and does `ops`, if the token is admitted; else reads why not.
    ///
    /// Not admitted is a mark of this value or a larger one that is not this very grant's; a mark that does not exist compares as false.
    /// The mutation is in one branch only, so that it may be as large as etcd takes.
    fn admission(&self, resource: &ResourceName, token: &FencingToken, ops: &[TxnOp]) -> Txn {
        let mark = self.keys.mark(token.authority(), resource);
        let why = [TxnOp::get(self.keys.trusted(), None), TxnOp::get(mark.clone(), None)];
        let mut raise = vec![TxnOp::put(mark.clone(), mark_text(token), None)];
        raise.extend_from_slice(ops);
        let refused = if self.sabotage.has(Flaw::GuardIgnoresMark) {
            vec![Compare::create_revision(mark, CompareOp::Less, 0)]
        } else {
            vec![
                Compare::value(mark.clone(), CompareOp::Greater, token.padded_value()),
                Compare::value(mark, CompareOp::NotEqual, mark_text(token)),
            ]
        };
        let of_trusted = Txn::new().when(self.trusts(token.authority())).and_then(raise).or_else(why.clone());
        Txn::new().when(refused).and_then(why).or_else([TxnOp::txn(of_trusted)])
    }

    async fn admit(
        &self,
        operation: Operation,
        resource: &ResourceName,
        token: &FencingToken,
        ops: &[TxnOp],
    ) -> Result<(), GuardError> {
        let txn = self.admission(resource, token, ops);
        let reply = self.within(operation, self.store.plain_txn(operation, txn)).await?;
        judge(resource, token, reply)
    }
}

impl EtcdGuard {
    /// Conditions for the caller's own transaction: with them in [`Txn::when`](etcd_client::Txn::when) it commits only while no newer
    /// grant has sealed or written here. They guard whatever the transaction writes in this etcd cluster.
    #[must_use]
    pub fn compares(&self) -> Vec<Compare> {
        let mark = self.destination.keys.mark(self.token.authority(), &self.resource);
        let mut compares = self.destination.trusts(self.token.authority());
        let marked = Compare::value(mark, CompareOp::Equal, mark_text(&self.token));
        compares.extend(self.destination.sabotage.unless(Flaw::GuardIgnoresMark, vec![marked]));
        compares
    }

    /// Why a transaction with these conditions did not succeed; `Ok` when the guard admits the token, so that it was another condition.
    ///
    /// # Errors
    /// [`GuardError::Refused`] when the token is not admitted any more.
    ///
    /// # Cancel safety
    /// No effect.
    pub async fn check(&self) -> Result<(), GuardError> {
        let mark = self.destination.keys.mark(self.token.authority(), &self.resource);
        let txn = Txn::new().and_then([TxnOp::get(self.destination.keys.trusted(), None), TxnOp::get(mark, None)]);
        let operation = Operation::Read;
        let reading = self.destination.store.plain_txn(operation, txn);
        let reply = self.destination.within(operation, reading).await?;
        let trusted = text_at(&reply, 0).map(Authority::parse).transpose()?;
        let mark = text_at(&reply, 1).map(|text| read_mark(&self.resource, &text)).transpose()?;
        Refusal::judge(trusted.as_ref(), mark, &self.token)
            .map_err(|refusal| GuardError::Refused { resource: self.resource.clone(), refusal })
    }
}

/// Reads the reply to an admission.
fn judge(resource: &ResourceName, token: &FencingToken, reply: TxnResponse) -> Result<(), GuardError> {
    let inner = match reply.op_responses().into_iter().next() {
        Some(TxnOpResponse::Txn(inner)) if !reply.succeeded() => Some(inner),
        _ => None,
    };
    if inner.as_ref().is_some_and(TxnResponse::succeeded) {
        return Ok(());
    }
    let reply = inner.unwrap_or(reply);
    let trusted = text_at(&reply, 0).map(Authority::parse).transpose()?;
    let mark = text_at(&reply, 1).map(|text| read_mark(resource, &text)).transpose()?;
    match Refusal::judge(trusted.as_ref(), mark, token) {
        Err(refusal) => Err(GuardError::Refused { resource: resource.clone(), refusal }),
        // The transaction refused what these reads admit: the mark is damaged.
        Ok(()) => Err(damaged(resource).into()),
    }
}

fn mark_text(token: &FencingToken) -> String {
    format!("{}:{}", token.padded_value(), token.grant().to_hex())
}

fn read_mark(resource: &ResourceName, text: &str) -> Result<(u64, GrantId), LeaseError> {
    text.split_once(':')
        .filter(|(value, _)| value.len() == 19 && value.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|(value, grant)| Some((value.parse().ok()?, GrantId::from_hex(grant)?)))
        .ok_or_else(|| damaged(resource))
}

fn damaged(resource: &ResourceName) -> LeaseError {
    LeaseError::ForeignData { resource: resource.clone(), reason: "its mark was not written by this guard".into() }
}

#[async_trait::async_trait]
impl GuardedDestination for EtcdDestination {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn claims(&self) -> Claims {
        claims::destination()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        let key = self.keys.trusted();
        let expected = match expected_old {
            None => absent(&key),
            Some(old) => Compare::value(key.clone(), CompareOp::Equal, old.as_str()),
        };
        let txn = Txn::new()
            .when([expected])
            .and_then([TxnOp::put(key.clone(), new.as_str(), None)])
            .or_else([TxnOp::get(key, None)]);
        let operation = Operation::Adopt;
        let reply = self.within(operation, self.store.plain_txn(operation, txn)).await?;
        if reply.succeeded() {
            return Ok(());
        }
        Err(GuardError::AdoptConflict { found: text_at(&reply, 0).map(Authority::parse).transpose()? })
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.admit(Operation::Seal, resource, token, &[]).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let data = [TxnOp::put(self.keys.data(resource), value, None)];
        self.admit(Operation::GuardedWrite, resource, token, &data).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        let operation = Operation::Read;
        let reading = async {
            for _ in 0..ROUNDS {
                let trusted = self.trusted(operation).await?;
                let key = self.keys.trusted();
                let mut reads = vec![TxnOp::get(self.keys.data(resource), None)];
                let unchanged = match &trusted {
                    None => absent(&key),
                    Some(authority) => {
                        reads.push(TxnOp::get(self.keys.mark(authority, resource), None));
                        Compare::value(key, CompareOp::Equal, authority.as_str())
                    }
                };
                let txn = Txn::new().when([unchanged]).and_then(reads);
                let reply = self.store.plain_txn(operation, txn).await?;
                if reply.succeeded() {
                    let mark = text_at(&reply, 1).map(|text| read_mark(resource, &text)).transpose()?;
                    return Ok(Stored::new(text_at(&reply, 0), mark));
                }
            }
            Err(crate::backend::unsettled(operation, Effect::None))
        };
        Ok(self.within(operation, reading).await?)
    }
}
