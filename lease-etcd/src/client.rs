//! The few calls to etcd that this crate makes. None is sent again if it may have run.

use crate::EtcdConfig;
use crate::connection::Connection;
use crate::error::{self, Place};
use etcd_client::{Client, Error, GetOptions, GetResponse, LeaseGrantOptions, Txn, TxnResponse};
use lease_core::{BootInstant, LeaseError, Operation, bounded};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How often a request that was certainly never sent is tried on another member.
const TRIES: u32 = 12;

/// A connection to a cluster. Clones share it.
#[derive(Clone)]
pub(crate) struct Store(Arc<Connection>);

/// A keep-alive that etcd answered with success.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptAlive {
    /// When the request was about to be sent.
    pub(crate) sent: BootInstant,
    /// The raft term of the member that answered.
    pub(crate) raft_term: u64,
}

/// An etcd lease that was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeLease {
    /// The TTL that the server chose.
    pub(crate) ttl: Duration,
    /// The store's revision when it was made, which does not move by that.
    pub(crate) revision: u64,
}

impl Store {
    /// Connects, and logs in where the URL has a user. Without a user the client connects with its first request.
    pub(crate) async fn connect(config: &EtcdConfig, prefix: String) -> Result<Self, LeaseError> {
        let place = Place { address: config.address(), prefix };
        let store = Self(Arc::new(Connection::new(config.clone(), place)));
        store.0.client().await?;
        Ok(store)
    }

