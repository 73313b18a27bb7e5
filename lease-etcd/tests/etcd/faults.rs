//! What others do to the keys, lost replies, late requests, and a killed server.

use crate::support::*;
use lease_core::{
    Acquisition, Advice, Claim, Effect, FenceError, FencedRegister, LeaseBackend, LeaseError, LossReason, Release,
    Renewal,
};
use lease_etcd::EtcdBackend;
use lease_servers::{Direction, EtcdSetup, Mode, Once, Proxy, Server};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const KEY: &str = "leasehold/lease/grant/r";

#[tokio::test]
async fn a_key_deleted_by_hand_is_a_loss_though_its_etcd_lease_lives() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let lease = acquire(&backend, "r", LONG).await;
    raw.kv_client().delete(KEY, None).await.unwrap();
    assert_eq!(etcd_leases(&raw).await, 1, "a keep-alive alone would succeed");
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Gone)));
    assert_eq!(backend.release(&elsewhere(&lease)).await.unwrap(), Release::NotHeld);

    // Somebody else's record under the key is left alone.
    let next = acquire(&backend, "r", LONG).await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
    assert!(matches!(backend.renew(&next).await.unwrap(), Renewal::Renewed(_)));
}

#[tokio::test]
async fn a_record_put_back_by_hand_is_not_the_same_grant() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let lease = acquire(&backend, "r", LONG).await;
    let record = raw.kv_client().get(KEY, None).await.unwrap().take_kvs().remove(0);
    raw.kv_client().delete(KEY, None).await.unwrap();
    let same = etcd_client::PutOptions::new().with_lease(record.lease());
    raw.kv_client().put(KEY, record.value(), Some(same)).await.unwrap();
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(_)), "it was not held all the time");
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
    assert!(is_held(&backend, "r").await);
}

#[tokio::test]
async fn a_record_whose_etcd_lease_was_taken_off_is_released_and_leaves_nothing_for_ever() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let lease = acquire(&backend, "r", LONG).await;
    raw.kv_client().put(KEY, "", Some(etcd_client::PutOptions::new().with_ignore_value())).await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    assert!(!is_held(&backend, "r").await);
    let left = keys(&raw).await;
    let for_ever = left.iter().filter(|kv| kv.lease() == 0 && kv.key() != b"leasehold/lease/incarnation");
    assert_eq!(for_ever.count(), 0, "{left:?}");
}

/// A write whose turn comes when the space has just run out is done, and answered with an error all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_runs_full_never_denies_what_it_did() {
    let setup = EtcdSetup { extra_args: vec!["--quota-backend-bytes=20000000".into()], ..EtcdSetup::default() };
    let server = lease_servers::etcd(&setup).unwrap();
    let backend = EtcdBackend::connect(&format!("{}/?call_timeout_ms=600000", server.url())).await.unwrap();
    let mut leases = Vec::new();
    for n in 0..50 {
        leases.push(acquire(&backend, &n.to_string(), LONG * 100).await);
    }
    let (mut full, mut wave) = (false, 0);
    while !full {
        wave += 1;
        let value = format!("{wave:0>10}").repeat(100_000);
        let mut writing = tokio::task::JoinSet::new();
        for lease in leases.clone() {
            let (backend, value) = (backend.clone(), value.clone());
            writing.spawn(async move { (FencedRegister::write(&backend, &lease, &value).await, lease) });
        }
        while let Some(written) = writing.join_next().await {
            let (Err(FenceError::Store(error)), lease) = written.unwrap() else { continue };
            assert!(error.to_string().contains("space exceeded"), "{error}");
            assert_eq!(error.advice(), Advice::Fix);
            let landed = FencedRegister::read(&backend, lease.resource()).await.unwrap() == Some(value.clone());
            assert!(error.effect() == Effect::Unknown || !landed, "{error}");
            full = true;
        }
    }

    // Nothing of a grant that could not be confirmed stays.
    let etcd_leases_before = etcd_leases(&raw(&server).await).await;
    let error = backend.acquire(&attempt("r", LONG)).await.unwrap_err();
    assert!(error.to_string().contains("space exceeded"), "{error}");
    assert_eq!(etcd_leases(&raw(&server).await).await, etcd_leases_before);
    assert!(!is_held(&backend, "r").await);
    let lease = leases.first().unwrap();
    assert!(matches!(backend.renew(lease).await.unwrap(), Renewal::Renewed(_)), "a holder can go on");
    assert_eq!(backend.release(lease).await.unwrap_err().effect(), Effect::Unknown);
}

