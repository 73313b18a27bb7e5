//! An operator's order to end somebody else's grant.

use crate::faults::{FAULTS, held_back, patient};
use crate::support::*;
use etcd_client::{Client, PutOptions};
use lease_core::{
    Effect, FenceError, FencedRegister, FencingToken, ForceRelease, Forced, HolderLabel, Lease, LeaseBackend,
    LeaseError, LossReason, Release, Renewal,
};
use lease_etcd::EtcdBackend;
use lease_servers::{Direction, Mode, Proxy};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const KEY: &str = "leasehold/lease/grant/r";

pub(crate) fn order(resource: &str, value: u64) -> ForceRelease {
    ForceRelease::new(name(resource), value, HolderLabel::parse("ops").unwrap(), "a test").unwrap()
}

fn value(lease: &Lease) -> u64 {
    lease.token().unwrap().value()
}

async fn force(backend: &EtcdBackend, resource: &str, value: u64) -> Forced {
    backend.force_release(&order(resource, value)).await.unwrap()
}

async fn loss(backend: &EtcdBackend, lease: &Lease) -> LossReason {
    match backend.renew(lease).await.unwrap() {
        Renewal::Lost(reason) => reason,
        Renewal::Renewed(_) => panic!("renewed"),
    }
}

/// The markers of attempts that are over: what each says, and the TTL of its etcd lease.
async fn markers(raw: &Client) -> Vec<(String, Duration)> {
    let mut found = Vec::new();
    for kv in keys(raw).await.iter().filter(|kv| kv.key().starts_with(b"leasehold/lease/spent/")) {
        let lease = raw.lease_client().time_to_live(kv.lease(), None).await.unwrap();
        let ttl = Duration::from_secs(u64::try_from(lease.granted_ttl()).unwrap());
        found.push((kv.value_str().unwrap().to_owned(), ttl));
    }
    found
}

#[tokio::test]
async fn the_named_grant_ends_for_good() {
    let server = server();
    let (holder, operator, raw) = (backend(&server).await, backend(&server).await, raw(&server).await);
    let broken = acquire(&holder, "r", LONG).await;
    FencedRegister::write(&holder, &broken, "before").await.unwrap();
    assert_eq!(force(&operator, "r", value(&broken)).await, Forced::Ended);
    assert_eq!(force(&operator, "r", value(&broken)).await, Forced::NotHeld, "the repeat");
    assert!(!is_held(&holder, "r").await);
    assert_eq!(markers(&raw).await, [("forced".into(), LONG * 2)]);
    assert_eq!(etcd_leases(&raw).await, 1, "the marker's only");
    assert!(matches!(FencedRegister::write(&holder, &broken, "after").await, Err(FenceError::Refused { .. })));

    let other_process = elsewhere(&broken);
    let mut next = None;
    for _ in 0..2 {
        assert_eq!(loss(&holder, &broken).await, LossReason::Forced);
        assert_eq!(holder.release(&broken).await.unwrap(), Release::NotHeld);
        // Of a lease that came from elsewhere the marker is renewed.
        assert_eq!(holder.release(&other_process).await.unwrap(), Release::NotHeld);
        assert_eq!(loss(&holder, &broken).await, LossReason::Forced, "the marker keeps what it says");
        if next.is_none() {
            next = Some(acquire(&holder, "r", LONG).await);
        }
    }
    let next = next.unwrap();
    assert!(next.token().unwrap() > broken.token().unwrap());
    assert_eq!(force(&operator, "r", value(&broken)).await, Forced::OtherGrant { value: value(&next) });
    assert!(matches!(holder.renew(&next).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(FencedRegister::read(&holder, &name("r")).await.unwrap().as_deref(), Some("before"));
}

#[tokio::test]
async fn what_the_order_does_not_name_is_left_as_it_is() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let lease = acquire(&backend, "r", LONG).await;
    let live = value(&lease);
    let before = raw.kv_client().get(KEY, None).await.unwrap().take_kvs();
    for other in [1, live.saturating_sub(1), live.saturating_add(1), FencingToken::MAX_VALUE] {
        assert_eq!(force(&backend, "r", other).await, Forced::OtherGrant { value: live }, "{other}");
    }
    assert_eq!(force(&backend, "never", live).await, Forced::NotHeld);
    let after = raw.kv_client().get(KEY, None).await.unwrap().take_kvs();
    assert_eq!(after.first().unwrap().mod_revision(), before.first().unwrap().mod_revision());
    assert_eq!((etcd_leases(&raw).await, markers(&raw).await), (1, vec![]), "no order left anything");
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    assert_eq!(force(&backend, "r", live).await, Forced::NotHeld, "released");
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "as it was before the order");

    let expired = acquire(&backend, "s", TTL).await;
    until_free(&backend, "s").await;
    assert_eq!(force(&backend, "s", value(&expired)).await, Forced::NotHeld);
    assert_eq!(loss(&backend, &expired).await, LossReason::Expired);
}

#[tokio::test]
async fn the_broken_grants_attempt_makes_no_grant_any_more() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let broken = attempt("r", TTL);
    let lease = repeat(&backend, &broken).await;
    let over = async |when| {
        let answer = backend.acquire(&broken.as_held_up()).await;
        assert!(matches!(answer, Err(LeaseError::AttemptOver { .. })), "{when}: {answer:?}");
    };
    assert_eq!(force(&backend, "r", value(&lease)).await, Forced::Ended);
    assert_eq!(markers(&raw).await, [("forced".into(), Duration::from_secs(10))], "at least ten seconds");
    over("at once").await;
    let between = acquire(&backend, "r", LONG).await;
    over("beside another grant").await;
    assert_eq!(backend.release(&between).await.unwrap(), Release::Released);
    over("after another grant").await;
    backend.abandon(&broken).await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld, "also after it was abandoned");
}

