//! What the tests of this crate share: private servers, and etcd itself behind the library's back.

use etcd_client::{Client, GetOptions, KeyValue};
use lease_core::{Acquisition, Attempt, Lease, LeaseBackend, ResourceName, Ttl};
use lease_etcd::EtcdBackend;
use lease_servers::{EtcdSetup, Server};
use std::time::Duration;

/// The shortest TTL of a private server.
pub(crate) const TTL: Duration = Duration::from_secs(1);

pub(crate) fn server() -> Server {
    lease_servers::etcd(&EtcdSetup::default()).unwrap()
}

pub(crate) async fn backend(server: &Server) -> EtcdBackend {
    EtcdBackend::connect(server.url()).await.unwrap()
}

pub(crate) fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).unwrap()
}

pub(crate) fn attempt(resource: &str, ttl: Duration) -> Attempt {
    Attempt::new(name(resource), Ttl::parse(ttl).unwrap()).unwrap()
}

/// Acquires what must be free.
pub(crate) async fn acquire(backend: &EtcdBackend, resource: &str, ttl: Duration) -> Lease {
    repeat(backend, &attempt(resource, ttl)).await
}

/// Acquires with this attempt, which must succeed.
pub(crate) async fn repeat(backend: &EtcdBackend, attempt: &Attempt) -> Lease {
    match backend.acquire(attempt).await.unwrap() {
        Acquisition::Acquired(lease) => lease,
        held @ Acquisition::Held(_) => panic!("{held:?}"),
    }
}

pub(crate) async fn is_held(backend: &EtcdBackend, resource: &str) -> bool {
    backend.inspect(&name(resource)).await.unwrap().held.is_some()
}

/// Waits until the store has ended the grant of `resource`, however long it takes.
pub(crate) async fn until_free(backend: &EtcdBackend, resource: &str) {
    while is_held(backend, resource).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The same grant with a state of its own, as another process would have it.
pub(crate) fn elsewhere(lease: &Lease) -> Lease {
    lease.clone().into_hand_over().into_lease(lease_core::SystemClock::shared()).unwrap()
}

/// etcd's own client.
pub(crate) async fn raw(server: &Server) -> Client {
    Client::connect([format!("127.0.0.1:{}", server.port())], None).await.unwrap()
}

/// All keys of the namespace.
pub(crate) async fn keys(raw: &Client) -> Vec<KeyValue> {
    let all = GetOptions::new().with_prefix();
    raw.kv_client().get("leasehold/", Some(all)).await.unwrap().take_kvs()
}

/// All etcd leases of the cluster.
pub(crate) async fn etcd_leases(raw: &Client) -> usize {
    raw.lease_client().leases().await.unwrap().leases().len()
}
