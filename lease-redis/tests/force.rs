//! An operator's order on a real server, on both clients.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::*;
use lease_core::{Effect, FenceError, Forced, LeaseBackend, LeaseError, LossReason, Release, Renewal};
use lease_redis::RedisBackend;
use lease_servers::{Once, Proxy, Server};
use std::time::Duration;

const RECORD: &str = "leasehold:{r}:lease";
/// Fields of the record.
const EXPIRES: usize = 5;
const RENEWED: usize = 7;

async fn loss(backend: &RedisBackend, lease: &lease_core::Lease) -> LossReason {
    match backend.renew(lease).await.unwrap() {
        Renewal::Lost(reason) => reason,
        Renewal::Renewed(_) => panic!("renewed"),
    }
}

both! {
    async fn the_named_grant_ends_for_good(server: &mut Server, client: &str) {
        let (holder, operator) = (backend(server, client).await, backend(server, client).await);
        let broken = acquire(&holder, &attempt("r", 30_000)).await;
        let register = holder.fence().register().unwrap();
        register.write(&broken, "before").await.unwrap();
        let order = order("r", value(&broken));
        assert_eq!(operator.force_release(&order).await.unwrap(), Forced::Ended);
        assert_eq!(operator.force_release(&order).await.unwrap(), Forced::NotHeld, "the repeat");
        let seen = holder.inspect(&name("r")).await.unwrap();
        assert_eq!((seen.held, seen.last_value), (None, Some(value(&broken))));
        for _ in 0..2 {
            assert_eq!(loss(&holder, &broken).await, LossReason::Forced);
            assert_eq!(holder.release(&broken).await.unwrap(), Release::NotHeld);
        }
        assert!(matches!(register.write(&broken, "after").await, Err(FenceError::Refused { .. })));
        assert_eq!(register.read(&name("r")).await.unwrap().as_deref(), Some("before"));

        let next = acquire(&holder, &attempt("r", 30_000)).await;
        assert!(next.token() > broken.token());
        let other = Forced::OtherGrant { value: value(&next) };
        assert_eq!(operator.force_release(&order).await.unwrap(), other, "the repeat, late");
        assert_eq!(loss(&holder, &broken).await, LossReason::Superseded);
        assert_eq!(holder.release(&broken).await.unwrap(), Release::NotHeld);
        assert!(matches!(holder.renew(&next).await.unwrap(), Renewal::Renewed(_)));
    }

    async fn what_the_order_does_not_name_is_left_as_it_is(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        let live = value(&lease);
        let before = cli(server, &["GET", RECORD]);
        for other in [1, live.saturating_sub(1), live.saturating_add(1), lease_core::FencingToken::MAX_VALUE] {
            let answer = backend.force_release(&order("r", other)).await.unwrap();
            assert_eq!(answer, Forced::OtherGrant { value: live }, "{other}");
        }
        assert_eq!(backend.force_release(&order("R", live)).await.unwrap(), Forced::NotHeld, "never held");
        assert_eq!(cli(server, &["GET", RECORD]), before);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert_eq!(backend.force_release(&order("r", live)).await.unwrap(), Forced::NotHeld, "released");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "as it was before the order");

        let expired = acquire(&backend, &attempt("r", 30_000)).await;
        expire(server, "r");
        assert_eq!(backend.force_release(&order("r", value(&expired))).await.unwrap(), Forced::NotHeld, "expired");
        assert_eq!(loss(&backend, &expired).await, LossReason::Expired);
        assert_eq!(cli(server, &["KEYS", "*spent*"]), "", "no order left a tombstone");
    }

    async fn the_broken_grants_attempt_makes_no_grant_any_more(server: &mut Server, client: &str) {
        let backend = RedisBackend::connect(&url(server, client, "idle_retention_ms=1")).await.unwrap();
        let broken = attempt("r", 30_000);
        let lease = acquire(&backend, &broken).await;
        let over = async |when| {
            let answer = backend.acquire(&broken.as_held_up()).await;
            assert!(matches!(answer, Err(LeaseError::AttemptOver { .. })), "{when}: {answer:?}");
        };
        assert_eq!(backend.force_release(&order("r", value(&lease))).await.unwrap(), Forced::Ended);
        let ttl_ms: u64 = cli(server, &["PTTL", &spent_key("r", &broken)]).parse().unwrap();
        assert!((30_001..=60_000).contains(&ttl_ms), "{ttl_ms}");
        over("at once").await;
        sleep_ms(50).await;
        assert_eq!(cli(server, &["EXISTS", RECORD]), "0", "the record is forgotten, the tombstone is not");
        over("on a free resource").await;
        assert_eq!(loss(&backend, &lease).await, LossReason::Gone);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
        let between = acquire(&backend, &attempt("r", 30_000)).await;
        over("beside another grant").await;
        assert_eq!(backend.release(&between).await.unwrap(), Release::Released);
        over("after another grant").await;
    }

    async fn a_tombstone_lasts_as_long_as_an_abandoned_attempts(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        // (TTL, a field of the record and by how much it is put off, least and most of the tombstone's time)
        for (ttl_ms, field, later_us, least, most) in [
            (60_000, RENEWED, 0, 60_001, 120_000),
            // As if the TTL were a second: ten seconds at the least.
            (60_000, RENEWED, 59_000_000, 2_001, 10_000),
            // A renewal that left a later end: nobody knows a TTL any more, and longer is safe.
            (60_000, EXPIRES, 60_000_000, 180_000, 240_000),
        ] {
            let broken = attempt("r", ttl_ms);
            let lease = acquire(&backend, &broken).await;
            let Renewal::Renewed(lease) = backend.renew(&lease).await.unwrap() else { panic!() };
            edit_record(server, "r", field, |time| time.saturating_add(later_us));
            assert_eq!(backend.force_release(&order("r", value(&lease))).await.unwrap(), Forced::Ended);
            let left: u64 = cli(server, &["PTTL", &spent_key("r", &broken)]).parse().unwrap();
            assert!((least..=most).contains(&left), "{ttl_ms} ms: {left}");
        }
        let century = attempt("r", u64::try_from(lease_core::Ttl::MAX.as_millis()).unwrap());
        let lease = acquire(&backend, &century).await;
        assert_eq!(backend.force_release(&order("r", value(&lease))).await.unwrap(), Forced::Ended);
        assert!(cli(server, &["PTTL", &spent_key("r", &century)]).parse::<u64>().unwrap() > 6_000_000_000_000);
    }

    async fn a_request_that_arrives_after_the_order_makes_no_grant(server: &mut Server, client: &str) {
        let late = LateRequest::held(server, client, 30_000).await;
        let lease = acquire(&late.direct, &late.attempt).await;
        assert_eq!(late.direct.force_release(&order("r", value(&lease))).await.unwrap(), Forced::Ended);
        sleep_ms(50).await;
        assert_eq!(cli(server, &["EXISTS", RECORD]), "0", "the record is forgotten");
        late.arrives(server).await;
        assert_eq!(cli(server, &["EXISTS", RECORD]), "0");
        assert_eq!(late.direct.release(&lease).await.unwrap(), Release::NotHeld);
    }

    async fn an_order_without_an_answer_is_unknown_and_can_be_repeated(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let operator = RedisBackend::connect(&proxied(server, client, &proxy, "call_timeout_ms=1000")).await.unwrap();
        assert_eq!(operator.force_release(&order("warm", 1)).await.unwrap(), Forced::NotHeld);
        let holder = backend(server, client).await;
        for fault in [Once::CutBeforeRequest, Once::CutAfterRequest, Once::CutBeforeReply, Once::SwallowReply] {
            let broken = acquire(&holder, &attempt("r", 30_000)).await;
            let order = order("r", value(&broken));
            proxy.once(fault);
            let error = operator.force_release(&order).await.unwrap_err();
            assert!(proxy.happened());
            assert_eq!(error.effect(), Effect::Unknown, "{fault:?}: {error}");
            assert!(error.to_string().contains("force-release"), "{error}");
            let again = operator.force_release(&order).await.unwrap();
            assert!(matches!(again, Forced::Ended | Forced::NotHeld), "{fault:?}: {again:?}");
            assert_eq!(loss(&holder, &broken).await, LossReason::Forced, "{fault:?}");
        }
    }

    async fn a_dropped_order_leaves_the_connection_in_step(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        for n in 0..100_u64 {
            let broken = acquire(&backend, &attempt("r", 30_000)).await;
            let order = order("r", value(&broken));
            drop(tokio::time::timeout(Duration::from_micros(n.saturating_mul(5)), backend.force_release(&order)).await);
            let own = acquire(&backend, &attempt(&format!("own{n}"), 30_000)).await;
            let seen = backend.inspect(own.resource()).await.unwrap().held.unwrap();
            assert_eq!(seen.value, Some(value(&own)), "no answer is taken for another");
            let again = backend.force_release(&order).await.unwrap();
            assert!(matches!(again, Forced::Ended | Forced::NotHeld), "{again:?}");
        }
    }

    async fn it_is_one_request_and_says_what_the_account_lacks(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        assert_eq!(backend.force_release(&order("warm", 1)).await.unwrap(), Forced::NotHeld);
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        cli(server, &["CONFIG", "RESETSTAT"]);
        let order = order("r", value(&lease));
        cli(server, &["ACL", "SETUSER", "default", "-set"]);
        let error = backend.force_release(&order).await.unwrap_err();
        assert!(matches!(error, LeaseError::MissingPrivilege { .. }), "{error}");
        assert!(error.to_string().contains("force-release") && error.to_string().contains("+set"), "{error}");
        assert_eq!(error.effect(), Effect::None);
        cli(server, &["ACL", "SETUSER", "default", "+set"]);
        assert!(is_held(&backend, "r").await);
        cli(server, &["CONFIG", "RESETSTAT"]);
        assert_eq!(backend.force_release(&order).await.unwrap(), Forced::Ended);
        let stats = cli(server, &["INFO", "commandstats"]);
        assert!(stats.contains("cmdstat_evalsha:calls=1,") && !stats.contains("cmdstat_eval:"), "{stats}");
    }
}

#[cfg(all(feature = "client-redis", feature = "client-fred"))]
#[tokio::test]
async fn one_client_breaks_what_the_other_acquired() {
    let server = server();
    for (one, two) in [("redis", "redis+fred"), ("redis+fred", "redis")] {
        let (one, two) = (backend(&server, one).await, backend(&server, two).await);
        let first = attempt("r", 30_000);
        let broken = acquire(&one, &first).await;
        assert_eq!(two.force_release(&order("r", value(&broken))).await.unwrap(), Forced::Ended);
        assert_eq!(loss(&one, &broken).await, LossReason::Forced);
        let next = acquire(&two, &attempt("r", 30_000)).await;
        assert!(next.token() > broken.token(), "one authority for both");
        assert!(matches!(one.acquire(&first.as_held_up()).await, Err(LeaseError::AttemptOver { .. })));
        assert_eq!(one.force_release(&order("r", value(&next))).await.unwrap(), Forced::Ended);
        assert_eq!(two.release(&next).await.unwrap(), Release::NotHeld);
    }
}
