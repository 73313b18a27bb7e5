//! The plain alternatives in the caller's own transaction: idempotency records and version conditions, with connections that race for the file.
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

mod support;

use lease_core::{
    Advice, Effect, GuardedDestination as _, IdempotencyKey, LeaseError, Namespace, Once, OnceError, Operation,
    Version, VersionError,
};
use lease_sqlite::{SqliteDestination, SqliteOnce, SqliteVersions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Connection as _, SqliteConnection};
use std::time::Duration;
use support::*;

const DAY: Duration = Duration::from_hours(24);
/// Longer than any machine is slow.
const PATIENCE: Duration = Duration::from_mins(10);

/// A connection of the caller's own, as an application has one.
async fn connect(place: &Place) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(place.path()).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(PATIENCE);
    SqliteConnection::connect_with(&options).await.unwrap()
}

/// A connection to a file with an account of 100 euros, and a table for effects.
async fn with_tables(place: &Place) -> SqliteConnection {
    let mut connection = connect(place).await;
    let sql =
        "CREATE TABLE account (euros INTEGER); INSERT INTO account VALUES (100); CREATE TABLE effect (worker TEXT)";
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection
}

async fn once(connection: &mut SqliteConnection, retention: Duration) -> SqliteOnce {
    let once = SqliteOnce::new(&Namespace::default(), retention).unwrap().with_call_timeout(PATIENCE);
    once.set_up(connection).await.unwrap();
    once
}

async fn versions(connection: &mut SqliteConnection) -> SqliteVersions {
    let versions = SqliteVersions::new(&Namespace::default()).unwrap().with_call_timeout(PATIENCE);
    versions.set_up(connection).await.unwrap();
    versions
}

fn key(operation: &str) -> IdempotencyKey {
    IdempotencyKey::new(&name("accounts/42"), operation).unwrap()
}

async fn effect(connection: &mut SqliteConnection, worker: &str) {
    sqlx::query("INSERT INTO effect VALUES (?1)").bind(worker.to_owned()).execute(connection).await.unwrap();
}

async fn effects(connection: &mut SqliteConnection) -> Vec<String> {
    sqlx::query_scalar("SELECT worker FROM effect ORDER BY worker").fetch_all(connection).await.unwrap()
}

async fn euros(connection: &mut SqliteConnection) -> i64 {
    number(connection, "SELECT euros FROM account").await
}

async fn put(connection: &mut SqliteConnection, euros: i64) {
    sqlx::query("UPDATE account SET euros = ?1").bind(euros).execute(connection).await.unwrap();
}

/// What a worker does: the record, and the effect if it is the first.
async fn work(connection: &mut SqliteConnection, once: &SqliteOnce, key: &IdempotencyKey, worker: &str) -> Once {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let answer = once.claim(&mut transaction, key, b"90 euros").await.unwrap();
    if answer == Once::First {
        effect(&mut transaction, worker).await;
    }
    transaction.commit().await.unwrap();
    answer
}

/// At most once per key, and not fenced: whoever comes first wins, the stale worker too.
#[tokio::test]
async fn the_first_one_wins_whoever_it_is() {
    let place = Place::new();
    let (mut a, mut b) = (with_tables(&place).await, connect(&place).await);
    let once = once(&mut a, DAY).await;
    assert_eq!(work(&mut a, &once, &key("a-first"), "stale A").await, Once::First);
    assert_eq!(work(&mut b, &once, &key("a-first"), "B").await, Once::Before);
    assert_eq!(work(&mut b, &once, &key("b-first"), "B").await, Once::First);
    assert_eq!(work(&mut a, &once, &key("b-first"), "stale A").await, Once::Before);
    assert_eq!(effects(&mut a).await, ["B", "stale A"], "one for each key, each of the first");
    // The control: with a token in the key, each one makes the effect.
    for token in ["charge/41", "charge/42"] {
        assert_eq!(work(&mut a, &once, &key(token), "somebody").await, Once::First);
    }
}

