//! A grant from its making to its end.

use crate::support::*;
use lease_core::{Acquisition, Claim, Effect, FencedRegister, LeaseBackend, LeaseError, LossReason, Release, Renewal};
use lease_etcd::EtcdBackend;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn one_holder_then_the_next_with_a_larger_token() {
    let server = server();
    let backend = backend(&server).await;
    let first = acquire(&backend, "r", LONG).await;
    assert_eq!(first.granted_ttl(), LONG);
    match backend.acquire(&attempt("r", LONG)).await.unwrap() {
        Acquisition::Held(held) => assert!(held.remaining.unwrap() <= LONG && held.remaining.unwrap() > TTL),
        Acquisition::Acquired(_) => panic!("re-entrant"),
    }
    let Renewal::Renewed(renewed) = backend.renew(&first).await.unwrap() else { panic!("lost") };
    assert!(renewed.deadline() > first.deadline());
    assert_eq!(renewed.token(), first.token(), "renewing keeps the token");

    assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
    assert_eq!(backend.release(&first).await.unwrap(), Release::Released, "idempotent");
    assert!(matches!(backend.renew(&first).await.unwrap(), Renewal::Lost(LossReason::Released)));

    let second = acquire(&backend, "r", LONG).await;
    assert!(second.token().unwrap() > first.token().unwrap());
    assert_eq!(backend.release(&elsewhere(&first)).await.unwrap(), Release::Released, "of the first, long ago");
    assert!(matches!(backend.renew(&second).await.unwrap(), Renewal::Renewed(_)), "the second is untouched");
}

#[tokio::test]
async fn expiry_ends_a_grant_for_good_and_leaves_nothing() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let first = acquire(&backend, "r", TTL).await;
    until_free(&backend, "r").await;
    assert!(first.is_past_deadline(), "the store never ends it before the holder's own deadline");
    assert!(matches!(backend.renew(&first).await.unwrap(), Renewal::Lost(LossReason::Expired)), "nobody took it");
    assert_eq!(backend.release(&first).await.unwrap(), Release::NotHeld);
    assert!(!is_held(&backend, "r").await, "renewing resurrects nothing");

    let second = acquire(&backend, "r", TTL).await;
    assert!(second.token().unwrap() > first.token().unwrap());
    assert!(matches!(backend.renew(&first).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(backend.release(&first).await.unwrap(), Release::NotHeld);
    assert!(is_held(&backend, "r").await, "the second is untouched");
    assert_eq!(backend.release(&second).await.unwrap(), Release::Released);

    // Not even the marker of the release stays.
    while keys(&raw).await.len() > 1 || etcd_leases(&raw).await > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(keys(&raw).await.first().unwrap().key(), b"leasehold/lease/incarnation");
    assert!(backend.claims().has(Claim::IdleNamesForgotten));
}

#[tokio::test]
async fn a_renewed_grant_outlives_its_first_ttl() {
    let server = server();
    let backend = backend(&server).await;
    let mut lease = acquire(&backend, "r", TTL).await;
    let first_end = lease.deadline().saturating_add(TTL * 2);
    while backend.clock().now() < first_end {
        let Renewal::Renewed(renewed) = backend.renew(&lease).await.unwrap() else { panic!("lost") };
        lease = renewed;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_repeat_finds_the_same_grant_and_does_not_extend_it() {
    let server = server();
    let backend = backend(&server).await;
    let attempt = attempt("r", TTL);
    let first = repeat(&backend, &attempt).await;
    while backend.clock().now() < first.deadline() {
        match backend.acquire(&attempt).await {
            Ok(Acquisition::Acquired(again)) => {
                assert_eq!((again.token(), again.deadline()), (first.token(), first.deadline()));
                assert_eq!(again.granted_ttl(), first.granted_ttl());
            }
            Err(LeaseError::AttemptOver { .. } | LeaseError::LateGrant { .. }) => break,
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until_free(&backend, "r").await;
    assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));
    assert!(!is_held(&backend, "r").await);
}

#[tokio::test]
async fn a_repeat_after_the_release_makes_no_grant() {
    let server = server();
    let backend = backend(&server).await;
    for ttl in [LONG, Duration::from_hours(1)] {
        let attempt = attempt("r", ttl);
        let lease = elsewhere(&repeat(&backend, &attempt).await);
        // Another process releases, so that this one's attempt does not know and the store has to.
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        let error = backend.acquire(&attempt).await.unwrap_err();
        assert!(matches!(error, LeaseError::AttemptOver { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
        assert!(!is_held(&backend, "r").await);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "the marker remembers");
    }
}

#[tokio::test]
async fn an_abandoned_attempt_ends_its_grant_and_only_that() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let mine = attempt("r", LONG);
    let lease = repeat(&backend, &mine).await;
    backend.abandon(&mine).await.unwrap();
    assert!(!is_held(&backend, "r").await);
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Released)));
    assert!(matches!(backend.acquire(&mine).await, Err(LeaseError::AttemptOver { .. })));
    assert_eq!(etcd_leases(&raw).await, 1, "the marker's only");

    let other = acquire(&backend, "r", LONG).await;
    backend.abandon(&mine).await.unwrap();
    let never_sent = attempt("r", LONG);
    backend.abandon(&never_sent).await.unwrap();
    assert!(matches!(backend.renew(&other).await.unwrap(), Renewal::Renewed(_)));
}

#[tokio::test]
async fn racing_acquirers_get_it_one_by_one_with_growing_tokens() {
    let server = server();
    let holders = Arc::new(AtomicU64::new(0));
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (backend, holders) = (backend(&server).await, Arc::clone(&holders));
        racers.spawn(async move {
            let mut tokens = Vec::new();
            while tokens.len() < 5 {
                let Acquisition::Acquired(lease) = backend.acquire(&attempt("r", LONG)).await.unwrap() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let token = lease.token().unwrap().value();
                assert_eq!(holders.swap(token, Ordering::SeqCst), 0, "two holders");
                tokens.push(token);
                assert_eq!(holders.swap(0, Ordering::SeqCst), token);
                assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
            }
            tokens
        });
    }
    let mut all = Vec::new();
    while let Some(tokens) = racers.join_next().await {
        let tokens = tokens.unwrap();
        assert!(tokens.is_sorted(), "a later grant has a larger token: {tokens:?}");
        all.extend(tokens);
    }
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

#[tokio::test]
async fn a_losing_attempt_leaves_no_etcd_lease() {
    let server = server();
    let raw = raw(&server).await;
    let holder = backend(&server).await;
    let lease = acquire(&holder, "r", LONG).await;
    // One that knows nothing makes an etcd lease first and takes it back; one that knows looks first.
    let other = backend(&server).await;
    for _ in 0..2 {
        assert!(matches!(other.acquire(&attempt("r", LONG)).await.unwrap(), Acquisition::Held(_)));
        assert_eq!(etcd_leases(&raw).await, 1);
    }
    assert_eq!(holder.release(&lease).await.unwrap(), Release::Released);
    acquire(&other, "r", LONG).await;
}

#[tokio::test]
async fn the_native_fence_refuses_from_the_end_on() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let lease = acquire(&backend, "r", LONG).await;
    FencedRegister::write(&backend, &lease, "mine").await.unwrap();
    let own_txn = |lease| {
        let put = etcd_client::TxnOp::put("mine/data", "x", None);
        let txn = etcd_client::Txn::new().when(backend.compares(lease)).and_then([put]);
        let mut kv = raw.kv_client();
        async move { kv.txn(txn).await.unwrap().succeeded() }
    };
    assert!(own_txn(&lease).await);
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    for next_holder in [false, true] {
        if next_holder {
            acquire(&backend, "r", LONG).await;
        }
        assert!(!own_txn(&lease).await);
        assert!(FencedRegister::write(&backend, &lease, "stale").await.is_err());
        assert_eq!(FencedRegister::read(&backend, &name("r")).await.unwrap().as_deref(), Some("mine"));
    }
}

