//! The native fence, in forced interleavings of real sessions.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Acquisition, FenceError, FencedRegister as _, LeaseBackend, LeaseError, Release, Renewal};
use sqlx::{PgPool, Postgres, Transaction};
use std::time::Duration;
use support::{admin, attempt, connect, expire_in, name, number, shared, sql, take, value};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

async fn begin(pool: &PgPool, level: &'static str) -> Transaction<'static, Postgres> {
    let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
    pool.begin_with(begin).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_register_refuses_whoever_does_not_hold() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "fence_register").await);
    assert_eq!(backend.fence().name(), "native, live owner");
    let lease = take(&backend, "r", 60_000).await;
    backend.write(&lease, "one").await.unwrap();
    backend.write(&lease, "two").await.unwrap();
    assert_eq!(backend.read(&name("r")).await.unwrap().as_deref(), Some("two"));
    assert_eq!(backend.read(&name("other")).await.unwrap(), None);
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    assert!(matches!(backend.write(&lease, "after release").await, Err(FenceError::Refused { .. })));

    let short = take(&backend, "r", 60_000).await;
    expire_in(&pool, "fence_register", "r", 0).await;
    assert!(matches!(backend.write(&short, "after expiry").await, Err(FenceError::Refused { .. })));
    let next = take(&backend, "r", 60_000).await;
    assert!(matches!(backend.write(&short, "after the next").await, Err(FenceError::Refused { .. })));
    assert_eq!(backend.read(&name("r")).await.unwrap().as_deref(), Some("two"));
    backend.write(&next, "three").await.unwrap();
}

/// While a fenced transaction is open the holder renews and releases as ever; nobody else is granted the resource before its end, although
/// the grant has ended; and whoever asks is answered at once, not kept waiting.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_holds_up_acquire_and_nothing_else() {
    let server = shared();
    let (pool, a, b) =
        (admin(&server).await, connect(&server, "fence_open").await, connect(&server, "fence_open").await);
    sql(&pool, "CREATE TABLE fence_open.data (writer text)").await;
    for level in LEVELS {
        for how in ["release", "expiry"] {
            let resource = format!("{level} {how}");
            let lease = take(&a, &resource, 60_000).await;
            let fence = a.transaction_fence().with_idle_limit(Duration::from_mins(1));
            let mut transaction = begin(&pool, level).await;
            fence.check(&mut transaction, &lease).await.unwrap();
            assert!(matches!(a.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "{resource}: renewal goes on");
            if how == "release" {
                assert_eq!(a.release(&lease).await.unwrap(), Release::Released);
            } else {
                expire_in(&pool, "fence_open", &resource, 0).await;
            }
            for _ in 0..3 {
                let answer = b.acquire(&attempt(&resource, 60_000)).await.unwrap();
                assert!(matches!(answer, Acquisition::Held(_)), "{resource}: granted during the transaction");
            }
            sqlx::query("INSERT INTO fence_open.data VALUES ($1)")
                .bind(&resource)
                .execute(&mut *transaction)
                .await
                .unwrap();
            transaction.commit().await.unwrap();
            let next = take(&b, &resource, 60_000).await;
            assert!(value(&next) > value(&lease));
        }
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM fence_open.data").await, 6);
}

/// A caller that ignores the refusal and commits: nothing is committed, at any isolation level.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_transaction_cannot_be_committed() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "fence_refused").await);
    sql(&pool, "CREATE TABLE fence_refused.data (writer text)").await;
    for level in LEVELS {
        for end in ["released", "expired", "superseded", "never granted"] {
            let resource = format!("{level} {end}");
            let lease = take(&backend, &resource, 60_000).await;
            match end {
                "expired" => expire_in(&pool, "fence_refused", &resource, 0).await,
                "never granted" => sql(&pool, "DELETE FROM fence_refused.lease").await,
                _ => assert_eq!(backend.release(&lease).await.unwrap(), Release::Released),
            }
            if end == "superseded" {
                take(&backend, &resource, 60_000).await;
            }
            let mut transaction = begin(&pool, level).await;
            sqlx::query("INSERT INTO fence_refused.data VALUES ('before')").execute(&mut *transaction).await.unwrap();
            let refused = backend.transaction_fence().check(&mut transaction, &lease).await;
            assert!(matches!(refused, Err(FenceError::Refused { .. })), "{resource}: {refused:?}");
            let write = sqlx::query("INSERT INTO fence_refused.data VALUES ('after')").execute(&mut *transaction).await;
            assert!(write.is_err(), "{resource}");
            // PostgreSQL answers ROLLBACK to this commit; the client does not take that for an error.
            transaction.commit().await.unwrap();
            assert_eq!(number(&pool, "SELECT count(*) FROM fence_refused.data").await, 0, "{resource}");
        }
    }
}

