//! The guarded destination, in forced interleavings of real sessions.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{
    Advice, Authority, Effect, FencingToken, GrantId, GuardError, GuardedDestination, LeaseError, Refusal, Stored,
};
use lease_postgres::PostgresDestination;
use lease_servers::Server;
use sqlx::{PgPool, Postgres, Transaction};
use std::time::Duration;
use support::{admin, name, number, own, shared, sql, until_blocked, url};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

fn authority(text: &str) -> Authority {
    Authority::parse(text).unwrap()
}

fn token(value: u64, grant: u64) -> FencingToken {
    FencingToken::new(authority("redis:1:0"), value, GrantId::from_hex(&format!("{grant:016x}")).unwrap()).unwrap()
}

async fn destination(server: &Server, namespace: &str) -> PostgresDestination {
    // A call limit that a slow machine keeps: no test is about how fast it is.
    let url = url(server, &format!("namespace={namespace}&call_timeout_ms=30000"));
    let destination = PostgresDestination::connect(&url).await.unwrap();
    destination.adopt(None, &authority("redis:1:0")).await.unwrap();
    destination
}

async fn begin(pool: &PgPool, level: &str) -> Transaction<'static, Postgres> {
    let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
    pool.begin_with(begin).await.unwrap()
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, GuardError>) -> Refusal {
    match answer {
        Err(GuardError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn admits_at_or_above_the_mark_and_says_why_not() {
    let server = shared();
    let destination = destination(&server, "marks").await;
    let r = name("r");
    assert_eq!(destination.read(&r).await.unwrap(), Stored::default());
    destination.write(&r, &token(5, 1), "five").await.unwrap();
    destination.write(&r, &token(5, 1), "five again").await.unwrap();
    assert_eq!(refusal(destination.write(&r, &token(4, 9), "late").await), Refusal::Stale { presented: 4, mark: 5 });
    assert_eq!(refusal(destination.seal(&r, &token(5, 2)).await), Refusal::Conflict { value: 5 });
    destination.seal(&r, &token(7, 2)).await.unwrap();
    assert_eq!(refusal(destination.write(&r, &token(5, 1), "stale").await), Refusal::Stale { presented: 5, mark: 7 });
    let stored = destination.read(&r).await.unwrap();
    assert_eq!((stored.value.as_deref(), stored.mark), (Some("five again"), Some((7, token(7, 2).grant()))));
    assert_eq!(destination.read(&name("other")).await.unwrap(), Stored::default(), "marks are by resource");
    // Numbers near the end of the range compare exactly.
    destination.seal(&r, &token(FencingToken::MAX_VALUE - 1, 3)).await.unwrap();
    destination.seal(&r, &token(FencingToken::MAX_VALUE, 4)).await.unwrap();
    let late = refusal(destination.seal(&r, &token(FencingToken::MAX_VALUE - 1, 3)).await);
    assert_eq!(late, Refusal::Stale { presented: FencingToken::MAX_VALUE - 1, mark: FencingToken::MAX_VALUE });
}

#[tokio::test(flavor = "multi_thread")]
async fn one_authority_is_trusted_and_adopt_is_compare_and_set() {
    let server = shared();
    let destination = destination(&server, "adoption").await;
    let (one, two) = (authority("redis:1:0"), authority("etcd:2:0"));
    let r = name("r");
    let other = FencingToken::new(two.clone(), 9, token(9, 9).grant()).unwrap();
    destination.write(&r, &token(5, 1), "one").await.unwrap();
    let unknown = refusal(destination.write(&r, &other, "two").await);
    assert_eq!(unknown, Refusal::UnknownAuthority { presented: two.clone(), trusted: Some(one.clone()) });
    for expected in [None, Some(&two)] {
        match destination.adopt(expected, &two).await {
            Err(GuardError::AdoptConflict { found }) => assert_eq!(found.as_ref(), Some(&one)),
            other => panic!("{other:?}"),
        }
    }
    destination.adopt(Some(&one), &two).await.unwrap();
    assert!(matches!(refusal(destination.seal(&r, &token(99, 1)).await), Refusal::UnknownAuthority { .. }));
    destination.write(&r, &other, "two").await.unwrap();
    // Adopted again, the old authority finds its old marks.
    destination.adopt(Some(&two), &one).await.unwrap();
    assert_eq!(refusal(destination.seal(&r, &token(4, 1)).await), Refusal::Stale { presented: 4, mark: 5 });

    let empty = PostgresDestination::connect(&url(&server, "namespace=adoption_none")).await.unwrap();
    let nobody = refusal(empty.write(&r, &token(1, 1), "x").await);
    assert_eq!(nobody, Refusal::UnknownAuthority { presented: one.clone(), trusted: None });
    assert!(matches!(empty.adopt(Some(&one), &two).await, Err(GuardError::AdoptConflict { found: None })));
    let (a, b) = tokio::join!(empty.adopt(None, &one), empty.adopt(None, &two));
    assert!(a.is_ok() != b.is_ok(), "the first one wins: {a:?} {b:?}");
}

/// A caller that ignores the refusal and commits: nothing is committed, whatever was written before and after.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_transaction_cannot_be_committed() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "ignored").await);
    sql(&pool, "CREATE TABLE ignored.data (writer text)").await;
    destination.seal(&name("r"), &token(10, 1)).await.unwrap();
    let foreign = FencingToken::new(authority("foreign"), 99, token(1, 1).grant()).unwrap();
    for level in LEVELS {
        for refused in [token(9, 2), token(10, 2), foreign.clone()] {
            let mut transaction = begin(&pool, level).await;
            sqlx::query("INSERT INTO ignored.data VALUES ('before')").execute(&mut *transaction).await.unwrap();
            refusal(destination.guard().admit(&mut transaction, &name("r"), &refused).await);
            let write = sqlx::query("INSERT INTO ignored.data VALUES ('after')").execute(&mut *transaction).await;
            assert!(write.is_err(), "{level} {refused}");
            // PostgreSQL answers ROLLBACK to this commit; the client does not take that for an error.
            transaction.commit().await.unwrap();
            assert_eq!(number(&pool, "SELECT count(*) FROM ignored.data").await, 0, "{level} {refused}");
        }
    }
}

/// Nor can a caller take a refusal back by rolling back to a savepoint: in a nested transaction there is no admission at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_nested_transaction_is_not_guarded() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "nested").await);
    let mut outer = pool.begin().await.unwrap();
    let mut nested = sqlx::Connection::begin(&mut *outer).await.unwrap();
    match destination.guard().admit(&mut nested, &name("r"), &token(7, 1)).await {
        Err(GuardError::Store(error @ LeaseError::Unsupported { .. })) => {
            assert!(error.to_string().contains("outermost"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    nested.rollback().await.unwrap();
    destination.guard().admit(&mut outer, &name("r"), &token(7, 1)).await.unwrap();
    outer.commit().await.unwrap();
}

/// A session whose commits may be lost by a crash commits its marks for good all the same, and only those.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_survives_a_crash_whatever_the_callers_session_risks() {
    let mut server = own(&[("wal_writer_delay", "10000")]);
    let destination = destination(&server, "crash_mark").await;
    let pool = admin(&server).await;
    sql(&pool, "ALTER ROLE postgres SET synchronous_commit = off").await;
    let risky = admin(&server).await;
    let setting = "SELECT current_setting('synchronous_commit')";
    let mut transaction = risky.begin().await.unwrap();
    destination.guard().admit(&mut transaction, &name("r"), &token(7, 1)).await.unwrap();
    let inside: String = sqlx::query_scalar(setting).fetch_one(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    server.kill();
    server.restart().unwrap();
    // The first call may meet the connection that died with the server.
    let answer = match destination.read(&name("r")).await {
        Err(GuardError::Store(LeaseError::Connection { .. })) => destination.read(&name("r")).await,
        answer => answer,
    };
    assert_eq!(answer.unwrap().mark, Some((7, token(7, 1).grant())));
    assert_eq!(inside, "on");

    for (session, inside) in [("remote_apply", "remote_apply"), ("local", "on"), ("off", "on")] {
        let mut connection = risky.acquire().await.unwrap();
        let set = format!("SET synchronous_commit = '{session}'");
        sqlx::query(sqlx::AssertSqlSafe(set)).execute(&mut *connection).await.unwrap();
        let mut transaction = sqlx::Connection::begin(&mut *connection).await.unwrap();
        destination.guard().admit(&mut transaction, &name("r"), &token(7, 1)).await.unwrap();
        let now: String = sqlx::query_scalar(setting).fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(now, inside);
        transaction.rollback().await.unwrap();
        let after: String = sqlx::query_scalar(setting).fetch_one(&mut *connection).await.unwrap();
        assert_eq!(after, session, "for the transaction only");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mark_and_mutation_are_committed_or_rolled_back_together() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "together").await);
    let r = name("r");
    destination.write(&r, &token(5, 1), "five").await.unwrap();
    for level in LEVELS {
        let mut transaction = begin(&pool, level).await;
        destination.guard().admit(&mut transaction, &r, &token(9, 2)).await.unwrap();
        transaction.rollback().await.unwrap();
        assert_eq!(destination.read(&r).await.unwrap().mark, Some((5, token(5, 1).grant())), "{level}");
    }
    let mut transaction = pool.begin().await.unwrap();
    destination.guard().admit(&mut transaction, &r, &token(9, 2)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(destination.read(&r).await.unwrap().mark, Some((9, token(9, 2).grant())));
}

/// The stale writer begins first and is overtaken: its snapshot shows the old mark, and it is stopped all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_writer_is_stopped_at_every_isolation_level() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "overtaken").await);
    sql(&pool, "CREATE TABLE overtaken.data (writer text)").await;
    for level in LEVELS {
        for first_insert in [true, false] {
            let r = name(&format!("{level} {first_insert}"));
            if !first_insert {
                destination.seal(&r, &token(1, 1)).await.unwrap();
            }
            let mut old = begin(&pool, level).await;
            sqlx::query("SELECT count(*) FROM overtaken.mark").execute(&mut *old).await.unwrap();
            let mut new = begin(&pool, level).await;
            destination.guard().admit(&mut new, &r, &token(7, 2)).await.unwrap();
            // The old writer waits for the new one's mark; the new one commits meanwhile.
            let guard = destination.guard();
            let waiting = tokio::spawn({
                let r = r.clone();
                async move {
                    let answer = guard.admit(&mut old, &r, &token(3, 1)).await;
                    let write = sqlx::query("INSERT INTO overtaken.data VALUES ('old')").execute(&mut *old).await;
                    assert!(write.is_err());
                    drop(old.commit().await);
                    answer
                }
            });
            until_blocked(&pool, "overtaken", 1, &waiting).await;
            new.commit().await.unwrap();
            match waiting.await.unwrap() {
                Err(GuardError::Refused { refusal, .. }) => {
                    assert_eq!(refusal, Refusal::Stale { presented: 3, mark: 7 }, "{level}");
                }
                Err(GuardError::Store(error)) => {
                    assert_ne!(level, "READ COMMITTED", "{error}");
                    assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain), "{error}");
                }
                other => panic!("{level}: the old writer passed: {other:?}"),
            }
            assert_eq!(destination.read(&r).await.unwrap().mark, Some((7, token(7, 2).grant())));
        }
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM overtaken.data").await, 0);
}

/// The stale writer has the row; the new one waits for its end and then goes above it.
#[tokio::test(flavor = "multi_thread")]
async fn the_new_writer_waits_for_an_old_one_inside_its_transaction() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "waits").await);
    let r = name("r");
    for commits in [true, false] {
        let mut old = pool.begin().await.unwrap();
        destination.guard().admit(&mut old, &r, &token(3, 1)).await.unwrap();
        let sealing = tokio::spawn({
            let (destination, r) = (destination.clone(), r.clone());
            async move { destination.seal(&r, &token(7, 2)).await }
        });
        until_blocked(&pool, "waits", 1, &sealing).await;
        assert!(!sealing.is_finished());
        if commits {
            old.commit().await.unwrap();
        } else {
            old.rollback().await.unwrap();
        }
        sealing.await.unwrap().unwrap();
        assert_eq!(refusal(destination.seal(&r, &token(3, 1)).await), Refusal::Stale { presented: 3, mark: 7 });
        sql(&pool, "DELETE FROM waits.mark").await;
    }
}

