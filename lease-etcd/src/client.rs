//! The few calls to etcd that this crate makes. None is sent again if it may have run.

use crate::EtcdConfig;
use crate::error::{self, Place};
use etcd_client::{Client, Error, GetOptions, GetResponse, LeaseGrantOptions, Txn, TxnResponse};
use lease_core::{BootInstant, LeaseError, Operation, SharedClock, bounded};
use std::future::Future;
use std::time::Duration;

/// How often a request that was certainly never sent is tried on another member.
const TRIES: u32 = 12;

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) struct Store {
    client: Client,
    place: Place,
    clock: SharedClock,
    members: usize,
}

/// A keep-alive that etcd answered with success.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptAlive {
    /// When the request was about to be sent.
    pub(crate) sent: BootInstant,
    /// The raft term of the member that answered.
    pub(crate) raft_term: u64,
}

impl Store {
    /// Connects, and logs in where the URL has a user.
    pub(crate) async fn connect(config: &EtcdConfig, prefix: String) -> Result<Self, LeaseError> {
        let options = &config.options;
        let place = Place { address: config.address(), prefix };
        let client = bounded(options.connect_timeout, Operation::Connect, error::in_doubt(Operation::Connect), async {
            // Boxed, since it is large and every caller's future would carry it.
            let connecting = Box::pin(Client::connect(config.urls(), Some(client_options(config))));
            connecting.await.map_err(|e| error::of_call(Operation::Connect, &place, e))
        })
        .await?;
        Ok(Self { client, place, clock: options.clock.clone(), members: config.endpoints().len() })
    }

    /// The server's version.
    pub(crate) async fn version(&self, operation: Operation) -> Result<String, LeaseError> {
        let status = self.call(operation, || {
            let mut maintenance = self.client.maintenance_client();
            async move { maintenance.status().await }
        });
        Ok(status.await?.version().to_owned())
    }

    /// Runs a transaction; `None` when it wanted to attach a key to an etcd lease that is gone: then it did nothing.
    pub(crate) async fn txn(&self, operation: Operation, txn: Txn) -> Result<Option<TxnResponse>, LeaseError> {
        let reply = self.send(|| {
            let (mut kv, txn) = (self.client.kv_client(), txn.clone());
            async move { kv.txn(txn).await }
        });
        match reply.await {
            Ok(reply) => Ok(Some(reply)),
            Err(e) if error::no_such_lease(&e) => Ok(None),
            Err(e) => Err(error::of_call(operation, &self.place, e)),
        }
    }

    /// Runs a transaction that attaches nothing to an etcd lease that could be gone.
    pub(crate) async fn plain_txn(&self, operation: Operation, txn: Txn) -> Result<TxnResponse, LeaseError> {
        self.call(operation, || {
            let (mut kv, txn) = (self.client.kv_client(), txn.clone());
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
        self.call(operation, || {
            let (mut kv, key, options) = (self.client.kv_client(), key.clone(), options.clone());
            async move { kv.get(key, Some(options)).await }
        })
        .await
    }

    /// Makes an etcd lease with this id; `None` when there is one already. Answers the TTL that the server chose.
    pub(crate) async fn grant(&self, operation: Operation, id: i64, ttl: i64) -> Result<Option<Duration>, LeaseError> {
        let reply = self.send(|| {
            let mut leases = self.client.lease_client();
            async move { leases.grant(ttl, Some(LeaseGrantOptions::new().with_id(id))).await }
        });
        match reply.await {
            Ok(granted) => Ok(Some(seconds(granted.ttl()))),
            Err(e) if error::lease_exists(&e) => Ok(None),
            Err(e) => Err(error::of_call(operation, &self.place, e)),
        }
    }

    /// Ends an etcd lease with all that is attached to it; one that is gone is fine.
    pub(crate) async fn revoke(&self, operation: Operation, id: i64) -> Result<(), LeaseError> {
        let reply = self.send(|| {
            let mut leases = self.client.lease_client();
            async move { leases.revoke(id).await }
        });
        match reply.await {
            Ok(_) => Ok(()),
            Err(e) if error::no_such_lease(&e) => Ok(()),
            Err(e) => Err(error::of_call(operation, &self.place, e)),
        }
    }

    /// What is left of an etcd lease, in whole seconds rounded up, and never more than it was granted; `None` when it is gone.
    pub(crate) async fn remaining(&self, operation: Operation, id: i64) -> Result<Option<Duration>, LeaseError> {
        let reply = self.send(|| {
            let mut leases = self.client.lease_client();
            async move { leases.time_to_live(id, None).await }
        });
        match reply.await {
            // During a change of leader the answer can be absurd, so the granted TTL bounds it.
            Ok(left) if left.ttl() >= 0 => {
                Ok(Some(seconds(left.ttl().saturating_add(1)).min(seconds(left.granted_ttl()))))
            }
            Ok(_) => Ok(None),
            Err(e) if error::no_such_lease(&e) => Ok(None),
            Err(e) => Err(error::of_call(operation, &self.place, e)),
        }
    }

    /// Extends an etcd lease by its granted TTL; `None` when it is gone.
    ///
    /// Each call has a stream of its own: a late reply can never be credited to another call, and a broken stream is never used again.
    /// The client keeps the first reply on a stream to itself, so a second request is sent, whose reply carries the raft term.
    pub(crate) async fn keep_alive(&self, operation: Operation, id: i64) -> Result<Option<KeptAlive>, LeaseError> {
        let failed = |e| {
            if error::no_such_lease(&e) { Ok(None) } else { Err(error::of_call(operation, &self.place, e)) }
        };
        let opened = self.send(|| {
            let mut leases = self.client.lease_client();
            async move { leases.keep_alive(id).await }
        });
        let (mut keeper, mut replies) = match opened.await {
            Ok(opened) => opened,
            Err(e) => return failed(e),
        };
        let sent = self.clock.now();
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

    async fn call<T, F>(&self, operation: Operation, request: impl Fn() -> F) -> Result<T, LeaseError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.send(request).await.map_err(|e| error::of_call(operation, &self.place, e))
    }

    /// Sends a request. The client spreads requests over the members without looking whether they live, so one that could not be
    /// sent is sent to another; one that may have been sent is not.
    async fn send<T, F>(&self, request: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut left = if self.members > 1 { TRIES } else { 0 };
        loop {
            match request().await {
                Err(e) if left > 0 && error::never_sent(&e) => left = left.saturating_sub(1),
                other => return other,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("address", &self.place.address).finish_non_exhaustive()
    }
}

fn client_options(config: &EtcdConfig) -> etcd_client::ConnectOptions {
    let options = &config.options;
    let mut client = etcd_client::ConnectOptions::new()
        .with_timeout(options.call_timeout)
        .with_connect_timeout(options.connect_timeout)
        .with_require_leader(true)
        // Finds a dead peer when it is asked; etcd closes connections that ping more often than each 5 s, or while idle.
        .with_keep_alive(Duration::from_secs(10), options.call_timeout)
        .with_keep_alive_while_idle(false)
        .with_tcp_keepalive(Duration::from_secs(10));
    if let Some((user, password)) = config.login() {
        // A request that was refused for its outdated login is sent again after a new one: it has not run.
        client = client.with_user(user, password).with_auto_token_refresh(true);
    }
    client
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}