/// A transaction whose snapshot is older than the next worker's grant is stopped too, although the snapshot shows the lease as live.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_does_not_pass() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "fence_snapshot").await);
    for level in LEVELS {
        let lease = take(&backend, level, 60_000).await;
        let mut transaction = begin(&pool, level).await;
        sqlx::query("SELECT count(*) FROM fence_snapshot.lease").fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        take(&backend, level, 60_000).await;
        let refused = backend.transaction_fence().check(&mut transaction, &lease).await;
        assert!(refused.is_err(), "{level}");
        assert!(
            sqlx::query("SELECT 1").execute(&mut *transaction).await.is_err(),
            "{level}: the transaction has failed"
        );
    }
}

/// The server ends a transaction whose worker is paused, so that it can't hold up the next one for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_holder_is_cut_off_by_the_server() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "fence_idle").await);
    sql(&pool, "CREATE TABLE fence_idle.data (writer text)").await;
    let lease = take(&backend, "r", 60_000).await;
    let mut transaction = pool.begin().await.unwrap();
    let fence = backend.transaction_fence().with_idle_limit(Duration::from_millis(500));
    fence.check(&mut transaction, &lease).await.unwrap();
    expire_in(&pool, "fence_idle", "r", 0).await;
    sqlx::query("INSERT INTO fence_idle.data VALUES ('paused')").execute(&mut *transaction).await.unwrap();
    // The worker does nothing now. Nobody but the server ends its transaction.
    let next = loop {
        match backend.acquire(&attempt("r", 60_000)).await.unwrap() {
            Acquisition::Acquired(next) => break next,
            Acquisition::Held(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    assert!(value(&next) > value(&lease));
    assert!(transaction.commit().await.is_err());
    assert_eq!(number(&pool, "SELECT count(*) FROM fence_idle.data").await, 0);
}

/// The limit does not lengthen one that the session has already, and ends with the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn the_idle_limit_is_local_and_only_shortens() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "fence_limit").await);
    let lease = take(&backend, "r", 60_000).await;
    let show = "SELECT current_setting('idle_in_transaction_session_timeout')";
    for (session, inside) in [("0", "1min"), ("5s", "5s"), ("2min", "1min")] {
        let mut connection = pool.acquire().await.unwrap();
        let set = format!("SET idle_in_transaction_session_timeout = '{session}'");
        sqlx::query(sqlx::AssertSqlSafe(set)).execute(&mut *connection).await.unwrap();
        let mut transaction = sqlx::Connection::begin(&mut *connection).await.unwrap();
        backend.transaction_fence().check(&mut transaction, &lease).await.unwrap();
        let now: String = sqlx::query_scalar(show).fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(now, inside);
        transaction.commit().await.unwrap();
        let after: String = sqlx::query_scalar(show).fetch_one(&mut *connection).await.unwrap();
        assert_eq!(after, session);
    }
}

/// A release that is under way but not committed, then a fenced transaction, then the release's end: the next grant waits for the
/// transaction all the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_fence_holds_across_a_concurrent_release() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "fence_release").await);
    let lease = take(&backend, "r", 60_000).await;
    let mut releasing = pool.begin().await.unwrap();
    sqlx::query("UPDATE fence_release.lease SET released = true, expires_at = clock_timestamp()")
        .execute(&mut *releasing)
        .await
        .unwrap();
    let mut fenced = pool.begin().await.unwrap();
    backend.transaction_fence().check(&mut fenced, &lease).await.unwrap();
    releasing.commit().await.unwrap();
    assert!(matches!(backend.acquire(&attempt("r", 60_000)).await.unwrap(), Acquisition::Held(_)));
    fenced.commit().await.unwrap();
    take(&backend, "r", 60_000).await;
}

/// Rolling back to a savepoint would undo the check and its refusal, so it is not made in a nested transaction at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_nested_transaction_is_not_fenced() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "fence_nested").await);
    let lease = take(&backend, "r", 60_000).await;
    let mut outer = pool.begin().await.unwrap();
    let mut nested = sqlx::Connection::begin(&mut *outer).await.unwrap();
    let checked = backend.transaction_fence().check(&mut nested, &lease).await;
    assert!(matches!(checked, Err(FenceError::Store(LeaseError::Unsupported { .. }))), "{checked:?}");
    nested.rollback().await.unwrap();
    backend.transaction_fence().check(&mut outer, &lease).await.unwrap();
    outer.commit().await.unwrap();
}
