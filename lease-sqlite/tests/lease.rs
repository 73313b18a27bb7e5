//! The life of a lease, on a real file and mostly on virtual time.
#![expect(clippy::unchecked_time_subtraction, reason = "a test may fail loudly")]

mod support;

use lease_core::{
    Claim, ErrorKind, FencingToken, HolderLabel, LeaseBackend as _, LeaseError, LossReason, ManualClock, Release,
    Renewal, Ttl,
};
use std::time::Duration;
use support::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn one_holder_and_not_re_entrant() {
    let place = Place::new();
    let (a, b) = (place.backend().await, place.backend().await);
    let lease = acquire(&a, "r").await;
    assert!(is_held(&a, "r").await, "same client");
    assert!(is_held(&b, "r").await, "another client");
    assert!(matches!(a.release(&lease).await, Ok(Release::Released)));
    let next = acquire(&b, "r").await;
    assert!(next.token() > lease.token());
    assert_eq!(next.token().unwrap().authority(), lease.token().unwrap().authority());
}

#[tokio::test]
async fn expiry_frees_at_the_granted_ttl_and_not_before() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let lease = acquire(&backend, "r").await;
    assert_eq!(lease.granted_ttl(), TEN);
    clock.advance(TEN - Duration::from_nanos(1));
    assert!(is_held(&backend, "r").await);
    clock.advance(Duration::from_nanos(1));
    let next = acquire(&backend, "r").await;
    assert!(next.token() > lease.token());
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Lost(LossReason::Superseded))));
    assert!(matches!(backend.release(&lease).await, Ok(Release::NotHeld)));
    assert!(is_held(&backend, "r").await, "the old release left the new grant alone");
}

#[tokio::test]
async fn the_stored_ttl_counts_not_the_contenders() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let _lease = acquire(&backend, "r").await;
    clock.advance(SECOND * 9);
    let short = attempt("r", SECOND);
    assert!(try_acquire(&backend, &short).await.unwrap().is_none());
    clock.advance(SECOND);
    assert!(try_acquire(&backend, &attempt("r", SECOND)).await.unwrap().is_some());
}

#[tokio::test]
async fn renewal_extends_never_resurrects_and_keeps_the_token() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let lease = acquire(&backend, "r").await;
    clock.advance(SECOND * 8);
    let Renewal::Renewed(renewed) = backend.renew(&lease).await.unwrap() else { panic!("it is live") };
    assert_eq!(renewed.token(), lease.token());
    assert!(renewed.deadline() > lease.deadline());
    clock.advance(SECOND * 8);
    assert!(is_held(&backend, "r").await);
    clock.advance(SECOND * 2);
    assert!(matches!(backend.renew(&renewed).await, Ok(Renewal::Lost(LossReason::Expired))));
    assert!(!is_held(&backend, "r").await, "the late renewal revived nothing");
}

#[tokio::test]
async fn a_renewal_never_shortens() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let lease = acquire(&backend, "r").await;
    clock.advance(SECOND);
    // The same grant, handed over with a shorter TTL in its data: as a renewal by an older description of it would be.
    let mut plain = place.plain().await;
    sqlx::query("UPDATE leasehold_lease SET expires = expires + 60000000000").execute(&mut plain).await.unwrap();
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))));
    let held = backend.inspect(&name("r")).await.unwrap().held.unwrap();
    assert_eq!(held.remaining, SECOND * 69);
}

#[tokio::test]
async fn release_is_idempotent_and_keeps_off_other_grants() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let lease = acquire(&backend, "r").await;
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Lost(LossReason::Released))));
    let _next = acquire(&backend, "r").await;
    assert!(matches!(backend.release(&lease).await, Ok(Release::NotHeld)));
    assert!(is_held(&backend, "r").await);

    let expired = acquire(&backend, "s").await;
    clock.advance(TEN);
    assert!(matches!(backend.release(&expired).await, Ok(Release::NotHeld)));
}

#[tokio::test]
async fn an_attempt_makes_one_grant_and_repeats_do_not_extend() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let attempt = attempt("r", TEN);
    let first = try_acquire(&backend, &attempt).await.unwrap().unwrap();
    clock.advance(SECOND * 6);
    let again = try_acquire(&backend, &attempt).await.unwrap().unwrap();
    assert_eq!((again.token(), again.deadline()), (first.token(), first.deadline()));
    let held = backend.inspect(&name("r")).await.unwrap().held.unwrap();
    assert_eq!(held.remaining, SECOND * 4);
    clock.advance(SECOND * 4);
    assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));
}

/// The store refuses too, not just the attempt: the process that repeats it may not know that another one ended the grant.
#[tokio::test]
async fn the_store_remembers_that_an_attempt_is_over() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let over = |answer| matches!(answer, Err(LeaseError::AttemptOver { .. }));
    let attempt = attempt("r", TEN);
    let lease = try_acquire(&backend, &attempt).await.unwrap().unwrap();
    let handed = lease.into_hand_over().into_lease(clock.shared()).unwrap();
    assert!(matches!(backend.release(&handed).await, Ok(Release::Released)));
    assert!(over(backend.acquire(&attempt).await), "the record says so");
    let next = acquire(&backend, "r").await;
    assert!(over(backend.acquire(&attempt).await), "the tombstone says so");
    assert!(matches!(backend.release(&next).await, Ok(Release::Released)));
    assert!(over(backend.acquire(&attempt).await), "no second grant");
    assert!(!is_held(&backend, "r").await);
}

