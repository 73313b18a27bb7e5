//! What this backend declares, and the facts that it reads from the server.

use crate::client::Store;
use lease_core::{Claim, Claims, ConnectOptions, GrantId, LeaseError, Limits, Operation, Ttl};
use std::time::Duration;

/// How long after a grant's TTL etcd may take to end it on a healthy cluster: it looks every 500 ms, and the end is one
/// more commit. A change of leader starts the whole TTL anew.
const EXPIRY_LAG: Duration = Duration::from_secs(2);

/// What the server told at connect.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) server_version: String,
    /// etcd raises shorter TTLs to 1.5 times its election time-out, rounded up, which it doesn't tell.
    pub(crate) min_ttl: Duration,
}

impl Facts {
    /// Reads them. The shortest TTL is found by making an etcd lease of one second, and ending it.
    pub(crate) async fn read(store: &Store) -> Result<Self, LeaseError> {
        let server_version = store.version(Operation::Connect).await?;
        let probe = crate::keys::first_lease(GrantId::random()?);
        let granted = store.grant(Operation::Connect, probe, 1).await?.map(|made| made.ttl);
        store.revoke(Operation::Connect, probe).await?;
        Ok(Self { server_version, min_ttl: granted.unwrap_or_default().max(Duration::from_secs(1)) })
    }
}

/// etcd writes each transaction to disk on a majority before it answers, and has no setting against that but `--unsafe-no-fsync`
/// of later versions, which a process that is killed survives too.
pub(crate) fn backend() -> Claims {
    Claims::of(&[
        Claim::FencingToken,
        Claim::NativeFenceLiveOwner,
        Claim::CrossProcess,
        Claim::ListByPrefix,
        Claim::IdleNamesForgotten,
        Claim::LeaseSurvivesRestart,
        Claim::TokenSurvivesRestart,
    ])
}

/// Not `mark-rolls-back`: etcd has no transaction that the caller could roll back. One that fails has changed nothing, mark included.
pub(crate) fn destination() -> Claims {
    Claims::of(&[Claim::MarkSurvivesRestart, Claim::RefusalUncommittable])
}

pub(crate) fn limits(facts: &Facts, options: &ConnectOptions) -> Limits {
    Limits::new(facts.min_ttl, Ttl::MAX, Duration::from_secs(1))
        .with_expiry_lag(EXPIRY_LAG)
        .with_call_timeout(options.call_timeout)
}