#[tokio::test]
async fn a_revoked_etcd_lease_is_a_loss_at_once() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let lease = acquire(&backend, "r", LONG).await;
    let id = raw.lease_client().leases().await.unwrap().leases().first().unwrap().id();
    raw.lease_client().revoke(id).await.unwrap();
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Gone)));
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
}

#[tokio::test]
async fn foreign_data_is_named_and_left_alone() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    raw.kv_client().put(KEY, "precious", None).await.unwrap();
    for error in
        [backend.acquire(&attempt("r", LONG)).await.unwrap_err(), backend.inspect(&name("r")).await.unwrap_err()]
    {
        assert!(matches!(error, LeaseError::ForeignData { .. }), "{error:?}");
        assert_eq!(error.effect(), Effect::None);
    }
    backend.abandon(&attempt("r", LONG)).await.unwrap();
    assert_eq!(raw.kv_client().get(KEY, None).await.unwrap().kvs().first().unwrap().value(), b"precious");

    // What only begins like a name's key is in nobody's way.
    for beside in ["leasehold/lease/grant/s/zzz", "leasehold/lease/grant/szzz"] {
        raw.kv_client().put(beside, "precious", None).await.unwrap();
    }
    let lease = acquire(&backend, "s", LONG).await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    assert!(!is_held(&backend, "s").await);
}

#[tokio::test]
async fn a_vanished_incarnation_gives_a_new_authority() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let mine = attempt("r", LONG);
    let before = repeat(&backend, &mine).await;
    let key = "leasehold/lease/incarnation";
    raw.kv_client().delete(key, None).await.unwrap();
    let after = acquire(&backend, "s", LONG).await;
    assert_ne!(before.token().unwrap().authority(), after.token().unwrap().authority());
    assert_eq!(repeat(&backend, &mine).await.token(), before.token(), "a grant keeps its token");
    raw.kv_client().put(key, "00000000000000aa", None).await.unwrap();
    let restored = acquire(&backend, "t", LONG).await;
    assert!(restored.token().unwrap().authority().as_str().ends_with("-00000000000000aa:0"));
    raw.kv_client().put(key, "zebra", None).await.unwrap();
    let error = backend.acquire(&attempt("u", LONG)).await.unwrap_err();
    assert!(matches!(error, LeaseError::NotSetUp { .. }) && error.to_string().contains(key), "{error}");
    assert_eq!(etcd_leases(&raw).await, 3, "the failed attempt left none");
}

#[tokio::test]
async fn grants_and_tokens_survive_a_killed_server() {
    let mut server = server();
    let backend = backend(&server).await;
    let lease = acquire(&backend, "r", LONG).await;
    let other = acquire(&backend, "s", LONG).await;
    server.kill();
    server.restart().unwrap();
    let backend = EtcdBackend::connect(server.url()).await.unwrap();
    assert!(matches!(backend.acquire(&attempt("r", LONG)).await.unwrap(), Acquisition::Held(_)));
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(backend.release(&other).await.unwrap(), Release::Released);
    let next = acquire(&backend, "s", LONG).await;
    assert!(next.token().unwrap() > other.token().unwrap(), "larger, of the same authority");
    assert!(backend.claims().has(Claim::TokenSurvivesRestart) && backend.claims().has(Claim::LeaseSurvivesRestart));
}

