//! No session holds a lease: what servers, poolers and dropped calls do to sessions costs nobody a lease, a lock or a place in the pool.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Acquisition, Effect, ErrorKind, FencedRegister as _, Lease, LeaseBackend, Release, Renewal};
use lease_postgres::PostgresBackend;
use lease_servers::{Mode, Proxy, Server};
use std::sync::Arc;
use std::time::Duration;
use support::{admin, attempt, connect, expire_in, is_held, name, number, own, shared, sql, take, url};

async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Every operation once, and each one again as a call that is dropped after a moment.
async fn everything(backend: &PostgresBackend, round: u64) {
    let resource = format!("r{round}");
    let dropped = Duration::from_micros(round.saturating_mul(150));
    let attempt = attempt(&resource, 60_000);
    drop(tokio::time::timeout(dropped, backend.acquire(&attempt)).await);
    let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() else { panic!("held by itself") };
    assert!(is_held(backend, &resource).await);
    drop(tokio::time::timeout(dropped, backend.renew(&lease)).await);
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    drop(tokio::time::timeout(dropped, backend.write(&lease, "x")).await);
    backend.write(&lease, "x").await.unwrap();
    backend.inspect(&name(&resource)).await.unwrap();
    drop(tokio::time::timeout(dropped, backend.list("", None, 10)).await);
    backend.list("", None, 10).await.unwrap();
    drop(tokio::time::timeout(dropped, backend.clean_up()).await);
    backend.clean_up().await.unwrap();
    drop(tokio::time::timeout(dropped, backend.release(&lease)).await);
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    drop(tokio::time::timeout(dropped, backend.abandon(&attempt)).await);
    backend.abandon(&attempt).await.unwrap();
}

/// Whatever is called, and dropped at whichever moment: no session is left with an advisory lock or an open transaction.
#[tokio::test(flavor = "multi_thread")]
async fn no_operation_leaves_a_lock_or_a_transaction_in_a_session() {
    let server = own(&[]);
    let pool = admin(&server).await;
    let backend = connect(&server, "sessions").await;
    for round in 0..12 {
        everything(&backend, round).await;
    }
    let live = take(&backend, "held by nobody's session", 60_000).await;
    // A call that was dropped may still be under way in the server.
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND state <> 'idle'";
    while number(&pool, busy).await > 0 {
        sleep_ms(5).await;
    }
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' OR relation = 'sessions.lease'::regclass";
    assert_eq!(number(&pool, locks).await, 0, "while a lease is held");
    assert_eq!(backend.release(&live).await.unwrap(), Release::Released);
}

/// Usual hardening of a server, with limits that strike between any two calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_idle_sessions_at_once_costs_no_lease() {
    let limits = [("idle_session_timeout", "100ms"), ("idle_in_transaction_session_timeout", "100ms")];
    let server = own(&limits);
    let (holder, other) = (connect(&server, "idle").await, connect(&server, "idle").await);
    let mut lease = take(&holder, "r", 60_000).await;
    for _ in 0..5 {
        sleep_ms(400).await;
        // One call is enough each time.
        let Renewal::Renewed(renewed) = holder.renew(&lease).await.unwrap() else { panic!("lost") };
        lease = renewed;
        assert!(is_held(&other, "r").await);
    }
    sleep_ms(400).await;
    assert_eq!(holder.release(&lease).await.unwrap(), Release::Released);
    sleep_ms(400).await;
    take(&other, "r", 60_000).await;
}

/// A session that ended just now looks alive to the client until it sends: the statement was not read, so another session gets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_a_moment_ago_costs_no_call() {
    let server = own(&[("idle_session_timeout", "40ms")]);
    let (holder, other) = (connect(&server, "ended").await, connect(&server, "ended").await);
    for round in 0..8 {
        let lease = take(&holder, &format!("r{round}"), 60_000).await;
        sleep_ms(80).await;
        assert!(matches!(holder.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        assert!(is_held(&other, &format!("r{round}")).await);
        sleep_ms(80).await;
        assert_eq!(holder.release(&lease).await.unwrap(), Release::Released);
        sleep_ms(80).await;
    }
}

/// As many holders as the application has connections, each in a transaction of its own, and each calls the backend meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_holders_as_connections_all_get_their_work_done() {
    const HOLDERS: usize = 4;
    let server = shared();
    let application = sqlx::postgres::PgPoolOptions::new().max_connections(4).connect(server.url()).await.unwrap();
    let url = url(&server, "namespace=full&max_connections=1&call_timeout_ms=30000");
    let backend = PostgresBackend::connect(&url).await.unwrap();
    sql(&application, "CREATE TABLE full_work (holder int)").await;
    let all_are_inside = Arc::new(tokio::sync::Barrier::new(HOLDERS));
    let mut holders = tokio::task::JoinSet::new();
    for holder in 0..4_i32 {
        let (application, backend, all) = (application.clone(), backend.clone(), Arc::clone(&all_are_inside));
        holders.spawn(async move {
            let lease = take(&backend, &format!("r{holder}"), 60_000).await;
            let mut transaction = application.begin().await.unwrap();
            backend.transaction_fence().check(&mut transaction, &lease).await.unwrap();
            all.wait().await;
            assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
            let insert = sqlx::query("INSERT INTO full_work VALUES ($1)").bind(holder);
            insert.execute(&mut *transaction).await.unwrap();
            transaction.commit().await.unwrap();
            assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        });
    }
    let all = async { while holders.join_next().await.transpose().unwrap().is_some() {} };
    // Much longer than it takes: it only ends a deadlock.
    tokio::time::timeout(Duration::from_mins(2), all).await.unwrap();
    assert_eq!(number(&application, "SELECT count(*) FROM full_work").await, 4);
}

