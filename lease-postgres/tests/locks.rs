//! Rows that somebody else has locked: what an operation says depends on the time when it gets the row, not when it asked for it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Acquisition, FenceError, FencedRegister as _, Lease, LeaseBackend, LossReason, Release, Renewal};
use lease_postgres::PostgresBackend;
use sqlx::PgPool;
use support::{
    admin, attempt, connect, expire_in, name, shared, take, until_blocked, until_blocked_or_done, until_expired,
};

/// Runs `work` with a lease whose row is locked until after the lease's end.
async fn past_expiry<T, F>(pool: &PgPool, namespace: &str, backend: &PostgresBackend, work: impl Fn(Lease) -> F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    // The wait has to begin before the lease's end; a slow machine needs more time for that.
    for left_ms in [500, 2_000, 8_000, 20_000] {
        let lease = take(backend, "r", 60_000).await;
        expire_in(pool, namespace, "r", left_ms).await;
        let mut foreign = pool.begin().await.unwrap();
        let lock = format!("SELECT FROM {namespace}.lease WHERE name = 'r' FOR UPDATE");
        sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *foreign).await.unwrap();
        let working = tokio::spawn(work(lease));
        let began_in_time = until_blocked_or_done(pool, namespace, 1, &working).await
            && backend.inspect(&name("r")).await.unwrap().held.is_some();
        until_expired(backend, "r").await;
        foreign.commit().await.unwrap();
        let answer = working.await.unwrap();
        assert_eq!(backend.inspect(&name("r")).await.unwrap().held, None, "an ended grant came back");
        if began_in_time {
            return answer;
        }
    }
    panic!("too slow for this test");
}

/// A grant that ends while its holder's renewal waits for the row is lost, although nobody took it meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_waits_past_the_end_resurrects_nothing() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "locks_renew").await);
    let renewal = past_expiry(&pool, "locks_renew", &backend, |lease| {
        let backend = backend.clone();
        async move { backend.renew(&lease).await }
    });
    assert!(matches!(renewal.await.unwrap(), Renewal::Lost(LossReason::Expired)));
}

/// And its release says that the lease was lost, whether or not a request of the attempt may still be under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_waits_past_the_end_says_so() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "locks_release").await);
    for in_flight in [false, true] {
        let release = past_expiry(&pool, "locks_release", &backend, |lease| {
            let backend = backend.clone();
            let handed_over = lease.clone().into_hand_over().into_lease(backend.clock()).unwrap();
            let lease = if in_flight { handed_over } else { lease };
            async move { backend.release(&lease).await }
        });
        assert_eq!(release.await.unwrap(), Release::NotHeld, "in flight: {in_flight}");
    }
}

/// The native fence refuses from the moment the grant ended, also whoever waited for the row over that moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_waits_past_the_end_refuses() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "locks_fence").await);
    let written = past_expiry(&pool, "locks_fence", &backend, |lease| {
        let backend = backend.clone();
        async move { backend.write(&lease, "stale").await }
    });
    assert!(matches!(written.await, Err(FenceError::Refused { .. })));
    assert_eq!(backend.read(&name("r")).await.unwrap(), None);
    let checked = past_expiry(&pool, "locks_fence", &backend, |lease| {
        let (backend, pool) = (backend.clone(), pool.clone());
        async move {
            let mut transaction = pool.begin().await.unwrap();
            let checked = backend.transaction_fence().check(&mut transaction, &lease).await;
            transaction.rollback().await.unwrap();
            checked
        }
    });
    assert!(matches!(checked.await, Err(FenceError::Refused { .. })));
}

/// Whoever gives an expired grant up has not released it: a later release is told that the lease was lost.
#[tokio::test(flavor = "multi_thread")]
async fn abandoning_an_expired_grant_does_not_make_it_released() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "locks_abandon").await);
    let attempt = attempt("r", 60_000);
    let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() else { panic!("held") };
    expire_in(&pool, "locks_abandon", "r", 0).await;
    backend.abandon(&attempt).await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Expired)));
}

/// Many who change the row of a free name keep it locked nearly always; it is granted all the same, not called held.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_name_under_a_storm_of_changes_is_granted() {
    let server = shared();
    let backend = connect(&server, "locks_storm").await;
    let storm: Vec<_> = (0..6)
        .map(|_| {
            let backend = backend.clone();
            tokio::spawn(async move {
                loop {
                    backend.abandon(&attempt("r", 1_000)).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..40 {
        let lease = take(&backend, "r", 60_000).await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    }
    for task in storm {
        assert!(!task.is_finished());
        task.abort();
    }
}

/// While a fenced transaction is open, several change its row one after the other: none of them waits in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_wait_for_one_another_beside_a_fenced_transaction_all_go_on() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "locks_line").await);
    let lease = take(&backend, "r", 60_000).await;
    let mut fenced = pool.begin().await.unwrap();
    backend.transaction_fence().check(&mut fenced, &lease).await.unwrap();
    let mut first = pool.begin().await.unwrap();
    sqlx::query("UPDATE locks_line.lease SET holder = 'changed'").execute(&mut *first).await.unwrap();
    let renewing = tokio::spawn({
        let (backend, lease) = (backend.clone(), lease.clone());
        async move { backend.renew(&lease).await }
    });
    until_blocked(&pool, "locks_line", 1, &renewing).await;
    let mut abandoning = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let backend = backend.clone();
        abandoning.spawn(async move { backend.abandon(&attempt("r", 60_000)).await });
    }
    until_blocked(&pool, "locks_line", 4, &renewing).await;
    first.commit().await.unwrap();
    assert!(matches!(renewing.await.unwrap().unwrap(), Renewal::Renewed(_)));
    while let Some(done) = abandoning.join_next().await {
        done.unwrap().unwrap();
    }
    fenced.commit().await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
}

/// A fenced transaction that ends just while the next worker's request looks at the row must not leave that grant in a form that an old
/// snapshot takes for a mere release.
#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_does_not_pass_a_grant_that_met_the_end_of_a_fenced_transaction() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "locks_met").await);
    // The next worker stops between its two looks at the row until the test lets it go on.
    let looks = "FOR UPDATE OF l SKIP LOCKED";
    let edits = [(looks, format!("AND pg_advisory_xact_lock(47) IS NOT NULL {looks}"))];
    let edits = edits.each_ref().map(|(from, to)| (*from, to.as_str()));
    let url = support::url(&server, "namespace=locks_met&call_timeout_ms=30000");
    let next = PostgresBackend::connect_edited(&url, &edits).await.unwrap();

    let lease = take(&backend, "r", 60_000).await;
    let mut old = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    sqlx::query("SELECT count(*) FROM locks_met.lease").fetch_one(&mut *old).await.unwrap();
    let mut fenced = pool.begin().await.unwrap();
    backend.transaction_fence().check(&mut fenced, &lease).await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    let mut gate = pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(47)").execute(&mut *gate).await.unwrap();
    let taking = tokio::spawn(async move { take(&next, "r", 60_000).await });
    until_blocked(&pool, "locks_met", 1, &taking).await;
    fenced.commit().await.unwrap();
    gate.commit().await.unwrap();
    taking.await.unwrap();

    let stale = backend.transaction_fence().check(&mut old, &lease).await;
    assert!(stale.is_err(), "two holders inside the fence");
    assert!(sqlx::query("SELECT 1").execute(&mut *old).await.is_err(), "its transaction has failed");
}
