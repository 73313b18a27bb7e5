//! Replies that are lost, servers that stop, die and come back, and connections that are dead.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{
    Acquisition, Claim, Effect, ErrorKind, FencedRegister as _, FencingToken, Forced, GrantId, GuardError,
    GuardedDestination as _, LeaseBackend, LeaseError, LossReason, Refusal, Release, Renewal,
};
use lease_postgres::{PostgresBackend, PostgresDestination};
use lease_servers::{Direction, Mode, Once, Proxy, Server};
use std::time::{Duration, Instant};
use support::{admin, attempt, connect, force, is_held, name, number, order, own, shared, sql, take, url, value};

/// The server's URL, but through the proxy.
fn through(server: &Server, proxy: &Proxy, parameters: &str) -> String {
    url(server, parameters).replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()))
}

/// A client behind a proxy, warmed up: its one connection has every statement prepared, so that the next request is the statement itself.
async fn behind(server: &Server, proxy: &Proxy, namespace: &str) -> PostgresBackend {
    let parameters = format!("namespace={namespace}&max_connections=1&call_timeout_ms=2500");
    let backend = PostgresBackend::connect(&through(server, proxy, &parameters)).await.unwrap();
    let lease = take(&backend, "warm-up", 60_000).await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    backend.clean_up().await.unwrap();
    backend
}

fn is_unknown(error: &LeaseError) -> bool {
    error.effect() == Effect::Unknown && error.kind() == ErrorKind::Transport
}

/// Cut or silent before and after the server has run the acquire: the error says unknown, the same attempt finds its one grant.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_without_an_answer_is_found_by_the_same_attempt() {
    let server = shared();
    let witness = connect(&server, "lost_acquire").await;
    for fault in [Once::CutBeforeRequest, Once::CutAfterRequest, Once::CutBeforeReply, Once::SwallowReply] {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = behind(&server, &proxy, "lost_acquire").await;
        let resource = format!("{fault:?}");
        let attempt = attempt(&resource, 60_000);
        proxy.once(fault);
        let error = backend.acquire(&attempt).await.unwrap_err();
        assert!(proxy.happened());
        assert!(is_unknown(&error), "{fault:?}: {error}");
        let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() else { panic!("{fault:?}") };
        let seen = witness.inspect(&name(&resource)).await.unwrap().held.unwrap();
        assert_eq!(seen.value, Some(value(&lease)));
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert!(!is_held(&witness, &resource).await);
    }
}

/// A request that is held on its way and arrives after the attempt was abandoned, or released, makes no grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_request_of_a_spent_attempt_makes_no_grant() {
    let server = shared();
    let witness = connect(&server, "late_request").await;
    for releases in [false, true] {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = behind(&server, &proxy, "late_request").await;
        let resource = format!("releases: {releases}");
        let attempt = attempt(&resource, 60_000);
        proxy.once(Once::HoldRequest);
        let error = backend.acquire(&attempt).await.unwrap_err();
        assert!(is_unknown(&error), "{error}");
        if releases {
            let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() else { panic!("held") };
            assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        } else {
            backend.abandon(&attempt).await.unwrap();
        }
        let pool = admin(&server).await;
        let statements = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
        let before = number(&pool, statements).await;
        proxy.deliver();
        // The abandoned connection ends once its server process has run what came late and found the client gone.
        while number(&pool, statements).await >= before && before > 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let seen = witness.inspect(&name(&resource)).await.unwrap();
        assert_eq!(seen.held, None, "{resource}");
        assert!(!is_held(&witness, &resource).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_and_releases_without_an_answer() {
    let server = shared();
    for fault in [Once::CutBeforeRequest, Once::CutAfterRequest, Once::CutBeforeReply, Once::SwallowReply] {
        let proxy = Proxy::to(server.port()).unwrap();
        let backend = behind(&server, &proxy, "lost_renewal").await;
        let lease = take(&backend, &format!("{fault:?}"), 60_000).await;
        proxy.once(fault);
        let error = backend.renew(&lease).await.unwrap_err();
        assert!(is_unknown(&error), "{fault:?}: {error}");
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "the lease lives on");
        proxy.once(fault);
        let error = backend.release(&lease).await.unwrap_err();
        assert!(is_unknown(&error), "{fault:?}: {error}");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "{fault:?}: never a false loss");
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Released)));
    }
}

