//! A floor given to acquire, and the value as a second line beside the owner token.
#![allow(clippy::arithmetic_side_effects, reason = "a sum that overflows fails the test")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{
    Acquisition, Attempt, Effect, FenceError, FencedRegister as _, FencingToken, Lease, LeaseBackend, LeaseError,
    LossReason, Release, Renewal,
};
use lease_postgres::PostgresBackend;
use support::{admin, attempt, connect, name, number, shared, sql, take, value};

async fn acquire(backend: &PostgresBackend, attempt: &Attempt) -> Lease {
    match backend.acquire(attempt).await.unwrap() {
        Acquisition::Acquired(lease) => lease,
        Acquisition::Held(held) => panic!("{held:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_value_is_above_the_floor() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "floor").await);
    let first = take(&backend, "seen before", 60_000).await;
    assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
    for (resource, floor) in [("seen before", value(&first) + 3_600_000_000), ("new", FencingToken::MAX_VALUE / 2)] {
        let above = attempt(resource, 60_000).above(floor);
        let lease = acquire(&backend, &above).await;
        assert_eq!(value(&lease), floor + 1, "{resource}");
        assert_eq!(acquire(&backend, &above).await.token(), lease.token(), "the repeat");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        let next = acquire(&backend, &attempt(resource, 60_000).above(3)).await;
        assert_eq!(value(&next), floor + 2, "never back, whatever the clock says");
        assert_eq!(backend.release(&next).await.unwrap(), Release::Released);
    }

    // The rows went back, as after a recovery to an earlier moment.
    let seen = acquire(&backend, &attempt("r", 60_000).above(FencingToken::MAX_VALUE / 2)).await;
    sql(&pool, "UPDATE floor.lease SET value = 7, released = true WHERE name = 'r'").await;
    let unseen = take(&backend, "r", 60_000).await;
    assert!(unseen.token() < seen.token());
    assert_eq!(backend.release(&unseen).await.unwrap(), Release::Released);
    let cured = acquire(&backend, &attempt("r", 60_000).above(value(&seen))).await;
    assert!(cured.token() > seen.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_floor_at_the_end_of_the_range() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "floor_end").await);
    for floor in [FencingToken::MAX_VALUE, u64::MAX] {
        let error = backend.acquire(&attempt("r", 60_000).above(floor)).await.unwrap_err();
        assert!(matches!(error, LeaseError::InvalidFloor { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM floor_end.lease").await, 0, "nothing was sent");
    let last = acquire(&backend, &attempt("r", 60_000).above(FencingToken::MAX_VALUE - 1)).await;
    assert_eq!(value(&last), FencingToken::MAX_VALUE);
    assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
    let error = backend.acquire(&attempt("r", 60_000)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "no overflow: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_value_is_refused() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "edited").await);
    let lease = take(&backend, "r", 60_000).await;
    backend.write(&lease, "before").await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    backend.transaction_fence().check(&mut transaction, &lease).await.unwrap();
    transaction.commit().await.unwrap();

    sql(&pool, "UPDATE edited.lease SET value = value + 1").await;
    let expiry = "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM edited.lease";
    let before = number(&pool, expiry).await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(number(&pool, expiry).await, before, "left as it is");
    assert!(matches!(backend.write(&lease, "after").await, Err(FenceError::Refused { .. })));
    assert_eq!(backend.read(&name("r")).await.unwrap().as_deref(), Some("before"));
    let mut transaction = pool.begin().await.unwrap();
    let refused = backend.transaction_fence().check(&mut transaction, &lease).await;
    assert!(matches!(refused, Err(FenceError::Refused { .. })), "{refused:?}");
}

/// The tests above can fail.
#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread")]
async fn without_its_line_each_of_them_is_seen() {
    let server = shared();
    let pool = admin(&server).await;
    let edited = async |namespace: &str, edit| {
        let url = support::url(&server, &format!("namespace={namespace}&call_timeout_ms=30000"));
        PostgresBackend::connect_edited(&url, &[edit]).await.unwrap()
    };
    let deaf = edited("floor_deaf", ("$6 + 1", "$6 * 0")).await;
    let error = deaf.acquire(&attempt("r", 60_000).above(FencingToken::MAX_VALUE / 2)).await.unwrap_err();
    assert!(matches!(error, LeaseError::BelowFloor { effect: Effect::None, .. }), "{error}");
    assert!(!support::is_held(&deaf, "r").await, "it was given up");

    let blind = edited("floor_blind", ("l.value = $4", "$4 > 0")).await;
    let lease = take(&blind, "r", 60_000).await;
    sql(&pool, "UPDATE floor_blind.lease SET value = value + 1").await;
    assert!(matches!(blind.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    blind.write(&lease, "stale").await.unwrap();
}