#[tokio::test]
async fn a_late_transaction_makes_no_grant_after_the_order() {
    let server = server();
    let (direct, raw) = (backend(&server).await, raw(&server).await);
    let mine = attempt("r", LONG);
    let (proxy, acquiring) = held_back(&server, &mine).await;
    let lease = repeat(&direct, &mine).await;
    assert_eq!(force(&direct, "r", value(&lease)).await, Forced::Ended);
    assert_eq!(etcd_leases(&raw).await, 1, "neither the repeat's nor the first request's is left, but the marker's");
    proxy.set(Direction::Requests, Mode::Pass);
    acquiring.await.unwrap();
    assert!(!is_held(&direct, "r").await);
    assert_eq!(direct.release(&lease).await.unwrap(), Release::NotHeld);
}

/// The order looks at a grant that is released right afterwards, and another one is made: the transaction has to find that out.
#[tokio::test]
async fn a_grant_that_was_made_since_the_order_looked_is_left_alone() {
    let server = server();
    let direct = backend(&server).await;
    let (proxy, operator) = patient(&server).await;
    assert_eq!(force(&operator, "warm", 1).await, Forced::NotHeld);
    let named = acquire(&direct, "r", LONG).await;
    let order = order("r", value(&named));
    proxy.set(Direction::Replies, Mode::Hold);
    let seen = proxy.counts().1;
    let ordering = tokio::spawn(async move { operator.force_release(&order).await });
    while proxy.counts().1 <= seen {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(direct.release(&named).await.unwrap(), Release::Released);
    let next = acquire(&direct, "r", LONG).await;
    proxy.set(Direction::Replies, Mode::Pass);
    assert_eq!(ordering.await.unwrap().unwrap(), Forced::OtherGrant { value: value(&next) });
    assert!(matches!(direct.renew(&next).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(direct.release(&named).await.unwrap(), Release::Released, "it was released, not broken");
}

#[tokio::test]
async fn a_record_that_would_never_end_can_be_ended() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let lease = acquire(&backend, "r", LONG).await;
    raw.kv_client().put(KEY, "", Some(PutOptions::new().with_ignore_value())).await.unwrap();
    assert_eq!(force(&backend, "r", value(&lease)).await, Forced::Ended);
    assert!(!is_held(&backend, "r").await);

    raw.kv_client().put(KEY, "precious", None).await.unwrap();
    let error = backend.force_release(&order("r", 1)).await.unwrap_err();
    assert!(matches!(error, LeaseError::ForeignData { .. }), "{error:?}");
    assert_eq!(raw.kv_client().get(KEY, None).await.unwrap().kvs().first().unwrap().value(), b"precious");
}

#[tokio::test]
async fn an_order_without_an_answer_is_unknown_and_can_be_repeated() {
    let server = server();
    let holder = backend(&server).await;
    let proxy = Proxy::to(server.port()).unwrap();
    let url = format!("etcd://127.0.0.1:{}/?call_timeout_ms=500", proxy.port());
    let operator = EtcdBackend::connect(&url).await.unwrap();
    for passed in 0..6 {
        let fault = FAULTS[passed % FAULTS.len()];
        let broken = acquire(&holder, "r", LONG).await;
        proxy.once_after(u32::try_from(passed).unwrap(), fault);
        match operator.force_release(&order("r", value(&broken))).await {
            Ok(answer) => assert_eq!(answer, Forced::Ended, "what was cut came after it"),
            // The cut may come before there is a connection to send it on.
            Err(LeaseError::Unreachable { .. }) => {}
            Err(error) => {
                assert_eq!(error.effect(), Effect::Unknown, "{fault:?}: {error}");
                assert!(error.to_string().contains("force-release"), "{error}");
            }
        }
        proxy.heal();
        let again = until_answered(&operator, &order("r", value(&broken))).await;
        assert!(matches!(again, Forced::Ended | Forced::NotHeld), "{fault:?}: {again:?}");
        assert_eq!(loss(&holder, &broken).await, LossReason::Forced, "{fault:?}");
    }
}

/// The first call after a fault may still meet the old connection.
async fn until_answered(operator: &EtcdBackend, order: &ForceRelease) -> Forced {
    loop {
        match operator.force_release(order).await {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error.kind(), lease_core::ErrorKind::Transport, "{error}"),
        }
    }
}

#[tokio::test]
async fn a_dropped_order_leaves_nothing_past_twice_the_ttl() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    for polls in 0..12 {
        let broken = acquire(&backend, "r", TTL).await;
        let order = order("r", value(&broken));
        let mut ordering = Box::pin(backend.force_release(&order));
        for _ in 0..polls {
            let once = std::future::poll_fn(|cx| std::task::Poll::Ready(ordering.as_mut().poll(cx).is_ready()));
            if once.await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(ordering);
        let again = backend.force_release(&order).await.unwrap();
        assert!(matches!(again, Forced::Ended | Forced::NotHeld), "{again:?}");
    }
    while etcd_leases(&raw).await > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(keys(&raw).await.len(), 1, "the incarnation");
}