/// A peer that accepts and never answers: each call ends by its limit, and afterwards the client is as good as new.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_ends_against_a_silent_peer() {
    let server = shared();
    let proxy = Proxy::to(server.port()).unwrap();
    let url = through(&server, &proxy, "namespace=silent&call_timeout_ms=1500&connect_timeout_ms=3000");
    let backend = PostgresBackend::connect(&url).await.unwrap();
    let lease = take(&backend, "r", 60_000).await;
    proxy.set_both(Mode::Hole);
    for _ in 0..2 {
        assert!(is_unknown_or_unsent(&backend.acquire(&attempt("other", 60_000)).await.unwrap_err()));
        assert!(is_unknown_or_unsent(&backend.renew(&lease).await.unwrap_err()));
        for error in [backend.inspect(&name("r")).await.unwrap_err(), backend.list("", None, 10).await.unwrap_err()] {
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Transport, Effect::None), "a look changes nothing");
        }
        assert!(is_unknown_or_unsent(&backend.clean_up().await.unwrap_err()));
        assert!(is_unknown_or_unsent(&backend.force_release(&order("r", value(&lease))).await.unwrap_err()));
        assert!(is_unknown_or_unsent(&backend.abandon(&attempt("third", 60_000)).await.unwrap_err()));
        assert!(backend.write(&lease, "x").await.is_err());
    }
    let began = Instant::now();
    let silent = url.replace("connect_timeout_ms=3000", "connect_timeout_ms=200");
    assert!(matches!(PostgresBackend::connect(&silent).await, Err(LeaseError::Unreachable { .. })));
    assert!(began.elapsed() >= Duration::from_millis(200));
    proxy.set_both(Mode::Pass);
    proxy.cut();
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
}

fn is_unknown_or_unsent(error: &LeaseError) -> bool {
    error.kind() == ErrorKind::Transport
}

/// A connection that died while nobody used it costs no unknown outcome: it is asked first.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_died_while_idle_is_replaced_before_use() {
    let server = shared();
    let pool = admin(&server).await;
    let proxy = Proxy::to(server.port()).unwrap();
    let backend = behind(&server, &proxy, "died_idle").await;
    let lease = take(&backend, "r", 60_000).await;
    for how in ["cut", "silent", "terminated"] {
        match how {
            "cut" => proxy.cut(),
            "silent" => proxy.once(Once::SwallowReply),
            _ => {
                sql(
                    &pool,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE application_name = 'leasehold' AND query LIKE '%\"died_idle\"%'",
                )
                .await;
            }
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "{how}");
    }
}

/// Dropping each call's future after each number of polls leaves a client that works, and nothing that outlives a TTL.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_futures_leave_the_client_in_order() {
    let server = shared();
    let pool = admin(&server).await;
    let url = url(&server, "namespace=dropped&max_connections=2");
    let backend = PostgresBackend::connect(&url).await.unwrap();
    for polls in 0..12_u32 {
        let resource = format!("r{polls}");
        let attempt = attempt(&resource, 60_000);
        poll_times(backend.acquire(&attempt), polls).await;
        let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() else { panic!("{resource}") };
        poll_times(backend.renew(&lease), polls).await;
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "{resource}");
        poll_times(backend.inspect(lease.resource()), polls).await;
        poll_times(backend.clean_up(), polls).await;
        poll_times(backend.release(&lease), polls).await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "{resource}");
        poll_times(backend.abandon(&attempt), polls).await;
        assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));

        let broken = take(&backend, &resource, 60_000).await;
        poll_times(backend.force_release(&order(&resource, value(&broken))), polls).await;
        let again = force(&backend, &broken).await;
        assert!(matches!(again, Forced::Ended | Forced::NotHeld), "{resource}: {again:?}");
        assert!(matches!(backend.renew(&broken).await.unwrap(), Renewal::Lost(LossReason::Forced)), "{resource}");
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM dropped.lease WHERE NOT released").await, 0);
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%dropped%'";
    while number(&pool, open).await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls a future so often, giving the network time in between, and drops it.
async fn poll_times<T>(future: impl Future<Output = T>, polls: u32) {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if poll {
            return;
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
}

/// Killed and restarted: the live grant, the order of tokens and the marks are still there.
#[tokio::test(flavor = "multi_thread")]
async fn grants_tokens_and_marks_survive_a_crash() {
    let mut server = own(&[("synchronous_commit", "off")]);
    let backend = connect(&server, "crash").await;
    let destination = PostgresDestination::connect(&url(&server, "namespace=crash")).await.unwrap();
    assert!(backend.claims().has(Claim::LeaseSurvivesRestart) && backend.claims().has(Claim::TokenSurvivesRestart));
    assert!(destination.claims().has(Claim::MarkSurvivesRestart));
    for round in 0..3 {
        let kept = take(&backend, &format!("kept{round}"), 600_000).await;
        let mut last = take(&backend, "r", 600_000).await;
        for _ in 0..10 {
            assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
            last = take(&backend, "r", 600_000).await;
        }
        let token = last.token().unwrap().clone();
        if round == 0 {
            destination.adopt(None, token.authority()).await.unwrap();
        }
        destination.write(&name("r"), &token, "before").await.unwrap();
        server.kill();
        assert!(backend.renew(&last).await.is_err());
        server.restart().unwrap();
        assert!(is_held(&backend, "r").await);
        assert!(matches!(backend.renew(&kept).await.unwrap(), Renewal::Renewed(_)));
        assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
        let next = take(&backend, "r", 600_000).await;
        assert!(next.token().unwrap() > &token, "the same authority, a larger value");
        let stale =
            FencingToken::new(token.authority().clone(), token.value() - 1, GrantId::random().unwrap()).unwrap();
        // Its connection died with the server; that may show at the first call after.
        let mut answer = destination.seal(&name("r"), &stale).await;
        if matches!(&answer, Err(GuardError::Store(error)) if is_unknown(error)) {
            answer = destination.seal(&name("r"), &stale).await;
        }
        match answer {
            Err(GuardError::Refused { refusal: Refusal::Stale { mark, .. }, .. }) => assert_eq!(mark, token.value()),
            other => panic!("{other:?}"),
        }
        assert_eq!(backend.release(&next).await.unwrap(), Release::Released);
    }
}

/// A server that is stopped: unknown in time; and what it runs when it goes on is what the attempt finds.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server() {
    let server = own(&[]);
    let url = url(&server, "namespace=stopped&call_timeout_ms=1500");
    let backend = PostgresBackend::connect(&url).await.unwrap();
    let lease = take(&backend, "held", 600_000).await;
    let attempt = attempt("r", 600_000);
    server.pause();
    let error = backend.acquire(&attempt).await.unwrap_err();
    assert!(is_unknown(&error), "{error}");
    assert!(backend.renew(&lease).await.is_err());
    server.resume();
    let Acquisition::Acquired(found) = backend.acquire(&attempt).await.unwrap() else { panic!("held by itself") };
    let seen = backend.inspect(&name("r")).await.unwrap();
    assert_eq!(seen.last_value, Some(value(&found)));
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
}

