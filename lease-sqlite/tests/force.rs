//! Grants that an operator ends by force, on a real file and on virtual time.
#![expect(clippy::unchecked_time_subtraction, reason = "a test may fail loudly")]

mod support;

use lease_core::{
    Effect, FenceError, FencedRegister as _, Forced, LeaseBackend as _, LeaseError, LossReason, ManualClock, Release,
    Renewal,
};
use lease_sqlite::SqliteBackend;
use std::time::Duration;
use support::*;

const MINUTE: Duration = Duration::from_mins(1);
/// As short as a tick of virtual time can be.
const TICK: Duration = Duration::from_nanos(1);

#[tokio::test]
async fn the_named_grant_is_over_for_good_and_its_holder_is_told_why() {
    let place = Place::new();
    let (a, b) = (place.backend().await, place.backend().await);
    let attempt = attempt("r", TEN);
    let broken = try_acquire(&a, &attempt).await.unwrap().unwrap();
    a.write(&broken, "before").await.unwrap();
    assert_eq!(force(&b, &broken).await, Forced::Ended);
    let free = b.inspect(&name("r")).await.unwrap();
    assert_eq!((free.held, free.last_value), (None, Some(value(&broken))));
    assert!(matches!(a.renew(&broken).await, Ok(Renewal::Lost(LossReason::Forced))));
    assert!(matches!(a.write(&broken, "after").await, Err(FenceError::Refused { .. })));
    assert!(matches!(a.begin_fenced(&broken).await, Err(FenceError::Refused { .. })));
    assert_eq!(a.read(&name("r")).await.unwrap().as_deref(), Some("before"));
    // Giving the attempt up, too, does not make it a released one.
    a.abandon(&attempt).await.unwrap();
    for _ in 0..2 {
        assert_eq!(a.release(&broken).await.unwrap(), Release::NotHeld);
    }
    assert!(matches!(a.renew(&broken).await, Ok(Renewal::Lost(LossReason::Forced))));

    let next = acquire(&b, "r").await;
    assert!(next.token() > broken.token());
    assert!(matches!(a.renew(&broken).await, Ok(Renewal::Lost(LossReason::Superseded))));
    assert_eq!(a.release(&broken).await.unwrap(), Release::NotHeld);
    // The record that was ended by force carries the next grant, which can end as any other.
    assert!(matches!(b.renew(&next).await, Ok(Renewal::Renewed(_))));
    assert_eq!(b.release(&next).await.unwrap(), Release::Released);
    assert!(matches!(b.renew(&next).await, Ok(Renewal::Lost(LossReason::Released))));
}

/// A handed-over lease leaves a tombstone of its own at its release; the answer stays.
#[tokio::test]
async fn a_handed_over_lease_is_told_that_it_was_lost() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let lease = acquire(&backend, "r").await;
    assert_eq!(force(&backend, &lease).await, Forced::Ended);
    let handed = lease.into_hand_over().into_lease(clock.shared()).unwrap();
    assert_eq!(backend.release(&handed).await.unwrap(), Release::NotHeld);
}

#[tokio::test]
async fn an_order_finds_no_grant_but_the_one_that_it_names() {
    let place = Place::new();
    let (a, b) = (place.backend().await, place.backend().await);
    let old = acquire(&a, "r").await;
    assert_eq!(force(&b, &old).await, Forced::Ended);
    assert_eq!(force(&b, &old).await, Forced::NotHeld, "again");
    let next = acquire(&a, "r").await;
    let (live, other) = (value(&next), acquire(&a, "other").await);
    assert_eq!(force(&b, &old).await, Forced::OtherGrant { value: live }, "again, after another grant");
    for wrong in [live - 1, live + 1, 1, i64::MAX.unsigned_abs(), value(&other)] {
        assert_eq!(b.force_release(&order("r", wrong)).await.unwrap(), Forced::OtherGrant { value: live }, "{wrong}");
    }
    assert_eq!(b.force_release(&order("R", live)).await.unwrap(), Forced::NotHeld, "another name");
    for lease in [&next, &other] {
        assert!(matches!(a.renew(lease).await, Ok(Renewal::Renewed(_))), "left alone");
    }
    let mut plain = place.plain().await;
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_spent").await, 1, "of the grant that was ended");
}