#[tokio::test]
async fn another_payload_is_a_conflict() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let once = once(&mut connection, DAY).await;
    assert_eq!(work(&mut connection, &once, &key("charge"), "A").await, Once::First);
    for payload in [&b"91 euros"[..], b"", b"90 euros\0", b"90 Euros", &[0xff]] {
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
        effect(&mut transaction, "before").await;
        match once.claim(&mut transaction, &key("charge"), payload).await {
            Err(OnceError::Conflict { key: of }) => assert_eq!(of, key("charge")),
            other => panic!("{other:?}"),
        }
        // As `?` does.
        drop(transaction);
    }
    assert_eq!(effects(&mut connection).await, ["A"]);
    assert_eq!(work(&mut connection, &once, &key("charge"), "B").await, Once::Before);
}

#[tokio::test]
async fn records_and_versions_go_with_their_transaction() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let (once, versions) = (once(&mut connection, DAY).await, versions(&mut connection).await);
    let mut transaction = connection.begin().await.unwrap();
    assert_eq!(once.claim(&mut transaction, &key("x"), b"").await.unwrap(), Once::First);
    assert_eq!(once.claim(&mut transaction, &key("x"), b"").await.unwrap(), Once::Before);
    let first = versions.advance(&mut transaction, &name("r"), Version::NEVER).await.unwrap();
    assert_eq!(versions.advance(&mut transaction, &name("r"), first).await.unwrap(), Version::new(2));
    transaction.rollback().await.unwrap();
    let counts = "SELECT (SELECT count(*) FROM leasehold_once) + (SELECT count(*) FROM leasehold_version)";
    assert_eq!(number(&mut connection, counts).await, 0);
    let mut transaction = connection.begin().await.unwrap();
    versions.advance(&mut transaction, &name("r"), Version::NEVER).await.unwrap();
    versions.advance(&mut transaction, &name("R"), Version::NEVER).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(versions.read(&mut connection, &name("r ")).await.unwrap(), Version::NEVER, "by resource");
    assert_eq!(versions.read(&mut connection, &name("R")).await.unwrap(), Version::new(1));
}

#[tokio::test]
async fn neither_autocommit_nor_a_savepoint_is_a_place_for_them() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let (once, versions) = (once(&mut connection, DAY).await, versions(&mut connection).await);
    let refused = |once: Result<Once, OnceError>, version: Result<Version, VersionError>, why: &str| {
        let Err(OnceError::Store(LeaseError::Unsupported { operation: Operation::Once, reason, .. })) = once else {
            panic!("{once:?}");
        };
        assert!(reason.contains(why), "{reason}");
        let Err(VersionError::Store(LeaseError::Unsupported { operation: Operation::Version, .. })) = version else {
            panic!("{version:?}");
        };
    };
    let claim = once.claim(&mut connection, &key("x"), b"").await;
    let advance = versions.advance(&mut connection, &name("r"), Version::NEVER).await;
    refused(claim, advance, "committed by itself");
    let mut outer = connection.begin().await.unwrap();
    let mut nested = outer.begin().await.unwrap();
    let claim = once.claim(&mut nested, &key("x"), b"").await;
    let advance = versions.advance(&mut nested, &name("r"), Version::NEVER).await;
    refused(claim, advance, "savepoint");
    nested.commit().await.unwrap();
    assert_eq!(once.claim(&mut outer, &key("x"), b"").await.unwrap(), Once::First);
}

/// Both in a transaction that the guard has opened: fenced and at most once.
#[tokio::test]
async fn they_go_together_with_the_guard() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let (once, versions) = (once(&mut connection, DAY).await, versions(&mut connection).await);
    let destination = SqliteDestination::connect(&place.url()).await.unwrap();
    destination.adopt(None, &authority("a")).await.unwrap();
    for (value, answer) in [(1, Once::First), (2, Once::Before)] {
        let mut guarded = destination.guard().begin(&name("r"), &token(value, value)).await.unwrap();
        assert_eq!(once.claim(&mut guarded, &key("x"), b"").await.unwrap(), answer);
        versions.advance(&mut guarded, &name("r"), Version::new(value - 1)).await.unwrap();
        guarded.commit().await.unwrap();
    }
    assert_eq!(versions.read(&mut connection, &name("r")).await.unwrap(), Version::new(2));
}