/// A writer that is inside its transaction holds up `adopt`, and a writer that comes while `adopt` is under way waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn adopt_and_admit_come_one_after_the_other() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "serial").await);
    let (one, two) = (authority("redis:1:0"), authority("etcd:2:0"));
    let r = name("r");
    let mut writer = pool.begin().await.unwrap();
    destination.guard().admit(&mut writer, &r, &token(3, 1)).await.unwrap();
    let adopting = tokio::spawn({
        let (destination, one, two) = (destination.clone(), one.clone(), two.clone());
        async move { destination.adopt(Some(&one), &two).await }
    });
    until_blocked(&pool, "serial", 1, &adopting).await;
    writer.commit().await.unwrap();
    adopting.await.unwrap().unwrap();
    assert!(matches!(refusal(destination.seal(&r, &token(4, 1)).await), Refusal::UnknownAuthority { .. }));

    let mut adopting = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM serial.trusted FOR UPDATE").execute(&mut *adopting).await.unwrap();
    sqlx::query("UPDATE serial.trusted SET authority = 'redis:1:0'").execute(&mut *adopting).await.unwrap();
    let sealing = tokio::spawn({
        let (destination, r) = (destination.clone(), r.clone());
        async move { destination.seal(&r, &FencingToken::new(two, 9, token(9, 9).grant()).unwrap()).await }
    });
    until_blocked(&pool, "serial", 1, &sealing).await;
    adopting.commit().await.unwrap();
    assert!(matches!(refusal(sealing.await.unwrap()), Refusal::UnknownAuthority { .. }));
}