/// A row or the whole table is locked by somebody else's transaction: an answer in time, definitely without effect.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_locks_are_an_answer_in_time() {
    let server = shared();
    let pool = admin(&server).await;
    let url = url(&server, "namespace=locked&call_timeout_ms=600");
    let backend = PostgresBackend::connect(&url).await.unwrap();
    let (lease, other) = (take(&backend, "r", 60_000).await, take(&backend, "other", 60_000).await);
    let mut foreign = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM locked.lease WHERE name = 'r' FOR UPDATE").execute(&mut *foreign).await.unwrap();
    let blocked = |error: LeaseError| {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Store, Effect::None), "{error}");
        assert!(error.to_string().contains("blocked in the database"), "{error}");
    };
    blocked(backend.renew(&lease).await.unwrap_err());
    blocked(backend.release(&lease).await.unwrap_err());
    blocked(backend.force_release(&order("r", value(&lease))).await.unwrap_err());
    assert!(is_held(&backend, "r").await, "a look needs no lock");
    assert!(matches!(backend.renew(&other).await.unwrap(), Renewal::Renewed(_)), "other rows are free");
    sqlx::query("LOCK TABLE locked.lease IN ACCESS EXCLUSIVE MODE").execute(&mut *foreign).await.unwrap();
    blocked(backend.acquire(&attempt("r", 60_000)).await.unwrap_err());
    blocked(backend.inspect(&name("r")).await.unwrap_err());
    // Connecting looks at the catalog only, so it is not held up.
    PostgresBackend::connect(&url).await.unwrap();
    foreign.rollback().await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "the refused release left no doubt");
}

/// A reply held back beyond the grant's own deadline is no success, and what it granted is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_arrives_late_is_given_up() {
    let server = shared();
    let proxy = Proxy::to(server.port()).unwrap();
    let backend = behind(&server, &proxy, "late_grant").await;
    proxy.set(Direction::Replies, Mode::Delay(Duration::from_millis(150)));
    let error = backend.acquire(&attempt("r", 100)).await.unwrap_err();
    assert!(matches!(error, LeaseError::LateGrant { .. }), "{error}");
    assert_eq!(backend.inspect(&name("r")).await.unwrap().held, None);
}

/// Where connecting takes longer than a call may, calls fail for a while and then find the connection that their forerunners began.
#[tokio::test(flavor = "multi_thread")]
async fn connecting_may_take_longer_than_a_call() {
    let server = shared();
    let proxy = Proxy::to(server.port()).unwrap();
    let parameters = "namespace=slow_connect&max_connections=1&call_timeout_ms=400&connect_timeout_ms=20000";
    let backend = PostgresBackend::connect(&through(&server, &proxy, parameters)).await.unwrap();
    // Each request of a log-in, and of what is read after it, waits this long: together longer than the call.
    proxy.set(Direction::Requests, Mode::Delay(Duration::from_millis(80)));
    proxy.cut();
    // One that was in use a moment ago is trusted, and the first call would find it cut.
    tokio::time::sleep(Duration::from_millis(250)).await;
    let first = backend.inspect(&name("r")).await.unwrap_err();
    assert!(
        matches!(first, LeaseError::Timeout { effect: Effect::None, .. }),
        "connecting was too quick to show anything: {first}"
    );
    let begun = Instant::now();
    while let Err(error) = backend.inspect(&name("r")).await {
        assert_eq!(error.effect(), Effect::None);
        assert!(begun.elapsed() < Duration::from_mins(1), "no call succeeds any more: {error}");
    }
}
