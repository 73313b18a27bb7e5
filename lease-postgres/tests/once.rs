//! Idempotency records in the caller's transaction, in forced interleavings of real sessions.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Advice, Effect, IdempotencyKey, LeaseError, Namespace, Once, OnceError, Operation};
use lease_postgres::PostgresOnce;
use sqlx::{AssertSqlSafe, Connection as _, PgPool, Postgres, Transaction};
use std::time::Duration;
use support::{admin, name, number, shared, sql, until_blocked};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
const DAY: Duration = Duration::from_hours(24);

fn key(operation: &str) -> IdempotencyKey {
    IdempotencyKey::new(&name("accounts/42"), operation).unwrap()
}

/// Records in a namespace, and a table for the effects in it. Limits that a slow machine keeps: no test is about how fast it is.
async fn once(pool: &PgPool, namespace: &str, retention: Duration) -> PostgresOnce {
    let once = PostgresOnce::new(&Namespace::parse(namespace).unwrap(), retention).unwrap();
    let once = once.with_call_timeout(Duration::from_mins(1)).with_idle_limit(Duration::from_mins(10));
    once.set_up(&mut pool.acquire().await.unwrap()).await.unwrap();
    sql(pool, &format!("CREATE TABLE IF NOT EXISTS {namespace}.effect (worker text)")).await;
    once
}

async fn begin(pool: &PgPool, level: &str) -> Transaction<'static, Postgres> {
    pool.begin_with(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))).await.unwrap()
}

async fn effect(transaction: &mut Transaction<'_, Postgres>, namespace: &str, worker: &str) -> Result<(), sqlx::Error> {
    let insert = format!("INSERT INTO {namespace}.effect VALUES ('{worker}')");
    sqlx::query(AssertSqlSafe(insert)).execute(&mut **transaction).await.map(drop)
}

/// What a worker does: the record, and the effect if it is the first.
async fn work(pool: &PgPool, once: &PostgresOnce, namespace: &str, key: &IdempotencyKey, worker: &str) -> Once {
    let mut transaction = pool.begin().await.unwrap();
    let answer = once.claim(&mut transaction, key, b"90 euros").await.unwrap();
    if answer == Once::First {
        effect(&mut transaction, namespace, worker).await.unwrap();
    }
    transaction.commit().await.unwrap();
    answer
}

async fn effects(pool: &PgPool, namespace: &str) -> Vec<String> {
    let select = format!("SELECT worker FROM {namespace}.effect ORDER BY worker");
    sqlx::query_scalar(AssertSqlSafe(select)).fetch_all(pool).await.unwrap()
}