/// Giving up a connection whose peer says nothing waits for nobody, and its place in the pool is free again.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_of_a_silent_server_give_their_places_back() {
    let server = shared();
    let proxy = Proxy::to(server.port()).unwrap();
    let parameters = "namespace=places&max_connections=2&call_timeout_ms=60000&connect_timeout_ms=60000";
    let backend = PostgresBackend::connect(&through(&server, &proxy, parameters)).await.unwrap();
    // Both connections are open.
    let open = tokio::join!(take(&backend, "a", 60_000), take(&backend, "b", 60_000));
    proxy.set_both(Mode::Hole);
    for _ in 0..3 {
        let calls = ["x", "y", "z"].map(|resource| {
            let backend = backend.clone();
            async move { backend.acquire(&attempt(resource, 60_000)).await.map(drop) }
        });
        let [x, y, z] = calls;
        let waited = tokio::time::timeout(Duration::from_millis(200), async { tokio::join!(x, y, z) }).await;
        assert!(waited.is_err(), "nobody answers");
    }
    proxy.set_both(Mode::Pass);
    proxy.cut();
    // Less than the limit of one call, which a place that is not given back would cost.
    let again = async { tokio::join!(renewed(&backend, &open.0), renewed(&backend, &open.1)) };
    tokio::time::timeout(Duration::from_secs(45), again).await.unwrap();
}

/// Renews; a connection that was being opened while nobody answered may still come to its end.
async fn renewed(backend: &PostgresBackend, lease: &Lease) {
    loop {
        match backend.renew(lease).await {
            Ok(answer) => return assert!(matches!(answer, Renewal::Renewed(_)), "{answer:?}"),
            Err(error) => assert_eq!((error.kind(), error.effect()), (ErrorKind::Transport, Effect::None), "{error}"),
        }
    }
}

fn through(server: &Server, proxy: &Proxy, parameters: &str) -> String {
    url(server, parameters).replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()))
}

/// Sessions that show times hours apart see one time: those of the backend, and those of the application around a fenced transaction.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_in_different_time_zones_see_the_same_expiry() {
    let server = shared();
    let pool = admin(&server).await;
    let mut clients = Vec::new();
    let zones = [("west", "America/Los_Angeles"), ("east", "Asia/Tokyo")];
    for (role, zone) in zones {
        sql(&pool, &format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 's3cret'")).await;
        sql(&pool, &format!("ALTER ROLE {role} SET timezone = '{zone}'")).await;
        let rest = server.url().split_once('@').unwrap().1.to_owned();
        let parameters = "namespace=zones&call_timeout_ms=30000";
        clients.push(PostgresBackend::connect(&format!("postgres://{role}:s3cret@{rest}?{parameters}")).await.unwrap());
    }
    for (holder, other) in [(0, 1), (1, 0)] {
        let (holder, other) = (&clients[holder], &clients[other]);
        let lease = take(holder, "r", 60_000).await;
        for client in [holder, other] {
            let held = client.inspect(&name("r")).await.unwrap().held.unwrap();
            let (left, minute) = (held.remaining, Duration::from_mins(1));
            assert!(left <= minute && left > minute / 4, "{left:?}");
        }
        assert!(is_held(other, "r").await);
        assert!(matches!(other.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        for (live, (_, zone)) in [true, false].into_iter().flat_map(|live| zones.map(|zone| (live, zone))) {
            if !live {
                expire_in(&pool, "zones", "r", 0).await;
            }
            let mut transaction = pool.begin().await.unwrap();
            let set = format!("SET LOCAL timezone = '{zone}'");
            sqlx::query(sqlx::AssertSqlSafe(set)).execute(&mut *transaction).await.unwrap();
            let checked = holder.transaction_fence().check(&mut transaction, &lease).await;
            assert_eq!(checked.is_ok(), live, "{zone}: {checked:?}");
        }
    }
}