    /// Runs a call within `limit`. After a time-out, or when the caller has given up after a while, the next call gets a new connection, unless
    /// this one was hardly there yet.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        operation: Operation,
        call: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        let waiting = self.0.waiting(limit);
        let answer = bounded(limit, operation, error::in_doubt(operation), call).await;
        waiting.ends(matches!(answer, Err(LeaseError::Timeout { .. })));
        answer
    }

    /// The server's version.
    pub(crate) async fn version(&self, operation: Operation) -> Result<String, LeaseError> {
        let status = self.call(operation, |client| {
            let mut maintenance = client.maintenance_client();
            async move { maintenance.status().await }
        });
        Ok(status.await?.version().to_owned())
    }

    /// Runs a transaction; `None` when it wanted to attach a key to an etcd lease that is gone: then it did nothing.
    pub(crate) async fn txn(&self, operation: Operation, txn: Txn) -> Result<Option<TxnResponse>, LeaseError> {
        let reply = self.send(|client| {
            let (mut kv, txn) = (client.kv_client(), txn.clone());
            async move { kv.txn(txn).await }
        });
        match reply.await? {
            Ok(reply) => Ok(Some(reply)),
            Err(e) if error::no_such_lease(&e) => Ok(None),
            Err(e) => Err(error::of_call(operation, self.0.place(), e)),
        }
    }

    /// Runs a transaction that attaches nothing to an etcd lease that could be gone.
    pub(crate) async fn plain_txn(&self, operation: Operation, txn: Txn) -> Result<TxnResponse, LeaseError> {
        self.call(operation, |client| {
            let (mut kv, txn) = (client.kv_client(), txn.clone());
            async move { kv.txn(txn).await }
        })
        .await
    }

    /// A linearizable read.
    pub(crate) async fn get(
        &self,
        operation: Operation,
        key: Vec<u8>,
        options: GetOptions,
    ) -> Result<GetResponse, LeaseError> {
        self.call(operation, |client| {
            let (mut kv, key, options) = (client.kv_client(), key.clone(), options.clone());
            async move { kv.get(key, Some(options)).await }
        })
        .await
    }

    /// Makes an etcd lease with this id; `None` when there is one already.
    pub(crate) async fn grant(&self, operation: Operation, id: i64, ttl: i64) -> Result<Option<MadeLease>, LeaseError> {
        let reply = self.send(|client| {
            let mut leases = client.lease_client();
            async move { leases.grant(ttl, Some(LeaseGrantOptions::new().with_id(id))).await }
        });
        match reply.await? {
            Ok(granted) => {
                let revision = granted.header().map_or(0, etcd_client::ResponseHeader::revision);
                let revision = u64::try_from(revision).unwrap_or_default();
                Ok(Some(MadeLease { ttl: seconds(granted.ttl()), revision }))
            }
            Err(e) if error::lease_exists(&e) => Ok(None),
            Err(e) => Err(error::of_call(operation, self.0.place(), e)),
        }
    }

    /// Ends an etcd lease with all that is attached to it; one that is gone is fine.
    pub(crate) async fn revoke(&self, operation: Operation, id: i64) -> Result<(), LeaseError> {
        let reply = self.send(|client| {
            let mut leases = client.lease_client();
            async move { leases.revoke(id).await }
        });
        match reply.await? {
            Ok(_) => Ok(()),
            Err(e) if error::no_such_lease(&e) => Ok(()),
            Err(e) => Err(error::of_call(operation, self.0.place(), e)),
        }
    }

    /// What is left of an etcd lease, in whole seconds rounded up, and never more than it was granted; `None` when it is gone.
    pub(crate) async fn remaining(&self, operation: Operation, id: i64) -> Result<Option<Duration>, LeaseError> {
        let reply = self.send(|client| {
            let mut leases = client.lease_client();
            async move { leases.time_to_live(id, None).await }
        });
        match reply.await? {
            Ok(left) => Ok(remaining(left.ttl(), left.granted_ttl())),
            Err(e) if error::no_such_lease(&e) => Ok(None),
            Err(e) => Err(error::of_call(operation, self.0.place(), e)),
        }
    }

    /// Extends an etcd lease by its granted TTL; `None` when it is gone.
    ///
    /// Each call has a stream of its own: a late reply can never be credited to another call, and a broken stream is never used again.
    /// The client keeps the first reply on a stream to itself, so a second request is sent, whose reply carries the raft term.
    pub(crate) async fn keep_alive(&self, operation: Operation, id: i64) -> Result<Option<KeptAlive>, LeaseError> {
        let failed = |e| {
            if error::no_such_lease(&e) { Ok(None) } else { Err(error::of_call(operation, self.0.place(), e)) }
        };
        let opened = self.send(|client| {
            let mut leases = client.lease_client();
            async move { leases.keep_alive(id).await }
        });
        let (mut keeper, mut replies) = match opened.await? {
            Ok(opened) => opened,
            Err(e) => return failed(e),
        };
        let sent = self.0.config().options.clock.now();
        if let Err(e) = keeper.keep_alive().await {
            return failed(e);
        }
        match replies.message().await {
            Ok(Some(reply)) if reply.id() == id && reply.ttl() > 0 => Ok(Some(KeptAlive {
                sent,
                raft_term: reply.header().map_or(0, etcd_client::ResponseHeader::raft_term),
            })),
            Ok(Some(_)) => Ok(None),
            Ok(None) => Err(error::no_reply(operation)),
            Err(e) => failed(e),
        }
    }

    async fn call<T, F>(&self, operation: Operation, request: impl Fn(&Client) -> F) -> Result<T, LeaseError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.send(request).await?.map_err(|e| error::of_call(operation, self.0.place(), e))
    }

    /// Sends a request: the outer error says that there was no connection to send it on. The client spreads requests over the members
    /// without looking whether they live, so one that could not be sent is sent to another; one that may have been done is not.
    async fn send<T, F>(&self, request: impl Fn(&Client) -> F) -> Result<Result<T, Error>, LeaseError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut client = self.0.client().await?;
        let mut left = if self.0.config().endpoints().len() > 1 { TRIES } else { 0 };
        let mut may_log_in = self.0.config().login().is_some();
        loop {
            match request(&client.client).await {
                Err(e) if left > 0 && error::never_sent(&e) => left = left.saturating_sub(1),
                // It was not done, so it may be sent again, after a new login.
                Err(e) if may_log_in && error::login_outdated(&e) => {
                    may_log_in = false;
                    self.0.give_up(&client);
                    // Boxed, since it is rare and every caller's future would carry it.
                    client = Box::pin(self.0.client()).await?;
                    continue;
                }
                other => {
                    if other.is_ok() {
                        client.has_answered();
                    }
                    return Ok(other);
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("address", &self.0.place().address).finish_non_exhaustive()
    }
}

/// What is left of an etcd lease; none when it is gone. During a change of leader the answer can be absurd, so the granted TTL bounds it.
fn remaining(told: i64, granted: i64) -> Option<Duration> {
    // It was rounded down.
    (told >= 0).then(|| seconds(told.saturating_add(1)).min(seconds(granted)))
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absurd_remaining_time_is_bounded() {
        let granted = Duration::from_secs(10);
        for absurd in [9_223_372_036, i64::MAX, 11, 10] {
            assert_eq!(remaining(absurd, 10), Some(granted));
        }
        assert_eq!(remaining(0, 10), Some(Duration::from_secs(1)));
        assert_eq!(remaining(-1, 10), None);
        assert_eq!(remaining(i64::MAX, -1), Some(Duration::ZERO));
    }
}