/// At most once per key, and not fenced: whoever comes first wins, the stale worker too.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_one_wins_whoever_it_is() {
    let (server, ns) = (shared(), "once_first");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await;
    for (operation, first, second) in [("a-first", "stale A", "B"), ("b-first", "B", "stale A")] {
        assert_eq!(work(&pool, &once, ns, &key(operation), first).await, Once::First);
        assert_eq!(work(&pool, &once, ns, &key(operation), second).await, Once::Before);
        assert_eq!(work(&pool, &once, ns, &key(operation), first).await, Once::Before);
    }
    assert_eq!(effects(&pool, ns).await, ["B", "stale A"], "one for each key, each of the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_payload_is_a_conflict_that_cannot_be_committed() {
    let (server, ns) = (shared(), "once_conflict");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await;
    assert_eq!(work(&pool, &once, ns, &key("charge"), "A").await, Once::First);
    for level in LEVELS {
        for payload in [&b"91 euros"[..], b"", b"90 euros\0", b"90 Euros", &[0xff]] {
            let mut transaction = begin(&pool, level).await;
            effect(&mut transaction, ns, "before").await.unwrap();
            match once.claim(&mut transaction, &key("charge"), payload).await {
                Err(OnceError::Conflict { key: of }) => assert_eq!(of, key("charge")),
                other => panic!("{level}: {other:?}"),
            }
            // A caller that ignores it.
            assert!(effect(&mut transaction, ns, "after").await.is_err(), "{level}");
            transaction.commit().await.unwrap();
        }
        let mut same = begin(&pool, level).await;
        assert_eq!(once.claim(&mut same, &key("charge"), b"90 euros").await.unwrap(), Once::Before, "{level}");
        same.commit().await.unwrap();
    }
    assert_eq!(effects(&pool, ns).await, ["A"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_goes_with_its_transaction() {
    let (server, ns) = (shared(), "once_together");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await;
    for level in LEVELS {
        let mut transaction = begin(&pool, level).await;
        assert_eq!(once.claim(&mut transaction, &key(&level.replace(' ', "-")), b"").await.unwrap(), Once::First);
        assert_eq!(once.claim(&mut transaction, &key(&level.replace(' ', "-")), b"").await.unwrap(), Once::Before);
        effect(&mut transaction, ns, level).await.unwrap();
        transaction.rollback().await.unwrap();
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM once_together.once").await, 0);

    let mut outer = pool.begin().await.unwrap();
    let mut nested = outer.begin().await.unwrap();
    match once.claim(&mut nested, &key("nested"), b"").await {
        Err(OnceError::Store(LeaseError::Unsupported { operation: Operation::Once, .. })) => {}
        other => panic!("{other:?}"),
    }
}

/// B meets A's record while A's transaction is open: it waits, and its answer depends on what becomes of A's.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_under_way_is_waited_for() {
    let (server, ns) = (shared(), "once_waits");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await;
    for (number, (level, commits)) in LEVELS.iter().flat_map(|level| [(level, true), (level, false)]).enumerate() {
        let key = key(&format!("round-{number}"));
        let mut a = begin(&pool, level).await;
        assert_eq!(once.claim(&mut a, &key, b"90 euros").await.unwrap(), Once::First);
        effect(&mut a, ns, "A").await.unwrap();
        let mut b = begin(&pool, level).await;
        // B's snapshot is from before A's commit.
        sqlx::query("SELECT 1").execute(&mut *b).await.unwrap();
        let (of_b, key_of_b) = (once.clone(), key.clone());
        let task = tokio::spawn(async move {
            let answer = of_b.claim(&mut b, &key_of_b, b"90 euros").await;
            (answer, b)
        });
        until_blocked(&pool, ns, 1, &task).await;
        if commits {
            a.commit().await.unwrap();
        } else {
            a.rollback().await.unwrap();
        }
        let (answer, b) = task.await.unwrap();
        match answer {
            Ok(Once::First) => assert!(!commits, "{level}"),
            Ok(Once::Before) => assert!(commits && *level == "READ COMMITTED", "{level}"),
            // Its snapshot can't see the record that it may not repeat.
            Err(OnceError::Store(error)) => {
                assert!(commits && *level != "READ COMMITTED", "{level}: {error}");
                assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain), "{level}: {error}");
            }
            other => panic!("{level}: {other:?}"),
        }
        b.rollback().await.unwrap();
        let again = work(&pool, &once, ns, &key, "B").await;
        assert_eq!(again, if commits { Once::Before } else { Once::First }, "{level}");
    }
    assert_eq!(effects(&pool, ns).await, ["A", "A", "A", "B", "B", "B"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_workers_that_race_one_makes_the_effect() {
    let (server, ns) = (shared(), "once_racing");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await;
    for round in 0..20 {
        let mut racing = tokio::task::JoinSet::new();
        for worker in 0..6 {
            let (pool, once, key) = (pool.clone(), once.clone(), key(&format!("round-{round}")));
            racing.spawn(async move { work(&pool, &once, ns, &key, &format!("worker {worker}")).await });
        }
        let answers = racing.join_all().await;
        assert_eq!(answers.iter().filter(|answer| **answer == Once::First).count(), 1, "{answers:?}");
    }
    assert_eq!(effects(&pool, ns).await.len(), 20);
}

/// The control: with a key that has something of the worker in it, such as its token, each one makes the effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_a_token_in_it_recognises_nothing() {
    let (server, ns) = (shared(), "once_wrong_key");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await;
    for token in [41, 42] {
        let wrong = key(&format!("charge/{token}"));
        assert_eq!(work(&pool, &once, ns, &wrong, "somebody").await, Once::First);
    }
    assert_eq!(effects(&pool, ns).await.len(), 2, "made twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_kept_for_their_retention_and_until_they_are_forgotten() {
    let (server, ns) = (shared(), "once_kept");
    let pool = admin(&server).await;
    let (long, short) = (once(&pool, ns, DAY).await, once(&pool, ns, Duration::ZERO).await);
    // The longest that a caller can ask for is no error.
    let ever = once(&pool, ns, Duration::MAX).await;
    assert_eq!(work(&pool, &ever, ns, &key("ever"), "A").await, Once::First);
    assert_eq!(work(&pool, &long, ns, &key("long"), "A").await, Once::First);
    for operation in ["short-1", "short-2", "short-3"] {
        assert_eq!(work(&pool, &short, ns, &key(operation), "A").await, Once::First);
        assert_eq!(work(&pool, &short, ns, &key(operation), "B").await, Once::Before, "kept until it is forgotten");
    }
    let mut connection = pool.acquire().await.unwrap();
    // Whoever forgets: what counts is the retention that a record was made with.
    assert_eq!(long.forget(&mut connection, 2).await.unwrap(), 2);
    assert_eq!(short.forget(&mut connection, 10).await.unwrap(), 1);
    assert_eq!(short.forget(&mut connection, 10).await.unwrap(), 0);
    assert_eq!(work(&pool, &long, ns, &key("short-1"), "B").await, Once::First, "a second effect, after the retention");
    assert_eq!(work(&pool, &long, ns, &key("long"), "B").await, Once::Before);
    assert_eq!(work(&pool, &long, ns, &key("ever"), "B").await, Once::Before);
    let kept = "SELECT count(*) FROM once_kept.once WHERE keep_until - recorded_at IN ('24 h', '36525 days')";
    assert_eq!(number(&pool, kept).await, 3, "declared with each record");
}

/// An effect outside of the database comes after the commit of its record, which therefore has to survive a crash.
#[tokio::test(flavor = "multi_thread")]
async fn the_commit_waits_for_the_disk_whatever_the_session_risks() {
    let (server, ns) = (shared(), "once_durable");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await;
    let mut session = pool.acquire().await.unwrap();
    for (risked, inside) in [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")] {
        sqlx::query(AssertSqlSafe(format!("SET synchronous_commit = '{risked}'")))
            .execute(&mut *session)
            .await
            .unwrap();
        let mut transaction = session.begin().await.unwrap();
        assert_eq!(once.claim(&mut transaction, &key(risked), b"").await.unwrap(), Once::First);
        let setting = "SELECT current_setting('synchronous_commit')";
        let now: String = sqlx::query_scalar(setting).fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(now, inside);
        transaction.rollback().await.unwrap();
        let after: String = sqlx::query_scalar(setting).fetch_one(&mut *session).await.unwrap();
        assert_eq!(after, risked, "for the transaction only");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_privileged_account() {
    let (server, ns) = (shared(), "once_least");
    let pool = admin(&server).await;
    let once = once(&pool, ns, Duration::ZERO).await;
    sql(&pool, "CREATE ROLE once_worker LOGIN PASSWORD 's3cret'; GRANT INSERT ON once_least.effect TO once_worker")
        .await;
    let rest = server.url().split_once('@').unwrap().1.to_owned();
    let worker = PgPool::connect(&format!("postgres://once_worker:s3cret@{rest}")).await.unwrap();
    let mut transaction = worker.begin().await.unwrap();
    let error = once.claim(&mut transaction, &key("x"), b"").await.unwrap_err();
    assert!(error.to_string().contains("GRANT SELECT, INSERT, DELETE ON once_least.once TO ACCOUNT"), "{error}");
    transaction.rollback().await.unwrap();
    for grant in lease_postgres::ONCE_GRANTS {
        sql(&pool, &grant.replace("leasehold", ns).replace("ACCOUNT", "once_worker")).await;
    }
    assert_eq!(work(&worker, &once, ns, &key("x"), "A").await, Once::First);
    assert_eq!(work(&worker, &once, ns, &key("x"), "B").await, Once::Before);
    assert_eq!(once.forget(&mut worker.acquire().await.unwrap(), 10).await.unwrap(), 1);
    for forbidden in
        ["UPDATE once_least.once SET payload = ''", "DROP TABLE once_least.once", "TRUNCATE once_least.once"]
    {
        assert!(sqlx::query(forbidden).execute(&worker).await.is_err(), "{forbidden}");
    }

    let elsewhere = PostgresOnce::new(&Namespace::parse("once_nowhere").unwrap(), DAY).unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let error = elsewhere.claim(&mut transaction, &key("x"), b"").await.unwrap_err();
    assert!(error.to_string().contains("call `set_up`, or run `migration`"), "{error}");
    transaction.rollback().await.unwrap();
    sql(&pool, &elsewhere.migration()).await;
    sql(&pool, &elsewhere.migration()).await;
    elsewhere.set_up(&mut pool.acquire().await.unwrap()).await.unwrap();
    assert!(PostgresOnce::new(&Namespace::parse("pg_mine").unwrap(), DAY).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_may_set_up_at_once() {
    let server = shared();
    let pool = admin(&server).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let pool = pool.clone();
        tasks.spawn(async move {
            let once = PostgresOnce::new(&Namespace::parse("once_crowd").unwrap(), DAY).unwrap();
            once.set_up(&mut pool.acquire().await.unwrap()).await
        });
    }
    for done in tasks.join_all().await {
        done.unwrap();
    }
}

/// A worker that is paused in its transaction does not hold up the next one for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_transaction_is_ended_by_the_server() {
    let (server, ns) = (shared(), "once_idle");
    let pool = admin(&server).await;
    let once = once(&pool, ns, DAY).await.with_idle_limit(Duration::from_millis(50));
    let mut a = pool.begin().await.unwrap();
    assert_eq!(once.claim(&mut a, &key("x"), b"90 euros").await.unwrap(), Once::First);
    // A does nothing any more; B, which waits for its row, gets through.
    assert_eq!(work(&pool, &once, ns, &key("x"), "B").await, Once::First);
    assert!(a.commit().await.is_err());
    assert_eq!(effects(&pool, ns).await, ["B"]);
}
