//! Looking at grants without taking part: inspect, list, and what `purge` walks over.

use crate::client::Store;
use crate::keys::prefix_end;
use crate::wire::{self, Record};
use crate::{EtcdBackend, error};
use etcd_client::{DeleteOptions, GetOptions, KeyValue, Txn, TxnOp};
use lease_core::{LeaseError, Listed, NamePage, Operation, ResourceName, Ttl};
use std::time::Duration;

impl EtcdBackend {
    /// The grant as others see it; `None` when its etcd lease has just ended.
    pub(crate) async fn listed(
        &self,
        operation: Operation,
        resource: ResourceName,
        record: Record,
    ) -> Result<Option<Listed>, LeaseError> {
        let remaining = if record.etcd_lease == 0 {
            // Somebody took the lease off: this record never ends by itself.
            Some(Ttl::MAX)
        } else {
            self.store.remaining(operation, record.etcd_lease).await?
        };
        Ok(remaining.map(|left| Listed::new(resource, record.holder, Some(record.value), left)))
    }

    pub(crate) async fn page(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: u32,
    ) -> Result<NamePage, LeaseError> {
        let grants_prefix = self.wire.keys.grants();
        let end = prefix_end(format!("{grants_prefix}{prefix}").as_bytes());
        let mut from = match after {
            Some(name) if name.as_str() >= prefix => after_key(self.wire.keys.grant(name).as_bytes()),
            _ => format!("{grants_prefix}{prefix}").into_bytes(),
        };
        let most = usize::try_from(limit.clamp(1, LARGEST_PAGE)).unwrap_or(1);
        let mut found = Vec::new();
        loop {
            // One more than is wanted tells whether there are more.
            let wanted = most.saturating_add(1).saturating_sub(found.len());
            let options = wire::page(end.clone(), i64::try_from(wanted).unwrap_or(i64::MAX));
            let got = self.store.get(Operation::List, from, options).await?;
            let names = got.kvs().iter().filter_map(|kv| {
                let name = kv.key().strip_prefix(grants_prefix.as_bytes())?;
                let name = ResourceName::parse(std::str::from_utf8(name).ok()?).ok()?;
                Some((name, Record::read(kv)?))
            });
            found.extend(names);
            match got.kvs().last() {
                Some(last) if got.more() && found.len() <= most => from = after_key(last.key()),
                _ => break,
            }
        }
        let more = found.len() > most;
        found.truncate(most);
        let next_after = found.last().filter(|_| more).map(|(name, _)| name.clone());
        let mut looking = tokio::task::JoinSet::new();
        let mut grants = Vec::with_capacity(found.len());
        for (name, record) in found {
            if looking.len() >= LOOKS_AT_ONCE {
                grants.extend(joined(looking.join_next().await)?);
            }
            let backend = self.clone();
            looking.spawn(async move { backend.listed(Operation::List, name, record).await });
        }
        while let Some(done) = looking.join_next().await {
            grants.extend(joined(Some(done))?);
        }
        grants.sort_by(|a, b| a.resource.cmp(&b.resource));
        Ok(NamePage { grants, next_after })
    }
}

/// Removes a prefix, page by page, together with the etcd leases of those keys under it that are `ours`. `limit` bounds each request.
pub(crate) async fn purge(
    store: &Store,
    prefix: &str,
    limit: Duration,
    ours: impl Fn(&KeyValue) -> bool,
) -> Result<(), LeaseError> {
    let operation = Operation::CleanUp;
    loop {
        // Without the values, whose size nobody knows.
        let keys = wire::page(prefix_end(prefix.as_bytes()), i64::from(LARGEST_PAGE)).with_keys_only();
        let page = store.within(limit, operation, store.get(operation, prefix.into(), keys)).await?;
        let Some(last) = page.kvs().last() else { return Ok(()) };
        for leased in page.kvs().iter().filter(|kv| kv.lease() != 0) {
            let whole = store.get(operation, leased.key().into(), GetOptions::new());
            let whole = store.within(limit, operation, whole).await?;
            for kv in whole.kvs().iter().filter(|kv| kv.lease() != 0 && ours(kv)) {
                store.within(limit, operation, store.revoke(operation, kv.lease())).await?;
            }
        }
        let delete = DeleteOptions::new().with_range(after_key(last.key()));
        let txn = Txn::new().and_then([TxnOp::delete(prefix, Some(delete))]);
        store.within(limit, operation, store.plain_txn(operation, txn)).await?;
    }
}

/// The most grants on one page: it bounds the reply.
const LARGEST_PAGE: u32 = 1_000;
/// How many etcd leases are looked at at once for a page.
const LOOKS_AT_ONCE: usize = 32;

type Joined = Option<Result<Result<Option<Listed>, LeaseError>, tokio::task::JoinError>>;

fn joined(done: Joined) -> Result<Option<Listed>, LeaseError> {
    match done {
        None => Ok(None),
        Some(Ok(listed)) => listed,
        Some(Err(_)) => Err(error::no_reply(Operation::List)),
    }
}

fn after_key(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}
