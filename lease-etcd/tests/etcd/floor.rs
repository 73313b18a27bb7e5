//! A floor given to acquire: etcd cannot choose its revision, so a store that has gone back makes no grant.

use crate::support::*;
use lease_core::{Effect, FencingToken, GuardedDestination, LeaseBackend, LeaseError, Refusal};
use lease_etcd::EtcdDestination;
use lease_servers::Backup;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_store_that_has_gone_back_makes_no_grant_below_the_floor() {
    let (mut server, destination) = (server(), server());
    let destination = EtcdDestination::connect(destination.url()).await.unwrap();
    let r = name("r");
    // The namespace has its history before the backup, so that the authority stays.
    let first = acquire(&backend(&server).await, "before", LONG).await;
    let backup = Backup::of(&server).unwrap();
    let lease = {
        let backend = backend(&server).await;
        for n in 0..5 {
            drop(acquire(&backend, &format!("other {n}"), LONG).await);
        }
        acquire(&backend, "r", LONG).await
    };
    let token = lease.token().unwrap();
    destination.adopt(None, token.authority()).await.unwrap();
    destination.write(&r, token, "new").await.unwrap();
    backup.restore_to(&mut server).unwrap();

    // Without a floor the rollback is seen only at the destination.
    let backend = backend(&server).await;
    let unseen = acquire(&backend, "r", LONG).await;
    assert_eq!(unseen.token().unwrap().authority(), first.token().unwrap().authority(), "the store cannot tell");
    let refused = destination.write(&r, unseen.token().unwrap(), "stale").await.unwrap_err();
    assert!(matches!(&refused, lease_core::GuardError::Refused { refusal: Refusal::Stale { .. }, .. }), "{refused}");
    assert_eq!(backend.release(&unseen).await.unwrap(), lease_core::Release::Released);

    // With it, at the acquire, and nothing is left.
    let raw = raw(&server).await;
    let (keys_before, leases_before) = (keys(&raw).await.len(), etcd_leases(&raw).await);
    let above = attempt("r", LONG).above(destination.read(&r).await.unwrap().floor());
    let error = backend.acquire(&above).await.unwrap_err();
    let LeaseError::BelowFloor { value, floor, effect, .. } = &error else { panic!("{error:?}") };
    assert!(value <= floor && *effect == Effect::None, "{error}");
    assert!(!is_held(&backend, "r").await);
    assert_eq!((keys(&raw).await.len(), etcd_leases(&raw).await), (keys_before, leases_before));

    // Once the store has passed the floor by itself, the same attempt is granted.
    while matches!(backend.acquire(&above).await, Err(LeaseError::BelowFloor { .. })) {
        raw.kv_client().put("elsewhere", "x", None).await.unwrap();
    }
    let passed = repeat(&backend, &above).await;
    assert!(passed.token().map(FencingToken::value) > Some(*floor));
    destination.write(&r, passed.token().unwrap(), "newer").await.unwrap();
}

#[tokio::test]
async fn a_floor_at_the_end_of_the_range_is_refused_before_anything_is_sent() {
    let server = server();
    let backend = backend(&server).await;
    let raw = raw(&server).await;
    let before = etcd_leases(&raw).await;
    for floor in [FencingToken::MAX_VALUE, u64::MAX] {
        let error = backend.acquire(&attempt("r", LONG).above(floor)).await.unwrap_err();
        assert!(matches!(error, LeaseError::InvalidFloor { .. }), "{error}");
    }
    let error = backend.acquire(&attempt("r", LONG).above(FencingToken::MAX_VALUE - 1)).await.unwrap_err();
    assert!(matches!(error, LeaseError::BelowFloor { .. }), "{error}");
    assert_eq!(etcd_leases(&raw).await, before);
}