/// A backend behind a proxy. Its own limit is long, so that it never takes a request back.
pub(crate) async fn patient(server: &Server) -> (Proxy, EtcdBackend) {
    let proxy = Proxy::to(server.port()).unwrap();
    let url = format!("etcd://127.0.0.1:{}/?call_timeout_ms=600000", proxy.port());
    let backend = EtcdBackend::connect(&url).await.unwrap();
    (proxy, backend)
}

/// Waits until the proxy has seen more requests than `seen`.
async fn until_requests(proxy: &Proxy, seen: u64) {
    while proxy.counts().0 <= seen {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts to acquire and holds the transaction back on its way, while its etcd lease is there already.
pub(crate) async fn held_back(server: &Server, mine: &lease_core::Attempt) -> (Proxy, tokio::task::JoinHandle<()>) {
    let (proxy, backend) = patient(server).await;
    let raw = raw(server).await;
    let before = etcd_leases(&raw).await;
    // The reply to the request for the etcd lease waits in the proxy until the trap for what follows is set.
    proxy.set(Direction::Replies, Mode::Hold);
    let mine = mine.clone();
    let acquiring = tokio::spawn(async move { drop(backend.acquire(&mine).await) });
    while etcd_leases(&raw).await == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Direction::Requests, Mode::Hold);
    let seen = proxy.counts().0;
    proxy.set(Direction::Replies, Mode::Pass);
    until_requests(&proxy, seen).await;
    (proxy, acquiring)
}

#[tokio::test]
async fn a_late_transaction_makes_a_grant_unless_the_attempt_was_abandoned() {
    for abandon in [false, true] {
        let server = server();
        let direct = backend(&server).await;
        let mine = attempt("r", LONG);
        let (proxy, acquiring) = held_back(&server, &mine).await;
        assert!(!is_held(&direct, "r").await);
        if abandon {
            direct.abandon(&mine).await.unwrap();
        }
        proxy.set(Direction::Requests, Mode::Pass);
        acquiring.await.unwrap();
        assert_eq!(is_held(&direct, "r").await, !abandon, "the control shows that it was on its way");
    }
}

#[tokio::test]
async fn a_late_transaction_makes_no_grant_after_a_repeat_was_released() {
    let server = server();
    let direct = backend(&server).await;
    let mine = attempt("r", LONG);
    let (proxy, acquiring) = held_back(&server, &mine).await;
    let lease = repeat(&direct, &mine).await;
    assert!(matches!(direct.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "on the repeat's own etcd lease");
    assert_eq!(direct.release(&lease).await.unwrap(), Release::Released);
    proxy.set(Direction::Requests, Mode::Pass);
    acquiring.await.unwrap();
    assert!(!is_held(&direct, "r").await);
}

#[tokio::test]
async fn a_grant_that_arrives_after_its_deadline_is_no_success() {
    let server = server();
    let direct = backend(&server).await;
    let (proxy, slow) = patient(&server).await;
    let mine = attempt("r", TTL);
    // The first reply is the etcd lease's, which is made then; the second one waits for the grant's end.
    proxy.set(Direction::Replies, Mode::Hold);
    let raw = raw(&server).await;
    let acquiring = tokio::spawn({
        let mine = mine.clone();
        async move { slow.acquire(&mine).await }
    });
    while etcd_leases(&raw).await == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    proxy.set(Direction::Requests, Mode::Hold);
    let seen = proxy.counts().0;
    proxy.set(Direction::Replies, Mode::Pass);
    until_requests(&proxy, seen).await;
    proxy.set(Direction::Replies, Mode::Hold);
    proxy.set(Direction::Requests, Mode::Pass);
    while !is_held(&direct, "r").await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    until_free(&direct, "r").await;
    proxy.set(Direction::Replies, Mode::Pass);
    let error = acquiring.await.unwrap().unwrap_err();
    assert!(matches!(error, LeaseError::LateGrant { .. }), "{error:?}");
    assert!(matches!(direct.acquire(&mine).await, Err(LeaseError::AttemptOver { .. })));
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_a_repeat_finds_the_grant() {
    let server = server();
    let (direct, raw) = (backend(&server).await, raw(&server).await);
    let proxy = Proxy::to(server.port()).unwrap();
    let url = format!("etcd://127.0.0.1:{}/?call_timeout_ms=500", proxy.port());
    let backend = EtcdBackend::connect(&url).await.unwrap();
    let mine = attempt("r", LONG);
    proxy.set(Direction::Replies, Mode::Hole);
    let error = backend.acquire(&mine).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    proxy.set(Direction::Replies, Mode::Pass);
    let lease = repeat(&backend, &mine).await;
    assert!(lease.remaining() < LONG, "it counts from the first send");
    assert_eq!(repeat(&direct, &mine).await.token(), lease.token());

    for fault in FAULTS {
        proxy.once(fault);
        match backend.renew(&lease).await {
            Ok(Renewal::Renewed(_)) => {}
            Ok(lost) => panic!("{lost:?}"),
            Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{error}"),
        }
        assert!(proxy.happened());
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "{fault:?}");
    }
    proxy.set(Direction::Replies, Mode::Hole);
    let error = backend.release(&lease).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    proxy.set(Direction::Replies, Mode::Pass);
    assert!(matches!(backend.release(&lease).await.unwrap(), Release::Released | Release::EndedCauseUnknown));
    assert!(!is_held(&direct, "r").await);
    // One of the attempt's requests has had no answer, so the store remembers for as long as it could still arrive.
    assert!(keys(&raw).await.iter().any(|kv| kv.key().starts_with(b"leasehold/lease/spent/")));
}

pub(crate) const FAULTS: [Once; 4] =
    [Once::CutBeforeRequest, Once::CutAfterRequest, Once::CutBeforeReply, Once::SwallowReply];

/// As a guard does whose TTL is short: it stops waiting long before the call's own limit, and tries again.
#[tokio::test]
async fn a_connection_that_let_a_caller_go_unanswered_is_not_used_again() {
    let server = server();
    let proxy = Proxy::to(server.port()).unwrap();
    let url = format!("etcd://127.0.0.1:{}/?call_timeout_ms=9000", proxy.port());
    let backend = EtcdBackend::connect(&url).await.unwrap();
    let lease = acquire(&backend, "r", LONG).await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    proxy.once(Once::SwallowReply);
    let stalled = tokio::time::timeout(Duration::from_secs(2), backend.renew(&lease)).await;
    assert!(stalled.is_err() && proxy.happened());
    let again = backend.renew(&lease).await;
    assert!(matches!(again, Ok(Renewal::Renewed(_))), "{again:?}");
}

#[tokio::test]
async fn whatever_happens_to_an_acquire_a_repeat_settles_it() {
    let server = server();
    let proxy = Proxy::to(server.port()).unwrap();
    let url = format!("etcd://127.0.0.1:{}/?call_timeout_ms=500", proxy.port());
    let backend = EtcdBackend::connect(&url).await.unwrap();
    for fault in FAULTS {
        let mine = attempt("r", LONG);
        proxy.once(fault);
        match backend.acquire(&mine).await {
            Ok(Acquisition::Acquired(_)) => {}
            Ok(held) => panic!("{held:?}"),
            Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{fault:?}: {error}"),
        }
        assert!(proxy.happened());
        let lease = repeat(&backend, &mine).await;
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "{fault:?}");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "{fault:?}");
    }
}

#[tokio::test]
async fn a_dropped_acquire_leaves_nothing_past_its_ttl() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    for polls in 0..12 {
        let mine = attempt("r", TTL);
        let mut acquiring = Box::pin(backend.acquire(&mine));
        for _ in 0..polls {
            let once = std::future::poll_fn(|cx| std::task::Poll::Ready(acquiring.as_mut().poll(cx).is_ready()));
            if once.await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(acquiring);
    }
    while etcd_leases(&raw).await > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(keys(&raw).await.len(), 1, "the incarnation");
    acquire(&backend, "r", TTL).await;
}
