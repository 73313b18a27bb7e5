//! The guarded destination, and transactions for the caller's own data that an ignored error can't commit.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

mod support;

use lease_core::{Claim, FencingToken, GuardError, GuardedDestination, Refusal};
use lease_sqlite::{GuardedTransaction, SqliteDestination};
use sqlx::Connection as _;
use support::*;

async fn destination(place: &Place) -> SqliteDestination {
    let destination = SqliteDestination::connect(&place.url()).await.unwrap();
    destination.adopt(None, &authority("a")).await.unwrap();
    destination
}

/// A destination with a table of the caller, in which `taken` is unique.
async fn with_table(place: &Place) -> SqliteDestination {
    let destination = destination(place).await;
    let mut plain = place.plain().await;
    let sql = "CREATE TABLE work (id INTEGER PRIMARY KEY, what TEXT UNIQUE); INSERT INTO work (what) VALUES ('taken')";
    sqlx::raw_sql(sql).execute(&mut plain).await.unwrap();
    destination
}

async fn begin(destination: &SqliteDestination, value: u64) -> GuardedTransaction {
    destination.guard().begin(&name("r"), &token(value, value)).await.unwrap()
}

async fn run(transaction: &mut GuardedTransaction, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(&mut **transaction).await.map(drop)
}

/// What the caller's table holds besides the row that was there, seen by somebody else.
async fn landed(place: &Place) -> Vec<String> {
    let mut plain = place.plain().await;
    sqlx::query_scalar("SELECT what FROM work WHERE what <> 'taken' ORDER BY id").fetch_all(&mut plain).await.unwrap()
}

async fn mark(destination: &SqliteDestination) -> Option<u64> {
    destination.read(&name("r")).await.unwrap().mark.map(|(value, _)| value)
}