/// Waiting for a row that a stuck transaction holds ends in time, definitely without an effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_writer_is_an_error_that_ends_in_time() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "stuck").await);
    let quick = url(&server, "namespace=stuck&call_timeout_ms=400");
    let quick = PostgresDestination::connect(&quick).await.unwrap();
    let mut old = pool.begin().await.unwrap();
    let guard = destination.guard().with_idle_limit(Duration::from_mins(1));
    guard.admit(&mut old, &name("r"), &token(3, 1)).await.unwrap();
    match quick.seal(&name("r"), &token(7, 2)).await {
        Err(GuardError::Store(error @ LeaseError::Store { .. })) => {
            assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain));
            assert!(error.to_string().contains("blocked in the database"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    old.rollback().await.unwrap();
    quick.seal(&name("r"), &token(7, 2)).await.unwrap();
}

/// Many writers with rising tokens, at each level: whatever was committed was admitted in rising order.
#[tokio::test(flavor = "multi_thread")]
async fn racing_writers_never_commit_below_the_mark() {
    let server = shared();
    let (pool, destination) = (admin(&server).await, destination(&server, "racing").await);
    sql(&pool, "CREATE TABLE racing.log (place bigserial, resource text, value bigint)").await;
    for level in LEVELS {
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..6_u64 {
            let (pool, guard, r) = (pool.clone(), destination.guard(), name(level));
            tasks.spawn(async move {
                for round in 0..25_u64 {
                    // Rising over all workers but for some that are always late.
                    let value = (round * 6 + worker * 11 % 7).max(1);
                    let mut transaction = begin(&pool, level).await;
                    if guard.admit(&mut transaction, &r, &token(value, value)).await.is_ok() {
                        sqlx::query("INSERT INTO racing.log (resource, value) VALUES ($1, $2)")
                            .bind(r.as_str())
                            .bind(i64::try_from(value).unwrap())
                            .execute(&mut *transaction)
                            .await
                            .unwrap();
                    }
                    drop(transaction.commit().await);
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        // A writer draws its place while it holds the mark's row, so places are in the order of admission.
        let back = format!(
            "SELECT count(*) FROM (SELECT value, lag(value) OVER (ORDER BY place) AS before FROM racing.log \
             WHERE resource = '{level}') w WHERE value < before"
        );
        assert_eq!(number(&pool, &back).await, 0, "{level}: a value went back");
        let landed = number(&pool, &format!("SELECT count(*) FROM racing.log WHERE resource = '{level}'")).await;
        assert!(landed > 5, "{level}: only {landed} writes landed");
    }
}
