//! Many clients and many leases beside strangers' locks: nothing of it is an error, and nobody is held up for another's sake.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::hold::{HoldOptions, Keeper, LeaseGuard};
use lease_core::{LeaseBackend, LeaseExt as _, Release, Renewal};
use lease_postgres::PostgresBackend;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{admin, connect, connect_with, number, own, sql, take, url, value};

async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Lost races and polling are ordinary answers: no error in the server's log, no transaction rolled back, no value used up.
#[tokio::test(flavor = "multi_thread")]
async fn contention_is_no_error_for_the_server_and_uses_no_values() {
    let server = own(&[("log_min_messages", "warning"), ("log_min_error_statement", "warning")]);
    let pool = admin(&server).await;
    let backends = [connect(&server, "contended").await, connect(&server, "contended").await];
    take(&backends[0], "r", 60_000).await;
    // So far ahead that the clock is of no help: only grants may move it.
    let ahead = 9_000_000_000_000_000_000_u64;
    sql(&pool, &format!("UPDATE contended.lease SET value = {ahead}")).await;
    let log = server.folder().join("log");
    let before = std::fs::read_to_string(&log).unwrap().len();
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..20_usize {
        let backend = backends[n % 2].clone();
        let wait = Duration::from_secs(2);
        waiters
            .spawn(async move { backend.acquire_within("r", Duration::from_mins(1), wait).await.unwrap().is_none() });
    }
    while let Some(nothing) = waiters.join_next().await {
        assert!(nothing.unwrap(), "it was held all the time");
    }
    let log = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<_> = log.get(before..).unwrap().lines().collect();
    assert!(!lines.iter().any(|l| l.contains("ERROR") || l.contains("WARNING")), "{lines:#?}");
    sql(&pool, "UPDATE contended.lease SET expires_at = clock_timestamp()").await;
    assert_eq!(value(&take(&backends[1], "r", 60_000).await), ahead + 1);
    // Each session reports what it did at its end.
    drop(backends);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    while number(&pool, sessions).await > 0 {
        sleep_ms(5).await;
    }
    let undone = "SELECT xact_rollback + deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(number(&pool, undone).await, 0);
}

/// Renewals, a clean-up and a look at everything, beside strangers who lock the same rows in one order and in the other.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_beside_bulk_locks_in_any_order_all_go_on() {
    let server = own(&[("deadlock_timeout", "20ms")]);
    let pool = admin(&server).await;
    let backend = connect_with(&server, "namespace=bulk&max_connections=4").await;
    let mut leases = Vec::new();
    for n in 0..40 {
        leases.push(take(&backend, &format!("r{n:02}"), 600_000).await);
    }
    let over = Arc::new(AtomicBool::new(false));
    let strangers: Vec<_> = ["ASC", "DESC"]
        .map(|order| {
            let (pool, over) = (pool.clone(), Arc::clone(&over));
            tokio::spawn(async move {
                let lock = format!(
                    "SELECT count(*) FROM (SELECT FROM bulk.lease ORDER BY name {order} FOR UPDATE) all_of_them"
                );
                let mut locked = 0_u32;
                while !over.load(Ordering::SeqCst) {
                    // Of the two, one may be the victim of the other.
                    locked += u32::from(sqlx::query(sqlx::AssertSqlSafe(lock.clone())).execute(&pool).await.is_ok());
                }
                locked
            })
        })
        .into();
    let mut renewing = tokio::task::JoinSet::new();
    for part in leases.chunks(10).map(<[_]>::to_vec) {
        let backend = backend.clone();
        renewing.spawn(async move {
            for _ in 0..10 {
                for lease in &part {
                    assert!(matches!(backend.renew(lease).await.unwrap(), Renewal::Renewed(_)));
                }
                backend.clean_up().await.unwrap();
                assert_eq!(backend.list("", None, 100).await.unwrap().grants.len(), 40);
            }
        });
    }
    while let Some(done) = renewing.join_next().await {
        done.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    for stranger in strangers {
        assert!(stranger.await.unwrap() > 5, "the strangers were in the way");
    }
}

/// Some rows are locked by a stranger for long: their leases are lost, in time; all others are kept. A call gives up a lock after a quarter of
/// its limit, so the blocked renewals keep giving their connections back.
#[tokio::test(flavor = "multi_thread")]
async fn leases_beside_locked_rows_are_kept() {
    // Much longer than the others have to wait for a connection, however slow the machine.
    const TTL: Duration = Duration::from_secs(24);
    let server = own(&[]);
    let pool = admin(&server).await;
    let backend = PostgresBackend::connect(&url(&server, "namespace=beside&max_connections=5")).await.unwrap();
    let keeper = Keeper::start(Arc::new(backend)).unwrap();
    let mut guards: Vec<LeaseGuard> = Vec::new();
    for n in 0..50 {
        guards.push(keeper.acquire(&format!("r{n:02}"), TTL, HoldOptions::default()).await.unwrap().unwrap());
    }
    let mut stranger = pool.begin().await.unwrap();
    let locked = "SELECT FROM beside.lease WHERE name < 'r10' FOR UPDATE";
    sqlx::query(locked).execute(&mut *stranger).await.unwrap();
    let others = guards.split_off(10);
    for guard in &guards {
        guard.lost().await;
    }
    // The others have outlived the deadlines that stood when the rows were locked.
    let lost: Vec<_> = others.iter().filter_map(LeaseGuard::loss).collect();
    assert!(lost.is_empty(), "{} of 40 were lost beside locked rows: {:?}", lost.len(), lost.first());
    assert_eq!(number(&pool, "SELECT count(*) FROM beside.lease").await, 50, "other queries are answered");
    stranger.rollback().await.unwrap();
    for guard in others {
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}