#[tokio::test]
async fn purge_removes_everything_and_changes_the_authority() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let other = EtcdBackend::connect(&format!("{}/?namespace=other", server.url())).await.unwrap();
    let theirs = acquire(&other, "r", LONG).await;
    let lease = acquire(&backend, "r", LONG).await;
    FencedRegister::write(&backend, &lease, "x").await.unwrap();
    backend.abandon(&attempt("s", LONG)).await.unwrap();
    backend.purge().await.unwrap();
    assert!(keys(&raw).await.is_empty());
    assert_eq!(etcd_leases(&raw).await, 1, "the other namespace's");
    assert!(matches!(other.renew(&theirs).await.unwrap(), Renewal::Renewed(_)));

    let next = acquire(&backend, "r", LONG).await;
    assert_ne!(next.token().unwrap().authority(), lease.token().unwrap().authority());
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
}

#[tokio::test]
async fn purge_takes_its_time_with_many_grants() {
    let server = server();
    let proxy = lease_servers::Proxy::to(server.port()).unwrap();
    let near = backend(&server).await;
    let far = EtcdBackend::connect(&format!("etcd://127.0.0.1:{}/?call_timeout_ms=1000", proxy.port())).await.unwrap();
    for n in 0..60 {
        acquire(&near, &n.to_string(), LONG).await;
    }
    // Longer than one call for all of them, much shorter for one.
    proxy.set(lease_servers::Direction::Replies, lease_servers::Mode::Delay(Duration::from_millis(30)));
    far.purge().await.unwrap();
    assert_eq!(keys(&raw(&server).await).await.len(), 0);
}
