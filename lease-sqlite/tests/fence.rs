//! The native fence: the register, and transactions for the holder's own data.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

mod support;

use lease_core::{Fence, FenceError, FencedRegister, Lease, LeaseBackend as _, ManualClock, Release, Renewal};
use lease_sqlite::{FencedTransaction, SqliteBackend};
use std::time::Duration;
use support::*;

const SECOND: Duration = Duration::from_secs(1);

async fn write(backend: &SqliteBackend, lease: &Lease, value: &str) -> bool {
    let Fence::LiveOwner(register) = backend.fence() else { panic!("it claims a live-owner fence") };
    match register.write(lease, value).await {
        Ok(()) => true,
        Err(FenceError::Refused { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn the_register_takes_writes_of_the_live_owner_only() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    assert_eq!(FencedRegister::read(&backend, &name("r")).await.unwrap(), None);
    let old = acquire(&backend, "r").await;
    assert!(write(&backend, &old, "old").await);
    assert!(write(&backend, &old, "old again").await);
    clock.advance(TEN);
    assert!(!write(&backend, &old, "expired").await, "also when nobody took it since");
    let new = acquire(&backend, "r").await;
    assert!(!write(&backend, &old, "stale").await);
    assert_eq!(FencedRegister::read(&backend, &name("r")).await.unwrap().as_deref(), Some("old again"));
    assert!(write(&backend, &new, "new").await);
    assert!(matches!(backend.release(&new).await, Ok(Release::Released)));
    assert!(!write(&backend, &new, "released").await);
    assert_eq!(FencedRegister::read(&backend, &name("r")).await.unwrap().as_deref(), Some("new"));
}

async fn with_table(place: &Place) {
    let mut plain = place.plain().await;
    sqlx::raw_sql("CREATE TABLE work (what TEXT)").execute(&mut plain).await.unwrap();
}

async fn insert(transaction: &mut FencedTransaction) {
    sqlx::query("INSERT INTO work VALUES ('done')").execute(&mut **transaction).await.unwrap();
}

async fn landed(place: &Place) -> i64 {
    number(&mut place.plain().await, "SELECT count(*) FROM work").await
}

#[tokio::test]
async fn a_transaction_of_the_live_owner_commits_its_own_data() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    with_table(&place).await;
    let lease = acquire(&backend, "r").await;
    let mut transaction = backend.begin_fenced(&lease).await.unwrap();
    insert(&mut transaction).await;
    transaction.commit().await.unwrap();
    let mut transaction = backend.begin_fenced(&lease).await.unwrap();
    insert(&mut transaction).await;
    transaction.rollback().await;
    let mut transaction = backend.begin_fenced(&lease).await.unwrap();
    insert(&mut transaction).await;
    drop(transaction);
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))), "the lock is free");
    assert_eq!(landed(&place).await, 1);
}

#[tokio::test]
async fn no_transaction_for_a_grant_that_has_ended() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let refused = |answer| matches!(answer, Err(FenceError::Refused { .. }));
    let released = acquire(&backend, "r").await;
    assert!(matches!(backend.release(&released).await, Ok(Release::Released)));
    assert!(refused(backend.begin_fenced(&released).await));
    let expired = acquire(&backend, "s").await;
    clock.advance(TEN);
    assert!(refused(backend.begin_fenced(&expired).await));
    acquire(&backend, "s").await;
    assert!(refused(backend.begin_fenced(&expired).await));
}

#[tokio::test]
async fn a_grant_that_ran_out_inside_its_transaction_commits_nothing() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    with_table(&place).await;
    let lease = acquire(&backend, "r").await;
    let mut transaction = backend.begin_fenced(&lease).await.unwrap();
    insert(&mut transaction).await;
    clock.advance(TEN);
    assert!(matches!(transaction.commit().await, Err(FenceError::Refused { .. })));
    assert_eq!(landed(&place).await, 0);
    assert!(!is_held(&backend, "r").await);
}

#[tokio::test]
async fn while_it_is_open_nobody_else_is_granted_anything() {
    let place = Place::new();
    let (a, b) = (place.backend().await, place.backend_with("call_timeout_ms=100").await);
    with_table(&place).await;
    let lease = acquire_for(&a, "r", SECOND).await;
    let mut transaction = a.begin_fenced(&lease).await.unwrap();
    insert(&mut transaction).await;
    for resource in ["r", "other"] {
        let error = b.acquire(&attempt(resource, SECOND)).await.unwrap_err();
        assert_busy(&error);
    }
    assert!(b.inspect(&name("r")).await.unwrap().held.is_some(), "readers are not held up");
    assert_eq!(landed(&place).await, 0, "nor do they see it");
    transaction.commit().await.unwrap();
    assert_eq!(landed(&place).await, 1);
    acquire(&b, "other").await;
}

#[tokio::test]
async fn an_ignored_error_commits_nothing() {
    let place = Place::new();
    let backend = place.backend().await;
    with_table(&place).await;
    let lease = acquire(&backend, "r").await;
    let mut transaction = backend.begin_fenced(&lease).await.unwrap();
    sqlx::query("ROLLBACK").execute(&mut *transaction).await.unwrap();
    assert!(sqlx::query("INSERT INTO work VALUES ('x')").execute(&mut *transaction).await.is_err());
    assert!(transaction.commit().await.is_err());
    assert_eq!(landed(&place).await, 0);
}

/// As many holders as there can be, each with a transaction to do and a call to make; a file has one writer, so they take turns.
#[tokio::test(flavor = "multi_thread")]
async fn holders_that_share_the_only_writer_all_get_their_work_done() {
    let place = Place::new();
    let backend = place.backend_with("call_timeout_ms=600000").await;
    with_table(&place).await;
    let mut holders = tokio::task::JoinSet::new();
    for holder in 0..6 {
        let backend = backend.clone();
        holders.spawn(async move {
            let lease = acquire_for(&backend, &format!("r{holder}"), SECOND * 600).await;
            let mut transaction = backend.begin_fenced(&lease).await.unwrap();
            insert(&mut transaction).await;
            // Looks need no turn.
            assert!(backend.inspect(lease.resource()).await.unwrap().held.is_some());
            transaction.commit().await.unwrap();
            assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))));
            assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
        });
    }
    // Much longer than it takes: it only ends a deadlock.
    tokio::time::timeout(SECOND * 120, holders.join_all()).await.unwrap();
    assert_eq!(landed(&place).await, 6);
}
