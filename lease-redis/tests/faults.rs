//! Servers that die, pause, forget and refuse; paths that cut and swallow. On both clients.
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
    Claim, Effect, Fence, FenceError, GuardError, GuardedDestination, LeaseBackend, LeaseError, LossReason, Release,
    Renewal,
};
use lease_redis::{RedisBackend, RedisDestination};
use lease_servers::{Direction, Mode, Once, Proxy, RedisSetup, Server};
use std::time::Duration;

async fn through(server: &Server, client: &str, proxy: &Proxy) -> RedisBackend {
    RedisBackend::connect(&proxied(server, client, proxy, "call_timeout_ms=1000")).await.unwrap()
}

fn store_error(error: GuardError) -> LeaseError {
    match error {
        GuardError::Store(error) => error,
        other => panic!("{other:?}"),
    }
}

fn calls_of(server: &Server, command: &str) -> u64 {
    let stats = cli(server, &["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|l| l.strip_prefix(&prefix).map(str::to_owned));
    line.map_or(0, |l| l.split(',').next().unwrap().parse().unwrap())
}

both! {
    async fn an_acquire_that_is_cut_off_is_unknown_and_found_again(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = through(server, client, &proxy).await;
        drop(acquire(&backend, &attempt("warm", 60_000)).await);
        for (n, fault) in [Once::CutBeforeRequest, Once::CutAfterRequest, Once::CutBeforeReply, Once::SwallowReply].into_iter().enumerate() {
            let resource = format!("r{n}");
            let attempt = attempt(&resource, 30_000);
            proxy.once(fault);
            let error = backend.acquire(&attempt).await.unwrap_err();
            assert!(proxy.happened());
            assert_eq!(error.effect(), Effect::Unknown, "{fault:?}: {error}");
            let lease = acquire(&backend, &attempt).await;
            let seen = backend.inspect(&name(&resource)).await.unwrap().held.unwrap();
            assert_eq!(seen.value, Some(value(&lease)), "{fault:?}");
            assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
            assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));
        }
    }

    async fn nothing_is_sent_twice(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = through(server, client, &proxy).await;
        drop(acquire(&backend, &attempt("warm", 60_000)).await);
        for fault in [Once::CutAfterRequest, Once::CutBeforeReply, Once::SwallowReply] {
            let before = calls_of(server, "evalsha");
            proxy.once(fault);
            assert!(backend.acquire(&attempt("r", 30_000)).await.is_err());
            // A reconnect would send it again: make one, and use it.
            drop(backend.inspect(&name("warm")).await.unwrap());
            assert_eq!(calls_of(server, "evalsha") - before, 2, "{fault:?}: the acquire and the inspect");
        }
    }

    async fn renewals_and_releases_that_are_cut_off(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = through(server, client, &proxy).await;
        let warm = acquire(&backend, &attempt("r", 30_000)).await;
        assert!(matches!(backend.renew(&warm).await.unwrap(), Renewal::Renewed(_)));
        assert_eq!(backend.release(&warm).await.unwrap(), Release::Released);
        for (n, fault) in [Once::CutBeforeRequest, Once::CutBeforeReply, Once::SwallowReply].into_iter().enumerate() {
            let lease = acquire(&backend, &attempt(&format!("r{n}"), 30_000)).await;
            proxy.once(fault);
            let error = backend.renew(&lease).await.unwrap_err();
            assert_eq!(error.effect(), Effect::Unknown, "{fault:?}: {error}");
            let Renewal::Renewed(lease) = backend.renew(&lease).await.unwrap() else { panic!() };
            proxy.once(fault);
            let error = backend.release(&lease).await.unwrap_err();
            assert_eq!(error.effect(), Effect::Unknown, "{fault:?}: {error}");
            assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "{fault:?}");
        }
    }

    async fn a_release_in_doubt_is_never_called_lost(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = through(server, client, &proxy).await;
        let warm = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(backend.release(&warm).await.unwrap(), Release::Released);
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        proxy.once(Once::CutBeforeReply);
        assert!(backend.release(&lease).await.is_err());
        drop(acquire(&backend, &attempt("r", 30_000)).await);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::EndedCauseUnknown);
    }

    async fn a_grant_that_arrives_late_is_given_up(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let url = proxied(server, client, &proxy, "call_timeout_ms=5000");
        let backend = RedisBackend::connect(&url).await.unwrap();
        proxy.set(Direction::Replies, Mode::Delay(Duration::from_millis(300)));
        let error = backend.acquire(&attempt("r", 100)).await.unwrap_err();
        assert!(matches!(error, LeaseError::LateGrant { .. }), "{error}");
        proxy.set(Direction::Replies, Mode::Pass);
        assert!(!is_held(&backend, "r").await);
    }

    async fn every_call_ends_when_nothing_answers(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = through(server, client, &proxy).await;
        let destination = RedisDestination::connect(&proxied(server, client, &proxy, "call_timeout_ms=1000")).await.unwrap();
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        let Fence::LiveOwner(register) = backend.fence() else { panic!() };
        proxy.set(Direction::Replies, Mode::Hole);
        let (x, y, r) = (attempt("x", 30_000), attempt("y", 30_000), name("r"));
        let token = lease.token().unwrap();
        let calls = tokio::join!(
            async { backend.acquire(&x).await.unwrap_err() },
            async { backend.renew(&lease).await.unwrap_err() },
            async { backend.inspect(&r).await.unwrap_err() },
            async { backend.abandon(&y).await.unwrap_err() },
            async { backend.force_release(&order("r", 1)).await.unwrap_err() },
            async { backend.purge().await.unwrap_err() },
            async { register.read(&r).await.unwrap_err() },
            async { store_error(destination.read(&r).await.unwrap_err()) },
            async { store_error(destination.adopt(None, token.authority()).await.unwrap_err()) },
            async { store_error(destination.write(&r, token, "x").await.unwrap_err()) },
            async { store_error(destination.purge().await.map_err(Into::into).unwrap_err()) },
        );
        for error in <[LeaseError; 11]>::from(calls) {
            assert_eq!(error.kind(), lease_core::ErrorKind::Transport, "{error}");
        }
        let fenced = register.write(&lease, "x").await;
        assert!(matches!(fenced, Err(FenceError::Store(_))), "a new connection is not answered either: {fenced:?}");
        assert!(backend.release(&lease).await.is_err());
        let connecting = RedisBackend::connect(&proxied(server, client, &proxy, "connect_timeout_ms=300")).await;
        assert!(matches!(connecting, Err(LeaseError::Unreachable { .. })));
        proxy.set(Direction::Replies, Mode::Pass);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "and it works again, on a new connection");
    }

    async fn a_paused_server_is_unknown_and_recovers(server: &mut Server, client: &str) {
        let backend = RedisBackend::connect(&url(server, client, "call_timeout_ms=1000")).await.unwrap();
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        server.pause();
        let error = backend.renew(&lease).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        let error = backend.renew(&lease).await.unwrap_err();
        assert_eq!(error.effect(), Effect::None, "nothing is sent while no connection can be made: {error}");
        server.resume();
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    }

    async fn what_failed_while_the_server_was_down_does_not_run_later(server: &mut Server, client: &str) {
        let backend = RedisBackend::connect(&url(server, client, "call_timeout_ms=1000")).await.unwrap();
        drop(acquire(&backend, &attempt("warm", 60_000)).await);
        server.kill();
        let attempt = attempt("r", 30_000);
        // The first may have left on the old connection; the others meet a closed port.
        assert!(backend.acquire(&attempt).await.is_err());
        let error = backend.acquire(&attempt).await.unwrap_err();
        assert!(matches!(error, LeaseError::Unreachable { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
        let dropped = tokio::time::timeout(Duration::from_millis(1), backend.acquire(&attempt)).await;
        drop(dropped);
        server.restart().unwrap();
        assert!(backend.inspect(&name("r")).await.unwrap().held.is_none());
        assert_eq!(calls_of(server, "eval") + calls_of(server, "evalsha"), 2, "the inspect, by hash and by text");
    }

    async fn a_dropped_call_leaves_the_connection_in_step(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        for n in 0..200_u64 {
            let resource = format!("r{n}");
            let dropped = attempt(&resource, 30_000);
            drop(tokio::time::timeout(Duration::from_micros(n * 3), backend.acquire(&dropped)).await);
            let own = acquire(&backend, &attempt(&format!("own{n}"), 30_000)).await;
            assert_eq!(own.resource().as_str(), format!("own{n}"));
            let seen = backend.inspect(own.resource()).await.unwrap().held.unwrap();
            assert_eq!(seen.value, Some(value(&own)), "no answer is taken for another");
            backend.abandon(&dropped).await.unwrap();
            assert!(backend.inspect(&name(&resource)).await.unwrap().held.is_none());
        }
    }

    async fn a_forgotten_script_is_sent_again(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        cli(server, &["SCRIPT", "FLUSH"]);
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        cli(server, &["SCRIPT", "FLUSH"]);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        let before = (calls_of(server, "evalsha"), calls_of(server, "eval"));
        drop(acquire(&backend, &attempt("r", 30_000)).await);
        drop(acquire(&backend, &attempt("s", 30_000)).await);
        let after = (calls_of(server, "evalsha"), calls_of(server, "eval"));
        assert_eq!((after.0 - before.0, after.1 - before.1), (2, 1), "one request each, once the script is known");
    }

    async fn one_request_for_each_operation(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("warm", 30_000)).await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        cli(server, &["CONFIG", "RESETSTAT"]);
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert_eq!(calls_of(server, "evalsha"), 2);
        let inside: Vec<(&str, u64)> = ["get", "mget", "time", "set"].map(|c| (c, calls_of(server, c))).to_vec();
        assert_eq!(inside, [("get", 2), ("mget", 1), ("time", 2), ("set", 2)], "and nothing more inside");
    }

    async fn leases_and_tokens_survive_a_killed_server(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        for claim in [Claim::LeaseSurvivesRestart, Claim::TokenSurvivesRestart, Claim::FencingToken, Claim::CrossProcess] {
            assert!(backend.claims().has(claim), "{claim}");
        }
        let lease = acquire(&backend, &attempt("r", 60_000)).await;
        let done = acquire(&backend, &attempt("done", 60_000)).await;
        assert_eq!(backend.release(&done).await.unwrap(), Release::Released);
        server.kill();
        server.restart().unwrap();
        // The first may find the old connection cut.
        while backend.inspect(&name("r")).await.is_err() {}
        assert!(is_held(&backend, "r").await);
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        let next = acquire(&backend, &attempt("done", 60_000)).await;
        assert!(next.token() > done.token(), "of the same authority, and larger");
    }

    async fn settings_are_read_again_on_reconnect(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        assert!(backend.claims().has(Claim::LeaseSurvivesRestart));
        cli(server, &["CONFIG", "SET", "appendfsync", "everysec"]);
        cli(server, &["CLIENT", "KILL", "TYPE", "normal"]);
        let mut answer = backend.inspect(&name("r")).await;
        while answer.is_err() {
            answer = backend.inspect(&name("r")).await;
        }
        assert!(!backend.claims().has(Claim::LeaseSurvivesRestart));
        assert!(backend.claims().has(Claim::FencingToken));
    }

    async fn a_server_that_lost_its_data_has_another_authority(_server: &mut Server, client: &str) {
        let mut server = lease_servers::redis(&RedisSetup { append_only: false, ..RedisSetup::default() }).unwrap();
        let backend = backend(&server, client).await;
        assert!(!backend.claims().has(Claim::LeaseSurvivesRestart));
        assert!(!backend.claims().has(Claim::TokenSurvivesRestart));
        let lease = acquire(&backend, &attempt("r", 60_000)).await;
        server.kill();
        server.restart().unwrap();
        let next = acquire(&backend, &attempt("r", 60_000)).await;
        assert_ne!(next.token().unwrap().authority(), lease.token().unwrap().authority());
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    }

    async fn memory_that_runs_out_refuses_and_keeps(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 60_000)).await;
        cli(server, &["CONFIG", "SET", "maxmemory", "1"]);
        for error in [
            backend.acquire(&attempt("s", 60_000)).await.unwrap_err(),
            backend.renew(&lease).await.unwrap_err(),
            backend.release(&lease).await.unwrap_err(),
            backend.force_release(&order("r", value(&lease))).await.unwrap_err(),
        ] {
            assert_eq!((error.effect(), error.advice()), (Effect::None, lease_core::Advice::TryAgain), "{error}");
        }
        cli(server, &["CONFIG", "SET", "maxmemory", "0"]);
        assert!(!is_held(&backend, "s").await);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    }

    async fn a_connection_that_let_a_caller_go_unanswered_is_not_used_again(server: &mut Server, client: &str) {
        let proxy = Proxy::to(server.port()).unwrap();
        let url = proxied(server, client, &proxy, "call_timeout_ms=5000");
        let backend = RedisBackend::connect(&url).await.unwrap();
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        // As a guard does whose TTL is short: it stops waiting long before the call's own limit, and tries again.
        proxy.once(Once::SwallowReply);
        let stalled = tokio::time::timeout(Duration::from_secs(1), backend.renew(&lease)).await;
        assert!(stalled.is_err() && proxy.happened());
        let again = backend.renew(&lease).await;
        assert!(matches!(again, Ok(Renewal::Renewed(_))), "{again:?}");
    }

    async fn many_calls_share_one_failure_to_connect(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let connections = |server: &Server| -> u64 {
            let stats = cli(server, &["-a", "s3cret", "--no-auth-warning", "INFO", "stats"]);
            stats.lines().find_map(|l| l.strip_prefix("total_connections_received:")).unwrap().trim().parse().unwrap()
        };
        cli(server, &["CONFIG", "SET", "requirepass", "s3cret"]);
        cli(server, &["-a", "s3cret", "--no-auth-warning", "CLIENT", "KILL", "TYPE", "normal"]);
        // The first may find the old connection cut.
        while !matches!(backend.inspect(&name("r")).await, Err(LeaseError::LoginRefused { .. })) {}
        let before = connections(server);
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..300 {
            let backend = backend.clone();
            calls.spawn(async move { backend.acquire(&attempt(&format!("r{n}"), 60_000)).await.unwrap_err() });
        }
        for error in calls.join_all().await {
            assert!(matches!(error, LeaseError::LoginRefused { .. }), "{error}");
        }
        let made = connections(server) - before;
        assert!(made < 100, "{made} connections for 300 calls");
    }

    async fn connections_that_hang_do_not_pile_up(server: &mut Server, client: &str) {
        let backend = RedisBackend::connect(&url(server, client, "call_timeout_ms=50")).await.unwrap();
        let lease = acquire(&backend, &attempt("r", 60_000)).await;
        let connections = |server: &Server| -> u64 {
            let stats = cli(server, &["INFO", "stats"]);
            stats.lines().find_map(|l| l.strip_prefix("total_connections_received:")).unwrap().trim().parse().unwrap()
        };
        let before = connections(server);
        server.pause();
        for _ in 0..40 {
            assert!(backend.renew(&lease).await.is_err());
        }
        server.resume();
        let made = connections(server) - before;
        assert!(made < 10, "{made} connections for 40 calls to a server that hangs");
        while backend.renew(&lease).await.is_err() {}
    }

    async fn many_calls_share_one_connection(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..500 {
            let backend = backend.clone();
            calls.spawn(async move { acquire(&backend, &attempt(&format!("r{n}"), 60_000)).await });
        }
        let leases = calls.join_all().await;
        assert_eq!(leases.len(), 500);
        let clients = cli(server, &["CLIENT", "LIST"]);
        assert_eq!(clients.lines().count(), 2, "the backend's and this query's: {clients}");
        drop(backend);
        while cli(server, &["CLIENT", "LIST"]).lines().count() > 1 {
            sleep_ms(10).await;
        }
    }
}

#[cfg(all(feature = "client-redis", feature = "client-fred"))]
#[tokio::test]
async fn one_client_goes_on_with_what_the_other_acquired() {
    let server = server();
    for (one, two) in [("redis", "redis+fred"), ("redis+fred", "redis")] {
        let (one, two) = (backend(&server, one).await, backend(&server, two).await);
        let first = attempt("r", 30_000);
        let lease = acquire(&one, &first).await;
        assert_eq!(acquire(&two, &first).await.token(), lease.token());
        let Renewal::Renewed(lease) = two.renew(&lease).await.unwrap() else { panic!() };
        two.fence().register().unwrap().write(&lease, "x").await.unwrap();
        assert_eq!(one.fence().register().unwrap().read(&name("r")).await.unwrap().as_deref(), Some("x"));
        assert_eq!(two.release(&lease).await.unwrap(), Release::Released);
        let next = acquire(&two, &attempt("r", 30_000)).await;
        assert!(next.token() > lease.token(), "one authority for both");
        assert_eq!(one.release(&next).await.unwrap(), Release::Released);
    }
}