#[tokio::test]
async fn an_abandoned_attempt_leaves_nothing_held() {
    let place = Place::new();
    let backend = place.backend().await;
    let granted = attempt("r", TEN);
    try_acquire(&backend, &granted).await.unwrap().unwrap();
    backend.abandon(&granted).await.unwrap();
    backend.abandon(&granted).await.unwrap();
    let unsent = attempt("r", TEN);
    backend.abandon(&unsent).await.unwrap();
    for attempt in [&granted, &unsent] {
        assert!(matches!(backend.acquire(attempt).await, Err(LeaseError::AttemptOver { .. })));
    }
    assert!(!is_held(&backend, "r").await);
    let mut plain = place.plain().await;
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_spent").await, 2);
}

#[tokio::test]
async fn abandoning_a_grant_that_had_expired_does_not_make_it_a_released_one() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let attempt = attempt("r", TEN);
    let lease = try_acquire(&backend, &attempt).await.unwrap().unwrap();
    clock.advance(TEN);
    backend.abandon(&attempt).await.unwrap();
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Lost(LossReason::Expired))));
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld, "it was lost before");
}

#[tokio::test]
async fn a_handed_over_lease_leaves_a_tombstone_that_goes_by_itself() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let lease = acquire_for(&backend, "r", SECOND).await;
    let handed = lease.into_hand_over().into_lease(clock.shared()).unwrap();
    assert!(matches!(backend.release(&handed).await, Ok(Release::Released)));
    let mut plain = place.plain().await;
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_spent").await, 1);
    clock.advance(SECOND * 9);
    backend.clean_up().await.unwrap();
    backend.abandon(&attempt("other", SECOND)).await.unwrap();
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_spent").await, 2, "at least ten seconds");
    clock.advance(SECOND);
    backend.abandon(&attempt("another", SECOND)).await.unwrap();
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_spent").await, 2, "the first one went");
}

#[tokio::test]
async fn inspect_shows_the_holder_and_no_secret() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let free = backend.inspect(&name("r")).await.unwrap();
    assert_eq!((free.held, free.last_value), (None, None));
    let attempt = attempt("r", TEN).held_by(HolderLabel::parse("worker 7").unwrap());
    let lease = try_acquire(&backend, &attempt).await.unwrap().unwrap();
    clock.advance(SECOND);
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))));
    clock.advance(SECOND);
    let held = backend.inspect(&name("r")).await.unwrap().held.unwrap();
    assert_eq!((held.holder.as_str(), held.value), ("worker 7", Some(value(&lease))));
    assert_eq!((held.remaining, held.granted_ago, held.renewed_ago), (SECOND * 9, Some(SECOND * 2), Some(SECOND)));
    assert!(!format!("{held:?} {backend:?}").contains(&attempt.owner().reveal()));
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    let free = backend.inspect(&name("r")).await.unwrap();
    assert_eq!((free.held, free.last_value), (None, Some(value(&lease))));
}

#[tokio::test]
async fn names_are_bytes() {
    let place = Place::new();
    let backend = place.backend().await;
    let long = "x".repeat(512);
    let names = [
        "a",
        "A",
        "a ",
        "a b",
        "a%20b",
        "{a}",
        "a:b",
        "a*",
        "a'",
        "a\"",
        "a;--",
        "ä",
        "a\u{308}",
        "ss",
        "ß",
        "日本",
        "a\u{200d}",
        &long,
    ];
    for name in names {
        acquire(&backend, name).await;
    }
    for name in names {
        assert!(is_held(&backend, name).await, "{name}");
    }
    let page = backend.list("", None, 100).await.unwrap();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    let listed: Vec<_> = page.grants.iter().map(|g| g.resource.as_str().to_owned()).collect();
    assert_eq!(listed, sorted);
}

#[tokio::test]
async fn list_goes_by_prefix_in_pages_and_shows_live_grants_only() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    for name in ["a", "a/1", "a/2", "a/3", "a%", "a_", "b", "a0"] {
        acquire(&backend, name).await;
    }
    let gone = acquire(&backend, "a/0").await;
    assert!(matches!(backend.release(&gone).await, Ok(Release::Released)));
    acquire_for(&backend, "a/4", SECOND).await;
    clock.advance(SECOND);
    let names =
        |page: &lease_core::NamePage| page.grants.iter().map(|g| g.resource.as_str().to_owned()).collect::<Vec<_>>();
    let first = backend.list("a/", None, 2).await.unwrap();
    assert_eq!(names(&first), ["a/1", "a/2"]);
    assert_eq!(first.next_after, Some(name("a/2")));
    let second = backend.list("a/", first.next_after.as_ref(), 2).await.unwrap();
    assert_eq!((names(&second), second.next_after), (vec!["a/3".to_owned()], None));
    assert_eq!(names(&backend.list("a%", None, 9).await.unwrap()), ["a%"], "no wildcard");
    assert_eq!(backend.list("", None, 0).await.unwrap().grants.len(), 1, "at least one");
    assert_eq!(names(&backend.list("b", Some(&name("a")), 9).await.unwrap()), ["b"]);
    let mut plain = place.plain().await;
    let steps: Vec<(i64, i64, i64, String)> = sqlx::query_as(
        "EXPLAIN QUERY PLAN SELECT resource FROM leasehold_lease WHERE resource >= ?1 AND NOT (?2 AND resource = ?1)
         AND (?3 IS NULL OR resource < ?3) ORDER BY resource",
    )
    .fetch_all(&mut plain)
    .await
    .unwrap();
    assert!(steps.iter().all(|step| !step.3.contains("SCAN")), "{steps:?}");
}

