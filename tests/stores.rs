//! One program on every store that is compiled in: only the URL differs. Real servers, started here.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use leasehold::{
    DestinationExt, FencingToken, GuardError, GuardedDestination, Lease, LeaseBackend, LeaseExt, Refusal, Registry,
    Release,
};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

async fn lease(backend: &dyn LeaseBackend) -> Lease {
    backend.try_acquire("accounts/42", TTL).await.unwrap().unwrap()
}

/// The older grant's write is refused after the newer one has sealed, and the newer one's lands.
async fn guards(destination: &dyn GuardedDestination, older: &FencingToken, newer: &FencingToken, lease: &Lease) {
    assert!(older < newer);
    for _start_of_the_program in 0..2 {
        destination.trust(newer.authority()).await.unwrap();
    }
    destination.seal(lease.resource(), newer).await.unwrap();
    match destination.write(lease.resource(), older, "stale").await {
        Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. }) => {}
        other => panic!("a stale write at {}: {other:?}", destination.kind()),
    }
    destination.write(lease.resource(), newer, "fresh").await.unwrap();
    let stored = destination.read(lease.resource()).await.unwrap();
    assert_eq!(stored.value.as_deref(), Some("fresh"));
}

/// What a program does, whatever the store: exclusion, fencing at the same store and at another one, release.
async fn drive(name: &str, url: &str) {
    let registry = Registry::new();
    let (one, two) = (registry.connect(url).await.unwrap(), registry.connect(url).await.unwrap());
    assert_eq!(one.description().name, name, "the scheme chooses the backend and its client");

    let first = lease(&*one).await;
    assert!(two.try_acquire("accounts/42", TTL).await.unwrap().is_none());
    assert_eq!(one.release(&first).await.unwrap(), Release::Released);
    let second = lease(&*two).await;
    assert_ne!(one.release(&first).await.unwrap(), Release::EndedCauseUnknown, "the answer is definite");
    assert!(one.try_acquire("accounts/42", TTL).await.unwrap().is_none(), "the newer lease was left alone");

    let (older, newer) = (first.token().unwrap(), second.token().unwrap());
    for destination in [url, "memory:"] {
        let destination = registry.connect_destination(destination).await.unwrap();
        guards(&*destination, older, newer, &second).await;
    }
    assert_eq!(two.release(&second).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn memory() {
    drive("memory", "memory:stores").await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("leases.db");
    drive("sqlite", &format!("sqlite://{}", file.display())).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis() {
    let server = lease_servers::redis(&lease_servers::RedisSetup::default()).unwrap();
    drive("redis", server.url()).await;
}

#[cfg(feature = "redis-fred")]
#[tokio::test]
async fn redis_by_fred() {
    let server = lease_servers::redis(&lease_servers::RedisSetup::default()).unwrap();
    drive("redis-fred", &server.url().replacen("redis:", "redis+fred:", 1)).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn etcd() {
    let server = lease_servers::etcd(&lease_servers::EtcdSetup::default()).unwrap();
    drive("etcd", server.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn postgres() {
    let server = lease_servers::postgres(&lease_servers::PostgresSetup::default()).unwrap();
    drive("postgres", server.url()).await;
    let longer = server.url().replacen("postgres:", "postgresql:", 1);
    assert_eq!(leasehold::connect(&longer).await.unwrap().description().name, "postgres");
}