/// What has ended by itself stays what it was, and leaves nothing behind.
#[tokio::test]
async fn a_grant_that_had_ended_was_not_ended_by_force() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let expired = acquire(&backend, "expired").await;
    let released = acquire(&backend, "released").await;
    assert_eq!(backend.release(&released).await.unwrap(), Release::Released);
    let rebooted = acquire_for(&backend, "rebooted", MINUTE).await;
    let mut plain = place.plain().await;
    sqlx::query("UPDATE leasehold_lease SET boot = 'another' WHERE resource = 'rebooted'")
        .execute(&mut plain)
        .await
        .unwrap();
    clock.advance(TEN);
    for lease in [&expired, &released, &rebooted] {
        assert_eq!(force(&backend, lease).await, Forced::NotHeld, "{}", lease.resource());
    }
    assert!(matches!(backend.renew(&expired).await, Ok(Renewal::Lost(LossReason::Expired))));
    assert_eq!(backend.release(&released).await.unwrap(), Release::Released, "never a false loss");
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_spent").await, 0);
}

#[tokio::test]
async fn an_order_ends_a_grant_up_to_its_last_moment() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let lease = acquire(&backend, "r").await;
    clock.advance(TEN - TICK);
    assert_eq!(force(&backend, &lease).await, Forced::Ended);
}

/// Its requests that were held up find that it is over, for as long as after `abandon`: two granted TTLs, at least ten seconds.
#[tokio::test]
async fn what_the_attempt_still_has_on_its_way_makes_no_grant() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    for (resource, ttl, remembered) in [("long", MINUTE, MINUTE * 2), ("short", MINUTE / 60, TEN)] {
        let attempt = attempt(resource, ttl);
        let broken = try_acquire(&backend, &attempt).await.unwrap().unwrap();
        // A renewal moves the expiry; what counts is the TTL, from when the order was carried out.
        clock.advance(ttl / 2);
        assert!(matches!(backend.renew(&broken).await, Ok(Renewal::Renewed(_))));
        clock.advance(ttl / 2);
        assert_eq!(force(&backend, &broken).await, Forced::Ended);
        let late = |what| is_over(&backend, attempt.as_held_up(), what);
        late("by the record").await;
        let next = acquire_for(&backend, resource, ttl / 2).await;
        late("while another grant is live").await;
        assert!(matches!(backend.renew(&next).await, Ok(Renewal::Renewed(_))));
        assert_eq!(backend.release(&next).await.unwrap(), Release::Released);
        clock.advance(remembered - TICK);
        late("at last").await;
        assert!(!is_held(&backend, resource).await, "it left nothing");
        clock.advance(TICK);
        let another = acquire(&backend, &format!("{resource} tidies up")).await;
        assert_eq!(force(&backend, &another).await, Forced::Ended);
        let mut plain = place.plain().await;
        assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_spent").await, 1, "only the latest one");
        clock.advance(TEN);
    }
}

async fn is_over(backend: &SqliteBackend, held_up: lease_core::Attempt, when: &str) {
    let answer = backend.acquire(&held_up).await;
    assert!(matches!(answer, Err(LeaseError::AttemptOver { .. })), "{when}: {answer:?}");
}

/// Whoever is inside a fenced transaction has the file's write lock: the order waits for it, and says so if that takes too long.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_waits_for_a_fenced_transaction() {
    let place = Place::new();
    let (holder, operator) = (place.backend().await, place.backend_with("call_timeout_ms=200").await);
    let lease = acquire_for(&holder, "r", Duration::from_hours(1)).await;
    let work = holder.begin_fenced(&lease).await.unwrap();
    let error = operator.force_release(&order("r", value(&lease))).await.unwrap_err();
    assert_busy(&error);
    assert_eq!(error.effect(), Effect::None);
    work.commit().await.unwrap();
    assert_eq!(force(&holder, &lease).await, Forced::Ended);
}