/// A transaction that has read before somebody else wrote can't write any more: nobody's record is missed.
#[tokio::test]
async fn an_older_snapshot_has_to_be_run_again() {
    let place = Place::new();
    let (mut a, mut b) = (with_tables(&place).await, connect(&place).await);
    let (once, versions) = (once(&mut a, DAY).await, versions(&mut a).await);
    let mut late = b.begin().await.unwrap();
    assert_eq!(versions.read(&mut late, &name("r")).await.unwrap(), Version::NEVER);
    let mut first = a.begin().await.unwrap();
    assert_eq!(once.claim(&mut first, &key("x"), b"").await.unwrap(), Once::First);
    versions.advance(&mut first, &name("r"), Version::NEVER).await.unwrap();
    first.commit().await.unwrap();
    let claim = once.claim(&mut late, &key("x"), b"").await;
    let advance = versions.advance(&mut late, &name("r"), Version::NEVER).await;
    let (Err(OnceError::Store(claim)), Err(VersionError::Store(advance))) = (claim, advance) else {
        panic!("an old snapshot wrote");
    };
    for error in [claim, advance] {
        assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain), "{error}");
        assert!(error.to_string().contains("BEGIN IMMEDIATE"), "{error}");
    }
    late.rollback().await.unwrap();
    let mut again = b.begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!(once.claim(&mut again, &key("x"), b"").await.unwrap(), Once::Before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_workers_that_race_one_makes_the_effect() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let once = once(&mut connection, DAY).await;
    let mut racing = tokio::task::JoinSet::new();
    for worker in 0..5 {
        let (mut own, once) = (connect(&place).await, once.clone());
        racing.spawn(async move {
            let mut firsts = 0;
            for round in 0..20 {
                let answer = work(&mut own, &once, &key(&format!("round-{round}")), &format!("worker {worker}")).await;
                firsts += u32::from(answer == Once::First);
            }
            firsts
        });
    }
    assert_eq!(racing.join_all().await.iter().sum::<u32>(), 20);
    assert_eq!(effects(&mut connection).await.len(), 20);
}

/// A reads and is paused, B reads and writes, A goes on: its write depends on what is gone.
#[tokio::test]
async fn a_worker_that_was_overtaken_is_refused() {
    let place = Place::new();
    let (mut a, mut b) = (with_tables(&place).await, connect(&place).await);
    let (versions, r) = (versions(&mut a).await, name("accounts/42"));
    let (of_a, of_b) = (versions.read(&mut a, &r).await.unwrap(), versions.read(&mut b, &r).await.unwrap());
    let mut fresh = b.begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!(versions.advance(&mut fresh, &r, of_b).await.unwrap(), Version::new(1));
    put(&mut fresh, 90).await;
    fresh.commit().await.unwrap();
    for read in [of_a, Version::new(2), Version::new(u64::MAX)] {
        let mut stale = a.begin_with("BEGIN IMMEDIATE").await.unwrap();
        put(&mut stale, 1).await;
        match versions.advance(&mut stale, &r, read).await {
            Err(VersionError::Changed { read: was, found, .. }) => assert_eq!((was, found), (read, Version::new(1))),
            other => panic!("{other:?}"),
        }
        drop(stale);
        assert_eq!(euros(&mut a).await, 90);
    }
    let mut never = a.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let none = versions.advance(&mut never, &name("never"), Version::new(3)).await;
    assert!(matches!(none, Err(VersionError::Changed { found: Version::NEVER, .. })), "{none:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_writers_that_race_no_update_is_lost() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let versions = versions(&mut connection).await;
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (mut own, versions) = (connect(&place).await, versions.clone());
        racing.spawn(async move {
            let (r, mut left) = (name("accounts/42"), 15);
            while left > 0 {
                let before = versions.read(&mut own, &r).await.unwrap();
                let present = euros(&mut own).await;
                tokio::task::yield_now().await;
                let mut transaction = own.begin_with("BEGIN IMMEDIATE").await.unwrap();
                match versions.advance(&mut transaction, &r, before).await {
                    Ok(_) => {
                        put(&mut transaction, present + 1).await;
                        transaction.commit().await.unwrap();
                        left -= 1;
                    }
                    Err(VersionError::Changed { .. }) => transaction.rollback().await.unwrap(),
                    Err(other) => panic!("{other}"),
                }
            }
        });
    }
    racing.join_all().await;
    assert_eq!(euros(&mut connection).await, 160);
    assert_eq!(versions.read(&mut connection, &name("accounts/42")).await.unwrap(), Version::new(60));
}

