//! Version conditions in the caller's transaction, in forced interleavings of real sessions.
#![expect(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Advice, Effect, LeaseError, Namespace, Operation, ResourceName, Version, VersionError};
use lease_postgres::PostgresVersions;
use sqlx::{AssertSqlSafe, Connection as _, PgPool, Postgres, Transaction};
use std::time::Duration;
use support::{admin, name, number, shared, sql, until_blocked};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Versions in a namespace, and an account of 100 euros in it. Limits that a slow machine keeps.
async fn versions(pool: &PgPool, namespace: &str) -> PostgresVersions {
    let versions = PostgresVersions::new(&Namespace::parse(namespace).unwrap()).unwrap();
    let versions = versions.with_call_timeout(Duration::from_mins(1)).with_idle_limit(Duration::from_mins(10));
    versions.set_up(&mut pool.acquire().await.unwrap()).await.unwrap();
    let table =
        format!("CREATE TABLE {namespace}.account (euros bigint); INSERT INTO {namespace}.account VALUES (100)");
    sql(pool, &table).await;
    versions
}

async fn begin(pool: &PgPool, level: &str) -> Transaction<'static, Postgres> {
    pool.begin_with(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))).await.unwrap()
}

async fn put(transaction: &mut Transaction<'_, Postgres>, namespace: &str, euros: i64) -> Result<(), sqlx::Error> {
    let update = format!("UPDATE {namespace}.account SET euros = {euros}");
    sqlx::query(AssertSqlSafe(update)).execute(&mut **transaction).await.map(drop)
}

async fn euros(pool: &PgPool, namespace: &str) -> i64 {
    number(pool, &format!("SELECT euros FROM {namespace}.account")).await
}

async fn read(pool: &PgPool, versions: &PostgresVersions, resource: &ResourceName) -> Version {
    versions.read(&mut pool.acquire().await.unwrap(), resource).await.unwrap()
}

fn changed(answer: Result<Version, VersionError>) -> (Version, Version) {
    match answer {
        Err(VersionError::Changed { read, found, .. }) => (read, found),
        other => panic!("not refused: {other:?}"),
    }
}

/// A reads and is paused, B reads and writes, A goes on: its write depends on what is gone, and is not committed even if A ignores the refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_overtaken_is_refused_for_good() {
    let (server, ns, r) = (shared(), "version_stale", name("accounts/42"));
    let pool = admin(&server).await;
    let versions = versions(&pool, ns).await;
    for (round, level) in (0_u64..).zip(LEVELS) {
        let of_a = read(&pool, &versions, &r).await;
        assert_eq!(of_a, Version::new(round));
        let mut b = begin(&pool, level).await;
        let of_b = versions.read(&mut b, &r).await.unwrap();
        assert_eq!(versions.advance(&mut b, &r, of_b).await.unwrap(), Version::new(round + 1));
        put(&mut b, ns, 90).await.unwrap();
        b.commit().await.unwrap();

        for read in [of_a, Version::new(round + 2), Version::new(u64::MAX)] {
            let mut a = begin(&pool, level).await;
            put(&mut a, ns, 1).await.unwrap();
            assert_eq!(changed(versions.advance(&mut a, &r, read).await), (read, Version::new(round + 1)), "{level}");
            assert!(put(&mut a, ns, 2).await.is_err(), "{level}");
            a.commit().await.unwrap();
            assert_eq!(euros(&pool, ns).await, 90, "{level}");
        }
    }
}

/// Not fenced: the stale worker that comes first wins, and the other one has to read again.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_have_read_the_same_the_first_one_wins() {
    let (server, ns, r) = (shared(), "version_first", name("accounts/42"));
    let pool = admin(&server).await;
    let versions = versions(&pool, ns).await;
    let (of_a, of_b) = (read(&pool, &versions, &r).await, read(&pool, &versions, &r).await);
    let mut stale = pool.begin().await.unwrap();
    versions.advance(&mut stale, &r, of_a).await.unwrap();
    put(&mut stale, ns, 70).await.unwrap();
    stale.commit().await.unwrap();
    let mut b = pool.begin().await.unwrap();
    changed(versions.advance(&mut b, &r, of_b).await);
    b.rollback().await.unwrap();
    assert_eq!(euros(&pool, ns).await, 70);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_goes_with_its_transaction_and_is_by_resource() {
    let (server, ns) = (shared(), "version_together");
    let pool = admin(&server).await;
    let versions = versions(&pool, ns).await;
    for level in LEVELS {
        let mut transaction = begin(&pool, level).await;
        versions.advance(&mut transaction, &name("r"), Version::NEVER).await.unwrap();
        transaction.rollback().await.unwrap();
        assert_eq!(read(&pool, &versions, &name("r")).await, Version::NEVER);
    }
    let mut both = pool.begin().await.unwrap();
    versions.advance(&mut both, &name("r"), Version::NEVER).await.unwrap();
    versions.advance(&mut both, &name("r"), Version::new(1)).await.unwrap();
    versions.advance(&mut both, &name("R"), Version::NEVER).await.unwrap();
    both.commit().await.unwrap();
    assert_eq!(read(&pool, &versions, &name("r")).await, Version::new(2));
    assert_eq!(read(&pool, &versions, &name("R")).await, Version::new(1));
    assert_eq!(read(&pool, &versions, &name("r ")).await, Version::NEVER);

    let mut never = pool.begin().await.unwrap();
    let none = versions.advance(&mut never, &name("never"), Version::new(3)).await;
    assert_eq!(changed(none), (Version::new(3), Version::NEVER), "it can't begin in the middle");
    never.rollback().await.unwrap();
    let mut outer = pool.begin().await.unwrap();
    let mut nested = outer.begin().await.unwrap();
    match versions.advance(&mut nested, &name("r"), Version::new(2)).await {
        Err(VersionError::Store(LeaseError::Unsupported { operation: Operation::Version, .. })) => {}
        other => panic!("{other:?}"),
    }
}