#[tokio::test]
async fn ttl_limits_are_exact_and_never_overflow() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on(&clock).await;
    let tiny = acquire_for(&backend, "tiny", Duration::from_nanos(1)).await;
    assert_eq!(tiny.granted_ttl(), Duration::from_millis(1));
    let huge = acquire_for(&backend, "huge", Ttl::MAX).await;
    assert_eq!(huge.granted_ttl(), Ttl::MAX);
    clock.advance(Ttl::MAX - SECOND);
    assert!(is_held(&backend, "huge").await);
    assert!(matches!(backend.renew(&huge).await, Ok(Renewal::Renewed(_))));
    clock.advance(Ttl::MAX - SECOND);
    assert!(is_held(&backend, "huge").await);
    clock.advance(SECOND);
    assert!(!is_held(&backend, "huge").await);
}

#[tokio::test]
async fn running_out_of_values_is_an_error_and_grants_nothing() {
    let place = Place::new();
    let backend = place.backend().await;
    let lease = acquire(&backend, "r").await;
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    let mut plain = place.plain().await;
    sqlx::query("UPDATE leasehold_lease SET value = 9223372036854775806").execute(&mut plain).await.unwrap();
    let last = acquire(&backend, "r").await;
    assert_eq!(value(&last), FencingToken::MAX_VALUE);
    assert!(matches!(backend.release(&last).await, Ok(Release::Released)));
    let error = backend.acquire(&attempt("r", TEN)).await.unwrap_err();
    assert!(matches!(error, LeaseError::TokenRange { value: 9_223_372_036_854_775_808 }), "{error}");
    assert!(backend.inspect(&name("r")).await.unwrap().held.is_none());
    sqlx::query("UPDATE leasehold_store SET floor = 9223372036854775807").execute(&mut plain).await.unwrap();
    let error = backend.acquire(&attempt("other", TEN)).await.unwrap_err();
    assert!(matches!(error, LeaseError::TokenRange { .. }), "{error}");
}

#[tokio::test]
async fn values_follow_the_wall_clock_but_never_go_back() {
    let place = Place::new();
    let backend = place.backend().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    let lease = acquire(&backend, "r").await;
    assert!(u128::from(value(&lease)) >= now, "a file that was restored mints above what it minted before");
    // The wall clock was an hour ahead when the last value was minted.
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    let mut plain = place.plain().await;
    sqlx::query("UPDATE leasehold_lease SET value = value + 3600000000").execute(&mut plain).await.unwrap();
    assert_eq!(value(&acquire(&backend, "r").await), value(&lease) + 3_600_000_001);
}

#[tokio::test]
async fn contention_uses_no_values() {
    let place = Place::new();
    let backend = place.backend().await;
    let lease = acquire(&backend, "r").await;
    for _ in 0..50 {
        assert!(is_held(&backend, "r").await);
    }
    assert_eq!(backend.inspect(&name("r")).await.unwrap().held.unwrap().value, Some(value(&lease)));
}

#[tokio::test]
async fn bad_input_is_refused_before_any_io() {
    let place = Place::new();
    let backend = place.backend().await;
    std::fs::remove_file(place.path()).unwrap();
    assert!(lease_core::ResourceName::parse("a\0").is_err());
    assert!(Ttl::parse(Duration::ZERO).is_err());
    let attempt = attempt("r", TEN);
    attempt.end();
    assert_eq!(backend.acquire(&attempt).await.unwrap_err().kind(), ErrorKind::Attempt);
}

#[tokio::test]
async fn declares_what_it_read_back() {
    let place = Place::new();
    let backend = place.backend().await;
    for claim in [
        Claim::FencingToken,
        Claim::NativeFenceLiveOwner,
        Claim::CrossProcess,
        Claim::ListByPrefix,
        Claim::IdleNamesForgotten,
        Claim::LeaseSurvivesRestart,
        Claim::TokenSurvivesRestart,
    ] {
        assert!(backend.claims().has(claim), "{claim}");
    }
    let description = backend.description();
    assert_eq!((description.name, description.address), ("sqlite", place.url()));
    assert!(description.server_version.starts_with("3."), "{}", description.server_version);
    let mut plain = place.plain().await;
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut plain).await.unwrap();
    assert_eq!(mode, "wal");
}
