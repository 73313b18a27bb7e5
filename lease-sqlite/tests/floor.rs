//! A floor given to acquire, and the value as a second line beside the owner token.
#![allow(clippy::arithmetic_side_effects, reason = "a sum that overflows fails the test")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use lease_core::{
    Effect, FenceError, FencedRegister as _, FencingToken, Lease, LeaseBackend, LeaseError, LossReason, Release,
    Renewal,
};
use lease_sqlite::SqliteBackend;
use support::{Place, TEN, acquire, attempt, is_held, name, number, try_acquire, value};

async fn above(backend: &SqliteBackend, resource: &str, floor: u64) -> Lease {
    try_acquire(backend, &attempt(resource, TEN).above(floor)).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_value_is_above_the_floor() {
    let place = Place::new();
    let backend = place.backend().await;
    let first = acquire(&backend, "r").await;
    assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
    let floor = value(&first) + 3_600_000_000;
    let asked = attempt("r", TEN).above(floor);
    let lease = try_acquire(&backend, &asked).await.unwrap().unwrap();
    assert_eq!(value(&lease), floor + 1);
    let again = try_acquire(&backend, &asked).await.unwrap().unwrap();
    assert_eq!(again.token(), lease.token(), "the repeat");
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    let next = above(&backend, "r", 3).await;
    assert_eq!(value(&next), floor + 2, "never back, whatever the clock says");
    assert_eq!(value(&above(&backend, "new", floor).await), floor + 1);

    // The file went back, as when an old one is put in its place.
    assert_eq!(backend.release(&next).await.unwrap(), Release::Released);
    let mut plain = place.plain().await;
    sqlx::query("UPDATE leasehold_lease SET value = 7").execute(&mut plain).await.unwrap();
    let unseen = acquire(&backend, "r").await;
    assert!(unseen.token() < next.token());
    assert_eq!(backend.release(&unseen).await.unwrap(), Release::Released);
    assert!(above(&backend, "r", value(&next)).await.token() > next.token());
}

#[tokio::test]
async fn a_floor_at_the_end_of_the_range() {
    let place = Place::new();
    let backend = place.backend().await;
    for floor in [FencingToken::MAX_VALUE, u64::MAX] {
        let error = try_acquire(&backend, &attempt("r", TEN).above(floor)).await.unwrap_err();
        assert!(matches!(error, LeaseError::InvalidFloor { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    assert_eq!(number(&mut place.plain().await, "SELECT count(*) FROM leasehold_lease").await, 0);
    let last = above(&backend, "r", FencingToken::MAX_VALUE - 1).await;
    assert_eq!(value(&last), FencingToken::MAX_VALUE);
    assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
    assert!(matches!(try_acquire(&backend, &attempt("r", TEN)).await, Err(LeaseError::TokenRange { .. })));
}

#[tokio::test]
async fn an_edited_value_is_refused() {
    let place = Place::new();
    let (backend, mut plain) = (place.backend().await, place.plain().await);
    let lease = acquire(&backend, "r").await;
    backend.write(&lease, "before").await.unwrap();
    backend.begin_fenced(&lease).await.unwrap().rollback().await;

    sqlx::query("UPDATE leasehold_lease SET value = value + 1").execute(&mut plain).await.unwrap();
    let before = number(&mut plain, "SELECT expires FROM leasehold_lease").await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(number(&mut plain, "SELECT expires FROM leasehold_lease").await, before, "left as it is");
    assert!(matches!(backend.write(&lease, "after").await, Err(FenceError::Refused { .. })));
    assert!(matches!(backend.begin_fenced(&lease).await, Err(FenceError::Refused { .. })));
    assert_eq!(backend.read(&name("r")).await.unwrap().as_deref(), Some("before"));
}

/// The tests above can fail.
#[cfg(feature = "testing")]
#[tokio::test]
async fn without_its_line_each_of_them_is_seen() {
    let place = Place::new();
    let edited = async |edit| SqliteBackend::connect_edited(&place.url(), &[edit]).await.unwrap();
    let deaf = edited(("?10 + 1, ?6", "?10 * 0, ?6")).await;
    let error = try_acquire(&deaf, &attempt("r", TEN).above(FencingToken::MAX_VALUE / 2)).await.unwrap_err();
    assert!(matches!(error, LeaseError::BelowFloor { effect: Effect::None, .. }), "{error}");
    assert!(!is_held(&deaf, "r").await, "it was given up");

    let open = edited(("AND value = ?5", "AND ?5 > 0")).await;
    let lease = acquire(&open, "s").await;
    sqlx::query("UPDATE leasehold_lease SET value = value + 1").execute(&mut place.plain().await).await.unwrap();
    open.write(&lease, "stale").await.unwrap();
    let blind = edited(("AND value = ?6", "AND ?6 > 0")).await;
    let before = number(&mut place.plain().await, "SELECT expires FROM leasehold_lease WHERE resource = 's'").await;
    drop(blind.renew(&lease).await.unwrap());
    let after = number(&mut place.plain().await, "SELECT expires FROM leasehold_lease WHERE resource = 's'").await;
    assert!(after > before, "the record of another value was extended");
}