/// B meets A's advance while A's transaction is open: it waits, and its answer depends on what becomes of A's.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_under_way_is_waited_for() {
    let (server, ns) = (shared(), "version_waits");
    let pool = admin(&server).await;
    let versions = versions(&pool, ns).await;
    // The first write of a resource makes its row, the second one changes it.
    let each = [(true, true), (false, true), (true, false), (false, false)];
    let rounds = LEVELS.iter().flat_map(|level| each.map(|(commits, first)| (*level, commits, first)));
    for (round, (level, commits, first)) in rounds.enumerate() {
        let r = name(&format!("r{round}"));
        let mut before = Version::NEVER;
        if !first {
            let mut earlier = pool.begin().await.unwrap();
            before = versions.advance(&mut earlier, &r, before).await.unwrap();
            earlier.commit().await.unwrap();
        }
        let mut a = begin(&pool, level).await;
        versions.advance(&mut a, &r, before).await.unwrap();
        let mut b = begin(&pool, level).await;
        // B's snapshot is from before A's commit.
        sqlx::query("SELECT 1").execute(&mut *b).await.unwrap();
        let (of_b, r_of_b) = (versions.clone(), r.clone());
        let task = tokio::spawn(async move {
            let answer = of_b.advance(&mut b, &r_of_b, before).await;
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
            Ok(_) => assert!(!commits, "{level} {first}"),
            Err(VersionError::Changed { found, .. }) => {
                assert!(commits && level == "READ COMMITTED", "{level} {first}");
                assert_eq!(found, Version::new(before.number() + 1));
            }
            Err(VersionError::Store(error)) => {
                assert!(commits && level != "READ COMMITTED", "{level} {first}: {error}");
                assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain), "{level}: {error}");
            }
            Err(other) => panic!("{other}"),
        }
        b.commit().await.unwrap();
        assert_eq!(read(&pool, &versions, &r).await, Version::new(before.number() + 1), "one of them: {level} {first}");
    }
}

/// Every worker adds to what it has read, in a transaction of its own.
async fn deposits(pool: PgPool, versions: PostgresVersions, ns: &'static str, times: u32) {
    let r = name("accounts/42");
    let mut left = times;
    while left > 0 {
        let before = read(&pool, &versions, &r).await;
        let present = euros(&pool, ns).await;
        tokio::task::yield_now().await;
        let mut transaction = pool.begin().await.unwrap();
        match versions.advance(&mut transaction, &r, before).await {
            Ok(_) => {
                put(&mut transaction, ns, present + 1).await.unwrap();
                transaction.commit().await.unwrap();
                left -= 1;
            }
            Err(VersionError::Changed { .. }) => transaction.rollback().await.unwrap(),
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_writers_that_race_no_update_is_lost() {
    let (server, ns) = (shared(), "version_racing");
    let pool = admin(&server).await;
    let versions = versions(&pool, ns).await;
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        racing.spawn(deposits(pool.clone(), versions.clone(), ns, 25));
    }
    racing.join_all().await;
    assert_eq!(euros(&pool, ns).await, 200);
    assert_eq!(read(&pool, &versions, &name("accounts/42")).await, Version::new(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_privileged_account() {
    let (server, ns, r) = (shared(), "version_least", name("r"));
    let pool = admin(&server).await;
    let versions = versions(&pool, ns).await;
    sql(&pool, "CREATE ROLE version_worker LOGIN PASSWORD 's3cret'").await;
    let rest = server.url().split_once('@').unwrap().1.to_owned();
    let worker = PgPool::connect(&format!("postgres://version_worker:s3cret@{rest}")).await.unwrap();
    let mut transaction = worker.begin().await.unwrap();
    let error = versions.advance(&mut transaction, &r, Version::NEVER).await.unwrap_err();
    assert!(error.to_string().contains("GRANT SELECT, INSERT, UPDATE ON version_least.version TO ACCOUNT"), "{error}");
    transaction.rollback().await.unwrap();
    for grant in lease_postgres::VERSION_GRANTS {
        sql(&pool, &grant.replace("leasehold", ns).replace("ACCOUNT", "version_worker")).await;
    }
    let mut transaction = worker.begin().await.unwrap();
    let one = versions.advance(&mut transaction, &r, Version::NEVER).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(read(&worker, &versions, &r).await, one);
    let mut transaction = worker.begin().await.unwrap();
    assert_eq!(changed(versions.advance(&mut transaction, &r, Version::NEVER).await), (Version::NEVER, one));
    transaction.rollback().await.unwrap();
    for forbidden in ["DELETE FROM version_least.version", "DROP TABLE version_least.version"] {
        assert!(sqlx::query(forbidden).execute(&worker).await.is_err(), "{forbidden}");
    }
}

/// A worker that is paused in its transaction does not hold up the next one for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_transaction_is_ended_by_the_server() {
    let (server, ns) = (shared(), "version_idle");
    let pool = admin(&server).await;
    let versions = versions(&pool, ns).await.with_idle_limit(Duration::from_millis(50));
    let mut a = pool.begin().await.unwrap();
    versions.advance(&mut a, &name("r"), Version::NEVER).await.unwrap();
    // A does nothing any more; B, which waits for its row, gets through.
    let mut b = pool.begin().await.unwrap();
    versions.advance(&mut b, &name("r"), Version::NEVER).await.unwrap();
    b.commit().await.unwrap();
    assert!(a.commit().await.is_err());
}
