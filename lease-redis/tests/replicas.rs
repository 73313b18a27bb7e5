//! Grants that replicas confirm, on a real pair whose link can be cut, on both clients.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::*;
use lease_core::{Advice, Effect, LeaseBackend, LeaseError, LossReason, Release, Renewal};
use lease_redis::{RedisBackend, RedisDestination};
use lease_servers::{RedisPair, RedisSetup, Server};

fn pair() -> RedisPair {
    RedisPair::start(&RedisSetup::default()).unwrap()
}

/// With limits that a busy machine does not reach; whoever waits in vain, waits for half of the call's.
async fn waiting(server: &Server, client: &str, call_timeout_ms: u32) -> RedisBackend {
    let parameters = format!("wait_replicas=1&call_timeout_ms={call_timeout_ms}&connect_timeout_ms=30000");
    RedisBackend::connect(&url(server, client, &parameters)).await.unwrap()
}

fn assert_unconfirmed(error: &LeaseError) {
    assert!(matches!(error, LeaseError::Unconfirmed { confirmed: 0, wanted: 1, .. }), "{error:?}");
    assert_eq!((error.effect(), error.advice()), (Effect::Unknown, Advice::BeginAnew));
    assert!(error.to_string().starts_with("0 of 1 replicas"), "{error}");
}

/// Whether a connection of the server waits for replicas.
fn is_waiting(server: &Server) -> bool {
    cli(server, &["CLIENT", "LIST"]).contains(" cmd=wait ")
}

both! {
    async fn a_confirmed_grant_outlives_its_primary(_server: &mut Server, client: &str) {
        let mut pair = pair();
        let lease = {
            let backend = waiting(pair.primary(), client, 60_000).await;
            let again = attempt("r", 600_000);
            let lease = acquire(&backend, &again).await;
            assert_eq!(lease.confirmed_by(), Some(1));
            assert_eq!(acquire(&backend, &again).await.token(), lease.token(), "the repeat is confirmed too");
            assert!(is_held(&backend, "r").await, "what is held is not waited for");
            lease
        };
        // What follows is not sent any more: all that the replica has was there when the grant was answered.
        pair.link().refuse(true);
        pair.link().cut();
        pair.primary_mut().kill();
        pair.promote().unwrap();
        let backend = backend(pair.replica(), client).await;
        assert!(is_held(&backend, "r").await);
        let Renewal::Renewed(lease) = backend.renew(&lease).await.unwrap() else { panic!("lost") };
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert!(value(&acquire(&backend, &attempt("r", 30_000)).await) > value(&lease));
    }

    async fn a_grant_that_no_replica_has_is_given_up(_server: &mut Server, client: &str) {
        let pair = pair();
        let plain = backend(pair.primary(), client).await;
        let backend = waiting(pair.primary(), client, 6_000).await;
        assert_eq!(acquire(&plain, &attempt("other", 30_000)).await.confirmed_by(), None, "nobody asked");
        pair.cut_link().unwrap();
        let refused = attempt("r", 600_000);
        assert_unconfirmed(&backend.acquire(&refused).await.unwrap_err());
        assert!(plain.inspect(&name("r")).await.unwrap().held.is_none(), "given up on the primary");
        let late = plain.acquire(&refused.as_held_up()).await.unwrap_err();
        assert!(matches!(late, LeaseError::AttemptOver { .. }), "what is on its way makes none either: {late}");
        pair.restore_link().unwrap();
        assert_eq!(acquire(&backend, &attempt("r", 30_000)).await.confirmed_by(), Some(1));
    }

    async fn a_repeat_is_confirmed_or_given_up_like_the_first(_server: &mut Server, client: &str) {
        let pair = pair();
        let (plain, backend) = (backend(pair.primary(), client).await, waiting(pair.primary(), client, 6_000).await);
        let (accepted, lost) = (attempt("accepted", 600_000), attempt("lost", 600_000));
        let lease = acquire(&backend, &accepted).await;
        pair.cut_link().unwrap();
        // Made by a request whose answer nobody had.
        drop(acquire(&plain, &lost.as_held_up()).await);
        assert_unconfirmed(&backend.acquire(&lost).await.unwrap_err());
        assert!(plain.inspect(&name("lost")).await.unwrap().held.is_none());
        // This one was confirmed, and its caller works under it.
        assert_unconfirmed(&backend.acquire(&accepted).await.unwrap_err());
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "not waited for");
    }

    async fn nobody_else_waits(_server: &mut Server, client: &str) {
        let pair = pair();
        let backend = waiting(pair.primary(), client, 600_000).await;
        let mut lease = acquire(&backend, &attempt("mine", 600_000)).await;
        pair.cut_link().unwrap();
        let attempt = attempt("r", 600_000);
        tokio::select! {
            answer = backend.acquire(&attempt) => panic!("it should wait for minutes: {answer:?}"),
            () = async {
                while !is_waiting(pair.primary()) {
                    sleep_ms(5).await;
                }
                for _ in 0..3 {
                    let Renewal::Renewed(renewed) = backend.renew(&lease).await.unwrap() else { panic!("lost") };
                    lease = renewed;
                }
                assert!(is_waiting(pair.primary()));
            } => {}
        }
        // Given up by its caller, and abandoned: nothing is left of it.
        backend.abandon(&attempt).await.unwrap();
        assert!(backend.inspect(&name("r")).await.unwrap().held.is_none());
    }

    async fn what_was_not_replicated_is_lost_all_the_same(_server: &mut Server, client: &str) {
        let pair = pair();
        let backend = waiting(pair.primary(), client, 60_000).await;
        let lease = acquire(&backend, &attempt("r", 600_000)).await;
        pair.cut_link().unwrap();
        // A release is not waited for, nor is a renewal: after the promotion the grant is as the replica had it.
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        pair.promote().unwrap();
        let promoted = common::backend(pair.replica(), client).await;
        assert!(is_held(&promoted, "r").await);
    }

    async fn the_account_needs_the_command(server: &mut Server, client: &str) {
        let rules = ["on", ">secret", "~leasehold:*", "+@all", "-wait"];
        cli(server, &[&["ACL", "SETUSER", "worker"][..], &rules[..]].concat());
        let login = url(server, client, "wait_replicas=1").replace("://", "://worker:secret@");
        let error = RedisBackend::connect(&login).await.unwrap_err();
        assert!(matches!(error, LeaseError::MissingPrivilege { .. }), "{error}");
        assert!(error.to_string().contains("+wait"), "{error}");
        let error = RedisDestination::connect(&url(server, client, "wait_replicas=1")).await.unwrap_err();
        assert!(matches!(error, LeaseError::InvalidConfig { .. }), "{error}");
    }
}

/// The tests above can fail: one that takes any answer for a confirmation grants what the promoted replica does not know.
#[cfg(feature = "testing")]
#[tokio::test]
async fn one_that_asks_nobody_is_seen() {
    const CLIENT: &str = if cfg!(feature = "client-redis") { "redis" } else { "redis+fred" };
    let pair = pair();
    let url = url(pair.primary(), CLIENT, "wait_replicas=1&call_timeout_ms=60000");
    let edits = [("WAIT {replicas} {ms}", "ECHO {replicas}")];
    let backend = RedisBackend::connect_edited(&url, &edits).await.unwrap();
    pair.cut_link().unwrap();
    let lease = acquire(&backend, &attempt("r", 600_000)).await;
    pair.promote().unwrap();
    let promoted = common::backend(pair.replica(), CLIENT).await;
    assert!(!is_held(&promoted, "r").await);
    assert!(matches!(promoted.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
}