fn refusal(answer: Result<(), GuardError>) -> Refusal {
    match answer {
        Err(GuardError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn admits_at_or_above_the_mark_and_remembers() {
    let place = Place::new();
    let destination = destination(&place).await;
    let r = name("r");
    destination.write(&r, &token(5, 1), "five").await.unwrap();
    destination.write(&r, &token(5, 1), "five again").await.unwrap();
    destination.write(&r, &token(7, 2), "seven").await.unwrap();
    assert_eq!(refusal(destination.write(&r, &token(6, 3), "stale").await), Refusal::Stale { presented: 6, mark: 7 });
    assert_eq!(refusal(destination.write(&r, &token(7, 3), "twin").await), Refusal::Conflict { value: 7 });
    assert_eq!(refusal(destination.seal(&r, &token(6, 3)).await), Refusal::Stale { presented: 6, mark: 7 });
    destination.seal(&r, &token(9, 4)).await.unwrap();
    assert_eq!(refusal(destination.write(&r, &token(7, 2), "late").await), Refusal::Stale { presented: 7, mark: 9 });
    let stored = destination.read(&r).await.unwrap();
    assert_eq!(stored.value.as_deref(), Some("seven"));
    assert_eq!(stored.mark, Some((9, token(9, 4).grant())));
    assert_eq!(destination.read(&name("other")).await.unwrap(), lease_core::Stored::default());
    drop(destination);
    let reopened = SqliteDestination::connect(&place.url()).await.unwrap();
    assert_eq!(mark(&reopened).await, Some(9));
}

#[tokio::test]
async fn values_compare_exactly_up_to_the_largest() {
    let place = Place::new();
    let destination = destination(&place).await;
    let max = FencingToken::MAX_VALUE;
    destination.write(&name("r"), &token(max - 1, 1), "last but one").await.unwrap();
    assert!(matches!(refusal(destination.seal(&name("r"), &token(max - 2, 2)).await), Refusal::Stale { .. }));
    destination.write(&name("r"), &token(max, 3), "last").await.unwrap();
    let stale = refusal(destination.write(&name("r"), &token(max - 1, 1), "stale").await);
    assert_eq!(stale, Refusal::Stale { presented: max - 1, mark: max });
    assert_eq!(mark(&destination).await, Some(max));
}

#[tokio::test]
async fn one_authority_is_trusted_and_adopting_is_compare_and_set() {
    let place = Place::new();
    let destination = SqliteDestination::connect(&place.url()).await.unwrap();
    let r = name("r");
    let (a, b) = (authority("a"), authority("b"));
    let of_b = FencingToken::new(b.clone(), 3, token(1, 9).grant()).unwrap();
    assert!(matches!(
        refusal(destination.write(&r, &token(1, 1), "x").await),
        Refusal::UnknownAuthority { trusted: None, .. }
    ));
    destination.adopt(None, &a).await.unwrap();
    assert!(
        matches!(destination.adopt(None, &b).await, Err(GuardError::AdoptConflict { found: Some(found) }) if found == a)
    );
    destination.write(&r, &token(10, 1), "of a").await.unwrap();
    assert!(matches!(refusal(destination.write(&r, &of_b, "x").await), Refusal::UnknownAuthority { .. }));
    destination.adopt(Some(&a), &b).await.unwrap();
    assert!(matches!(destination.adopt(Some(&a), &b).await, Err(GuardError::AdoptConflict { .. })));
    assert!(matches!(refusal(destination.write(&r, &token(11, 1), "x").await), Refusal::UnknownAuthority { .. }));
    destination.write(&r, &of_b, "of b").await.unwrap();
    assert_eq!(mark(&destination).await, Some(3), "marks begin anew");
    destination.adopt(Some(&b), &a).await.unwrap();
    assert_eq!(mark(&destination).await, Some(10), "an authority that comes back finds its marks");
    assert!(matches!(refusal(destination.write(&r, &token(9, 1), "stale").await), Refusal::Stale { .. }));
    assert_eq!(destination.read(&r).await.unwrap().value.as_deref(), Some("of b"));
}

#[tokio::test]
async fn mark_and_data_commit_and_roll_back_together() {
    let place = Place::new();
    let destination = with_table(&place).await;
    for claim in [Claim::MarkSurvivesRestart, Claim::RefusalUncommittable, Claim::MarkRollsBack] {
        assert!(destination.claims().has(claim));
    }
    let mut transaction = begin(&destination, 5).await;
    run(&mut transaction, "INSERT INTO work (what) VALUES ('five')").await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!((landed(&place).await, mark(&destination).await), (vec!["five".to_owned()], Some(5)));

    let mut transaction = begin(&destination, 6).await;
    run(&mut transaction, "INSERT INTO work (what) VALUES ('six')").await.unwrap();
    transaction.rollback().await;
    let mut transaction = begin(&destination, 7).await;
    run(&mut transaction, "INSERT INTO work (what) VALUES ('seven')").await.unwrap();
    drop(transaction);
    destination.seal(&name("other"), &token(1, 1)).await.unwrap();
    assert_eq!((landed(&place).await.len(), mark(&destination).await), (1, Some(5)));

    begin(&destination, 8).await.commit().await.unwrap();
    assert_eq!(mark(&destination).await, Some(8), "a seal");
}

#[tokio::test]
async fn a_refusal_leaves_no_transaction() {
    let place = Place::new();
    let destination = with_table(&place).await;
    begin(&destination, 5).await.commit().await.unwrap();
    for stale in [token(4, 4), token(5, 99), FencingToken::new(authority("b"), 9, token(1, 1).grant()).unwrap()] {
        let answer = destination.guard().begin(&name("r"), &stale).await;
        assert!(matches!(answer, Err(GuardError::Refused { .. })), "{answer:?}");
    }
    begin(&destination, 5).await.commit().await.unwrap();
    assert_eq!(mark(&destination).await, Some(5), "the lock was free again");
}

const INSERT: &str = "INSERT INTO work (what) VALUES ('stale')";

/// Each of these callers ignores an error and goes on. Whatever it does then, no row of it may be there at the end.
#[tokio::test]
async fn a_caller_that_ignores_errors_commits_nothing() {
    let place = Place::new();
    let destination = with_table(&place).await;
    for (what, steps) in [
        ("a conflict clause rolled back", vec!["INSERT OR ROLLBACK INTO work (what) VALUES ('taken')", INSERT]),
        ("rolled back as a statement", vec!["ROLLBACK", INSERT, "DELETE FROM work", INSERT]),
        ("committed as a statement", vec![INSERT, "COMMIT", INSERT]),
        ("END is a commit too", vec![INSERT, "END", INSERT]),
        ("foreign keys off", vec!["ROLLBACK; PRAGMA foreign_keys = OFF", INSERT]),
        ("a transaction of its own", vec!["ROLLBACK", "BEGIN", INSERT, "COMMIT"]),
        ("a transaction of its own, left open", vec!["ROLLBACK", "BEGIN IMMEDIATE", INSERT]),
        (
            "a trigger rolled back",
            vec![
                "CREATE TEMP TRIGGER t BEFORE INSERT ON work WHEN new.what = 'bad' BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
                "INSERT INTO work (what) VALUES ('bad')",
                INSERT,
            ],
        ),
    ] {
        let mut transaction = begin(&destination, 5).await;
        let mut failed = false;
        for step in steps {
            failed |= run(&mut transaction, step).await.is_err();
        }
        let committed = transaction.commit().await;
        assert!(committed.is_err(), "{what}");
        let error = committed.unwrap_err().to_string();
        assert!(error.contains("no effect"), "{what}: {error}");
        assert!(failed || what.contains("left open"), "{what}: the caller was told");
        assert_eq!(landed(&place).await, Vec::<String>::new(), "{what}");
        assert_eq!(mark(&destination).await, None, "{what}: mark and data go together");
    }
}

/// A newer worker seals between the rollback and the stale write: the case that the gate is there for.
#[tokio::test]
async fn nothing_lands_after_a_newer_worker_came_in_between() {
    let place = Place::new();
    let destination = with_table(&place).await;
    let mut stale = begin(&destination, 5).await;
    assert!(run(&mut stale, "INSERT OR ROLLBACK INTO work (what) VALUES ('taken')").await.is_err());
    let newer = SqliteDestination::connect(&place.url()).await.unwrap();
    let mut transaction = begin(&newer, 6).await;
    run(&mut transaction, "INSERT INTO work (what) VALUES ('new')").await.unwrap();
    transaction.commit().await.unwrap();
    assert!(run(&mut stale, "INSERT INTO work (what) VALUES ('stale')").await.is_err());
    assert!(stale.commit().await.is_err());
    assert_eq!((landed(&place).await, mark(&destination).await), (vec!["new".to_owned()], Some(6)));
}

#[tokio::test]
async fn savepoints_can_not_take_the_mark_back() {
    let place = Place::new();
    let destination = with_table(&place).await;
    let mut transaction = begin(&destination, 5).await;
    let mut nested = transaction.begin().await.unwrap();
    sqlx::query("INSERT INTO work (what) VALUES ('undone')").execute(&mut *nested).await.unwrap();
    nested.rollback().await.unwrap();
    let mut nested = transaction.begin().await.unwrap();
    sqlx::query("INSERT INTO work (what) VALUES ('kept')").execute(&mut *nested).await.unwrap();
    nested.commit().await.unwrap();
    run(&mut transaction, "SAVEPOINT s; INSERT INTO work (what) VALUES ('undone too'); ROLLBACK TO s").await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!((landed(&place).await, mark(&destination).await), (vec!["kept".to_owned()], Some(5)));
}

/// What dropped futures left in the connection's queue runs after all, but can't commit.
#[tokio::test(flavor = "multi_thread")]
async fn statements_of_dropped_futures_never_land_by_themselves() {
    use std::future::Future as _;
    let place = Place::new();
    let destination = with_table(&place).await;
    for _ in 0..20 {
        let mut transaction = begin(&destination, 5).await;
        for sql in [
            "ROLLBACK",
            "INSERT INTO work (what) VALUES ('stale')",
            "BEGIN; INSERT INTO work (what) VALUES ('b'); COMMIT",
        ] {
            let mut sent = Box::pin(run(&mut transaction, sql));
            // Polling once sends it, whether or not its answer is there already.
            let poll = |cx: &mut std::task::Context<'_>| std::task::Poll::Ready(sent.as_mut().poll(cx).map(drop));
            std::future::poll_fn(poll).await.is_ready();
        }
        drop(transaction);
        destination.seal(&name("other"), &token(1, 1)).await.unwrap();
        assert_eq!((landed(&place).await, mark(&destination).await), (vec![], None));
    }
}

#[tokio::test]
async fn a_damaged_mark_is_named_and_left_alone() {
    let place = Place::new();
    let destination = destination(&place).await;
    destination.seal(&name("r"), &token(5, 1)).await.unwrap();
    let mut plain = place.plain().await;
    sqlx::query("UPDATE leasehold_mark SET grant_id = 'x'").execute(&mut plain).await.unwrap();
    let error = destination.write(&name("r"), &token(5, 1), "x").await.unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_register").await, 0);
}

#[cfg(feature = "testing")]
#[tokio::test]
async fn an_edited_guard_lets_the_stale_write_land() {
    let place = Place::new();
    let edits = [("WHERE excluded.value > leasehold_mark.value", "WHERE true")];
    let saboteur = SqliteDestination::connect_edited(&place.url(), &edits).await.unwrap();
    saboteur.adopt(None, &authority("a")).await.unwrap();
    saboteur.write(&name("r"), &token(9, 9), "new").await.unwrap();
    saboteur.write(&name("r"), &token(3, 3), "stale").await.unwrap();
    assert_eq!(saboteur.read(&name("r")).await.unwrap().value.as_deref(), Some("stale"));
    assert!(SqliteDestination::connect_edited(&place.url(), &[("?9", "?9")]).await.is_err());
}
