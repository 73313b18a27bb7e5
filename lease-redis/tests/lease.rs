//! Leases on a real server, on both clients.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test that cannot go on fails"
)]

mod common;

use common::*;
use lease_core::{
    Acquisition, Attempt, Effect, Fence, FenceError, LeaseBackend, LeaseError, LossReason, Release, Renewal,
};
use lease_redis::RedisBackend;
use lease_servers::Server;
use std::time::Duration;

both! {
    async fn lifecycle(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        assert_eq!(backend.description().server_version, server.version());
        assert_eq!(backend.description().name, client.replace('+', "-"));
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        assert!(is_held(&backend, "r").await, "not re-entrant");
        let other = RedisBackend::connect(&url(server, client, "")).await.unwrap();
        assert!(is_held(&other, "r").await, "another client is excluded too");
        assert!(!is_held(&backend, "R").await, "another name is not");

        let seen = backend.inspect(&name("r")).await.unwrap();
        let held = seen.held.unwrap();
        assert_eq!(held.value, Some(value(&lease)));
        assert!(held.remaining <= Duration::from_secs(30) && held.remaining > Duration::from_secs(10));
        assert_eq!(held.holder, format!("pid {}", std::process::id()));

        let Renewal::Renewed(renewed) = backend.renew(&lease).await.unwrap() else { panic!() };
        assert_eq!(renewed.token(), lease.token(), "renewal never changes the token");
        assert!(renewed.deadline() >= lease.deadline());
        assert_eq!(backend.release(&renewed).await.unwrap(), Release::Released);
        assert_eq!(backend.release(&renewed).await.unwrap(), Release::Released, "idempotent");
        assert!(matches!(backend.renew(&renewed).await.unwrap(), Renewal::Lost(LossReason::Released)));
        let seen = backend.inspect(&name("r")).await.unwrap();
        assert_eq!((seen.held, seen.last_value), (None, Some(value(&lease))));
        let next = acquire(&backend, &attempt("r", 30_000)).await;
        assert!(next.token() > lease.token());
        assert_eq!(backend.release(&renewed).await.unwrap(), Release::NotHeld, "the newer grant is left alone");
        assert!(is_held(&backend, "r").await);
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    }

    async fn expiry_ends_a_grant_for_good(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let first = attempt("r", 1_500);
        let lease = acquire(&backend, &first).await;
        sleep_ms(1_600).await;
        assert!(lease.is_past_deadline());
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Expired)), "nobody took it, and it is lost");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
        let next = acquire(&backend, &attempt("r", 30_000)).await;
        assert!(next.token() > lease.token());
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
        assert!(matches!(backend.acquire(&first).await, Err(LeaseError::AttemptOver { .. })));

        let second = attempt("s", 1_500);
        let lease = acquire(&backend, &second).await;
        sleep_ms(1_600).await;
        backend.abandon(&second).await.unwrap();
        assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld, "lost before it was abandoned");
    }

    async fn renewal_never_shortens(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        // As if a longer grant had been renewed by somebody who holds the same secret: the later expiry stands.
        edit_record(server, "r", 5, |expires| expires + 600_000_000);
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        let held = backend.inspect(&name("r")).await.unwrap().held.unwrap();
        assert!(held.remaining > Duration::from_mins(1), "{held:?}");
    }

    async fn a_repeated_attempt_finds_its_grant(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let attempt = attempt("r", 30_000);
        let lease = acquire(&backend, &attempt).await;
        let before = cli(server, &["GET", "leasehold:{r}:lease"]);
        let again = acquire(&backend, &attempt.clone()).await;
        assert_eq!(again.token(), lease.token());
        assert_eq!(again.deadline(), lease.deadline(), "counted from the first send");
        assert_eq!(cli(server, &["GET", "leasehold:{r}:lease"]), before, "and nothing is extended");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));
        assert_eq!(cli(server, &["EXISTS", &spent_key("r", &attempt)]), "0", "all requests were answered: no tombstone");
    }

    async fn a_request_that_arrives_after_the_release_makes_no_grant(server: &mut Server, client: &str) {
        let late = LateRequest::held(server, client, 30_000).await;
        let lease = acquire(&late.direct, &late.attempt).await;
        assert_eq!(late.direct.release(&lease).await.unwrap(), Release::Released);
        let ttl: u64 = cli(server, &["PTTL", &spent_key("r", &late.attempt)]).parse().unwrap();
        assert!((30_001..=60_000).contains(&ttl), "{ttl}");
        sleep_ms(50).await;
        assert_eq!(cli(server, &["EXISTS", "leasehold:{r}:lease"]), "0", "the record is forgotten, the tombstone is not");
        late.arrives(server).await;
        assert_eq!(cli(server, &["EXISTS", "leasehold:{r}:lease"]), "0");
    }

    async fn a_request_that_arrives_after_the_abandonment_makes_no_grant(server: &mut Server, client: &str) {
        let late = LateRequest::held(server, client, 3_000).await;
        late.direct.abandon(&late.attempt).await.unwrap();
        let ttl: u64 = cli(server, &["PTTL", &spent_key("r", &late.attempt)]).parse().unwrap();
        assert!((5_000..=10_000).contains(&ttl), "at least ten seconds, and it goes by itself: {ttl}");
        assert!(matches!(late.direct.acquire(&late.attempt).await, Err(LeaseError::AttemptOver { .. })));
        late.arrives(server).await;
        assert_eq!(cli(server, &["EXISTS", "leasehold:{r}:lease"]), "0");
    }

    async fn a_request_that_arrives_late_is_the_same_grant(server: &mut Server, client: &str) {
        let late = LateRequest::held(server, client, 30_000).await;
        late.arrives(server).await;
        let held = late.direct.inspect(&name("r")).await.unwrap().held.unwrap();
        let lease = acquire(&late.direct, &late.attempt).await;
        assert_eq!(held.value, Some(value(&lease)));
        assert_eq!(late.direct.release(&lease).await.unwrap(), Release::Released);
    }

    async fn abandoning_ends_the_own_grant_only(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let granted = attempt("r", 30_000);
        let lease = acquire(&backend, &granted).await;
        backend.abandon(&granted).await.unwrap();
        backend.abandon(&granted).await.unwrap();
        assert!(backend.inspect(&name("r")).await.unwrap().held.is_none());
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Released)));
        let next = acquire(&backend, &attempt("r", 30_000)).await;
        backend.abandon(&granted).await.unwrap();
        assert!(matches!(backend.renew(&next).await.unwrap(), Renewal::Renewed(_)), "another's grant is left alone");
        assert!(next.token() > lease.token());
    }

    async fn tokens_grow_however_the_record_ends(server: &mut Server, client: &str) {
        let backend = RedisBackend::connect(&url(server, client, "idle_retention_ms=50")).await.unwrap();
        let mut last = acquire(&backend, &attempt("r", 30_000)).await;
        let mut grown = async |backend: &RedisBackend, what: &str| {
            let next = acquire(backend, &attempt("r", 30_000)).await;
            assert!(next.token() > last.token(), "{what}: {next:?} after {last:?}");
            last = next.clone();
            next
        };
        expire(server, "r");
        let lease = grown(&backend, "expiry").await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        let lease = grown(&backend, "release").await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        sleep_ms(150).await;
        assert_eq!(cli(server, &["EXISTS", "leasehold:{r}:lease"]), "0", "an idle name costs nothing");
        assert_eq!(backend.inspect(&name("r")).await.unwrap().last_value, None);
        let lease = grown(&backend, "retention").await;
        let authority = lease.token().unwrap().authority().clone();
        cli(server, &["FLUSHALL"]);
        let flushed = acquire(&backend, &attempt("r", 30_000)).await;
        assert_ne!(flushed.token().unwrap().authority(), &authority, "an empty store has another history");
        assert!(value(&flushed) > value(&lease));
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    }

    async fn values_run_ahead_of_a_slow_clock(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        // As after a server clock that was set back by ten days.
        let ahead = value(&lease) + 864_000_000_000;
        edit_record(server, "r", 1, |_| ahead);
        let next = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(value(&next), ahead + 1);
        assert_eq!(backend.release(&next).await.unwrap(), Release::Released);
        let ttl_ms: u64 = cli(server, &["PTTL", "leasehold:{r}:lease"]).parse().unwrap();
        assert!(ttl_ms > 864_000_000, "the record outlives its value, and a day more: {ttl_ms}");
    }

    async fn running_out_of_values_is_an_error(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        edit_record(server, "r", 1, |_| (1 << 53) - 1);
        let last = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(value(&last), backend.limits().max_token_value);
        assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
        let error = backend.acquire(&attempt("r", 30_000)).await.unwrap_err();
        assert!(matches!(error, LeaseError::TokenRange { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
        assert!(backend.inspect(&name("r")).await.unwrap().held.is_none());
    }

    async fn names_keep_apart(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let long = "x".repeat(512);
        let names = ["a", "A", "a b", "a%20b", "a}", "{a}", "a:lease", "a*", "a'\"\\", "ä", "日本", "a/", "a//", "%", " a", &long];
        let mut leases = Vec::new();
        for name in names {
            leases.push(acquire(&backend, &attempt(name, 30_000)).await);
        }
        for lease in &leases {
            assert_eq!(backend.release(lease).await.unwrap(), Release::Released, "{lease:?}");
        }
    }

    async fn ttls_at_the_limits(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let century = acquire(&backend, &Attempt::new(name("century"), lease_core::Ttl::parse(lease_core::Ttl::MAX).unwrap()).unwrap()).await;
        assert_eq!(century.granted_ttl(), lease_core::Ttl::MAX);
        let held = backend.inspect(&name("century")).await.unwrap().held.unwrap();
        assert!(held.remaining > Duration::from_hours(99 * 365 * 24), "{held:?}");
        assert!(matches!(backend.renew(&century).await.unwrap(), Renewal::Renewed(_)));
        assert_eq!(backend.release(&century).await.unwrap(), Release::Released);
        // One millisecond: it may be too short for its own answer, and then it says so.
        match backend.acquire(&attempt("short", 1)).await {
            Ok(Acquisition::Acquired(lease)) => assert_eq!(lease.granted_ttl(), Duration::from_millis(1)),
            Err(LeaseError::LateGrant { .. }) => {}
            other => panic!("{other:?}"),
        }
        sleep_ms(60).await;
        assert!(!is_held(&backend, "short").await);
    }

    async fn one_of_many_racers_wins(server: &mut Server, client: &str) {
        let mut last = 0;
        for _ in 0..20 {
            let mut racers = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let backend = backend(server, client).await;
                racers.spawn(async move { (backend.acquire(&attempt("r", 30_000)).await.unwrap(), backend) });
            }
            let results = racers.join_all().await;
            let winners: Vec<_> = results.iter().filter_map(|(a, b)| match a {
                Acquisition::Acquired(lease) => Some((lease, b)),
                Acquisition::Held(held) => { assert!(held.remaining.unwrap() > Duration::from_secs(1)); None }
            }).collect();
            let [(lease, backend)] = winners.as_slice() else { panic!("{} winners", winners.len()) };
            assert!(value(lease) > last);
            last = value(lease);
            assert_eq!(backend.release(lease).await.unwrap(), Release::Released);
        }
    }

    async fn the_fence_refuses_from_the_end_of_the_grant(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let Fence::LiveOwner(register) = backend.fence() else { panic!() };
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        register.write(&lease, "a b").await.unwrap();
        assert_eq!(register.read(&name("r")).await.unwrap().as_deref(), Some("a b"));
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert!(matches!(register.write(&lease, "stale").await, Err(FenceError::Refused { .. })), "released");
        let short = acquire(&backend, &attempt("r", 30_000)).await;
        register.write(&short, "b").await.unwrap();
        expire(server, "r");
        assert!(matches!(register.write(&short, "stale").await, Err(FenceError::Refused { .. })), "expired, and free");
        let newer = acquire(&backend, &attempt("r", 30_000)).await;
        assert!(matches!(register.write(&short, "stale").await, Err(FenceError::Refused { .. })), "superseded");
        register.write(&newer, "").await.unwrap();
        assert_eq!(register.read(&name("r")).await.unwrap().as_deref(), Some(""));
        assert_eq!(register.read(&name("other")).await.unwrap(), None);
        cli(server, &["DEL", "leasehold:{r}:lease"]);
        assert!(matches!(register.write(&newer, "stale").await, Err(FenceError::Refused { .. })), "gone");
    }

    async fn the_callers_own_script_is_fenced(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        let fence = backend.fence_for(&lease);
        let script = fence.script("return redis.call('INCRBY', KEYS[1], ARGV[1]) + #KEYS * 100 + #ARGV * 1000");
        let run = || {
            let keys = fence.keys(&["balance"]);
            let mut words = vec!["EVAL".to_owned(), script.clone(), keys.len().to_string()];
            words.extend(keys);
            words.extend(fence.args(&["7"]));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            cli(server, &words)
        };
        assert_eq!(run(), "1107", "it sees its own key and argument only");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert!(lease_redis::RedisFence::is_refusal(&run()));
        assert_eq!(cli(server, &["GET", "balance"]), "7");
        assert!(!format!("{fence:?}").contains(&lease.owner().reveal()));
    }

    async fn listing_is_not_there_and_not_claimed(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        assert!(matches!(backend.list("", None, 10).await, Err(LeaseError::Unsupported { .. })));
        assert!(!backend.claims().has(lease_core::Claim::ListByPrefix));
        assert_eq!(backend.clean_up().await.unwrap().removed, 0);
    }

    async fn purge_leaves_other_namespaces_alone(server: &mut Server, client: &str) {
        let mine = RedisBackend::connect(&url(server, client, "namespace=mine")).await.unwrap();
        let other = RedisBackend::connect(&url(server, client, "namespace=mine_too")).await.unwrap();
        for n in 0..700 {
            drop(acquire(&mine, &attempt(&format!("r{n}"), 30_000)).await);
        }
        let kept = acquire(&other, &attempt("r", 30_000)).await;
        cli(server, &["SET", "mine:theirs", "x"]);
        mine.purge().await.unwrap();
        let left = cli(server, &["KEYS", "*"]);
        assert_eq!(left.lines().count(), 3, "{left}");
        assert!(matches!(other.renew(&kept).await.unwrap(), Renewal::Renewed(_)));
        drop(acquire(&mine, &attempt("r", 30_000)).await);
    }
}