#[tokio::test]
async fn records_are_kept_for_their_retention_and_until_they_are_forgotten() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let (long, short) = (once(&mut connection, DAY).await, once(&mut connection, Duration::ZERO).await);
    // The longest that a caller can ask for is no error.
    let ever = once(&mut connection, Duration::MAX).await;
    assert_eq!(work(&mut connection, &ever, &key("ever"), "A").await, Once::First);
    assert_eq!(work(&mut connection, &long, &key("long"), "A").await, Once::First);
    for operation in ["short-1", "short-2", "short-3"] {
        assert_eq!(work(&mut connection, &short, &key(operation), "A").await, Once::First);
        assert_eq!(
            work(&mut connection, &short, &key(operation), "B").await,
            Once::Before,
            "kept until it is forgotten"
        );
    }
    // Whoever forgets: what counts is the retention that a record was made with.
    assert_eq!(long.forget(&mut connection, 2).await.unwrap(), 2);
    assert_eq!(short.forget(&mut connection, 10).await.unwrap(), 1);
    assert_eq!(short.forget(&mut connection, 10).await.unwrap(), 0);
    let again = work(&mut connection, &long, &key("short-1"), "B").await;
    assert_eq!(again, Once::First, "a second effect, after the retention");
    assert_eq!(work(&mut connection, &long, &key("long"), "B").await, Once::Before);
    assert_eq!(work(&mut connection, &long, &key("ever"), "B").await, Once::Before);
    let kept = "SELECT count(*) FROM leasehold_once WHERE keep_until_ms - recorded_ms IN (86400000, 3155760000000)";
    assert_eq!(number(&mut connection, kept).await, 3, "declared with each record");
}

#[tokio::test]
async fn what_is_missing_or_has_another_shape_is_named() {
    let place = Place::new();
    let mut connection = with_tables(&place).await;
    let once = SqliteOnce::new(&Namespace::default(), DAY).unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let error = once.claim(&mut transaction, &key("x"), b"").await.unwrap_err();
    assert!(matches!(&error, OnceError::Store(LeaseError::NotSetUp { .. })), "{error}");
    assert!(error.to_string().contains("call `set_up`"), "{error}");
    transaction.rollback().await.unwrap();

    // Without its key it would let each effect in.
    let loose = "CREATE TABLE leasehold_once (key TEXT, payload BLOB, recorded_ms INTEGER, keep_until_ms INTEGER)";
    sqlx::raw_sql(loose).execute(&mut connection).await.unwrap();
    let error = once.set_up(&mut connection).await.unwrap_err();
    assert!(error.to_string().contains("another shape"), "{error}");
    assert!(SqliteOnce::new(&Namespace::parse("sqlite_mine").unwrap(), DAY).is_err());
    assert!(SqliteVersions::new(&Namespace::parse("sqlite").unwrap()).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_may_set_up_at_once() {
    let place = Place::new();
    drop(connect(&place).await);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let mut own = connect(&place).await;
        tasks.spawn(async move {
            once(&mut own, DAY).await;
            versions(&mut own).await;
        });
    }
    tasks.join_all().await;
}
