//! A server whose wall clock really jumps: it ends leases early or late, and lets no stale write through.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{
    FenceError, FencedRegister as _, GuardError, GuardedDestination as _, LeaseBackend, LossReason, Refusal, Release,
    Renewal,
};
use lease_postgres::PostgresDestination;
use std::time::Duration;
use support::{admin, connect, is_held, name, own, take, url};

const HOUR: i64 = 3_600;

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_ahead_costs_the_lease_and_lets_no_stale_write_through() {
    let mut server = own(&[]);
    server.put_on_clock().unwrap();
    let (holder, other) = (connect(&server, "ahead").await, connect(&server, "ahead").await);
    let destination = PostgresDestination::connect(&url(&server, "namespace=ahead")).await.unwrap();
    let (r, lease) = (name("r"), take(&holder, "r", 60_000).await);
    let token = lease.token().unwrap();
    destination.adopt(None, token.authority()).await.unwrap();
    destination.write(&r, token, "first").await.unwrap();
    holder.write(&lease, "first").await.unwrap();

    server.set_clock(HOUR).unwrap();
    assert!(!lease.is_past_deadline(), "the holder counts on its own clock, so that fencing has to do");
    assert!(matches!(holder.write(&lease, "stale").await, Err(FenceError::Refused { .. })));
    let mut transaction = admin(&server).await.begin().await.unwrap();
    let checked = holder.transaction_fence().check(&mut transaction, &lease).await;
    assert!(matches!(checked, Err(FenceError::Refused { .. })), "{checked:?}");
    let next = take(&other, "r", 60_000).await;
    assert!(next.token() > lease.token(), "of the same authority, and larger");
    destination.seal(&r, next.token().unwrap()).await.unwrap();
    server.set_clock(0).unwrap();

    match destination.write(&r, token, "stale").await {
        Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. }) => {}
        answer => panic!("{answer:?}"),
    }
    assert!(matches!(holder.write(&lease, "stale").await, Err(FenceError::Refused { .. })));
    assert_eq!(holder.read(&r).await.unwrap().as_deref(), Some("first"));
    assert!(matches!(holder.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(holder.release(&lease).await.unwrap(), Release::NotHeld);
    assert!(matches!(other.renew(&next).await.unwrap(), Renewal::Renewed(_)), "the jump back costs nobody anything");
    assert_eq!(other.release(&next).await.unwrap(), Release::Released);
    let last = take(&holder, "r", 60_000).await;
    assert!(last.token() > next.token(), "the value does not go back with the clock");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_back_makes_a_dead_holder_last_longer_by_as_much() {
    let mut server = own(&[]);
    server.put_on_clock().unwrap();
    let other = connect(&server, "back").await;
    let lease = take(&connect(&server, "back").await, "r", 60_000).await;
    server.set_clock(-HOUR).unwrap();
    assert!(is_held(&other, "r").await);
    let left = other.inspect(&name("r")).await.unwrap().held.unwrap().remaining;
    let (hour, minute) = (Duration::from_hours(1), Duration::from_mins(1));
    assert!(left > hour.saturating_sub(minute) && left <= hour.saturating_add(minute), "{left:?}");
    assert!(lease.remaining() <= minute, "for the holder nothing has changed");
    server.set_clock(HOUR).unwrap();
    assert!(take(&other, "r", 60_000).await.token() > lease.token());
}
