//! The in-memory backend, on virtual time: the contract, statement by statement.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end at the first thing that is wrong")]

use lease_core::memory::{MemoryBackend, MemoryDestination, MemoryStore};
use lease_core::{
    Acquisition, Attempt, Authority, DestinationExt, FenceError, FencedRegister, ForceRelease, Forced, GuardError,
    GuardedDestination, HolderLabel, Lease, LeaseBackend, LeaseError, LeaseExt, LossReason, ManualClock, Refusal,
    Release, Renewal, ResourceName, Ttl,
};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(10);

fn store() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock.shared()).unwrap();
    (clock, store)
}

fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).unwrap()
}

fn attempt(resource: &str) -> Attempt {
    Attempt::new(name(resource), Ttl::parse(TTL).unwrap()).unwrap()
}

async fn acquire(backend: &MemoryBackend, attempt: &Attempt) -> Lease {
    match backend.acquire(attempt).await.unwrap() {
        Acquisition::Acquired(lease) => lease,
        Acquisition::Held(held) => panic!("held: {held:?}"),
    }
}

#[tokio::test]
async fn one_holder_until_the_ttl_ends() {
    let (clock, store) = store();
    let (a, b) = (MemoryBackend::on(store.clone()), MemoryBackend::on(store));
    let first = acquire(&a, &attempt("r")).await;
    for backend in [&a, &b] {
        let Acquisition::Held(held) = backend.acquire(&attempt("r")).await.unwrap() else { panic!("granted twice") };
        assert_eq!(held.remaining, Some(TTL));
    }
    clock.advance(TTL.checked_sub(Duration::from_nanos(1)).unwrap());
    assert!(first.is_past_deadline(), "the holder stops before the store's expiry");
    assert!(b.try_acquire("r", TTL).await.unwrap().is_none());
    clock.advance(Duration::from_nanos(1));
    let second = b.try_acquire("r", TTL).await.unwrap().unwrap();
    assert!(second.token() > first.token());
    assert!(matches!(a.renew(&first).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(a.release(&first).await.unwrap(), Release::NotHeld);
    assert!(matches!(b.renew(&second).await.unwrap(), Renewal::Renewed(_)));
}

#[tokio::test]
async fn renew_extends_and_never_resurrects() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let lease = acquire(&backend, &attempt("r")).await;
    clock.advance(TTL / 2);
    let Renewal::Renewed(renewed) = backend.renew(&lease).await.unwrap() else { panic!("lost") };
    assert_eq!((renewed.token(), renewed.remaining()), (lease.token(), Duration::from_millis(9_900)));
    clock.advance(TTL);
    assert!(matches!(backend.renew(&renewed).await.unwrap(), Renewal::Lost(LossReason::Expired)));
    assert_eq!(backend.release(&renewed).await.unwrap(), Release::NotHeld);
    assert!(backend.inspect(&name("r")).await.unwrap().held.is_none());
}

#[tokio::test]
async fn an_attempt_makes_one_grant_ever() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let attempt = attempt("r");
    let first = acquire(&backend, &attempt).await;
    clock.advance(TTL / 2);
    let again = acquire(&backend, &attempt).await;
    assert_eq!((again.token(), again.deadline()), (first.token(), first.deadline()), "found, not extended");
    clock.advance(TTL / 2);
    assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));

    let attempt = self::attempt("s");
    let lease = acquire(&backend, &attempt).await;
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released, "idempotent");
    assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));

    let attempt = self::attempt("t");
    let lease = acquire(&backend, &attempt).await;
    backend.abandon(&attempt).await.unwrap();
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Released)));
    assert!(backend.try_acquire("t", TTL).await.unwrap().is_some());
}

/// Giving an attempt up that was lost by then does not turn the loss into a release.
#[tokio::test]
async fn abandoning_an_expired_grant_does_not_make_it_released() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let attempt = attempt("r");
    let lease = acquire(&backend, &attempt).await;
    clock.advance(TTL);
    backend.abandon(&attempt).await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Expired)));
}

#[tokio::test]
async fn repeating_an_attempt_never_ends_its_grant() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let attempt = attempt("r");
    let lease = acquire(&backend, &attempt).await;
    clock.advance(TTL / 2);
    let Renewal::Renewed(lease) = backend.renew(&lease).await.unwrap() else { panic!("lost") };
    // Between the first deadline and the end of the first TTL.
    clock.advance(Duration::from_millis(4_950));
    assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
}

#[tokio::test]
async fn idle_names_go_and_tokens_grow() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let mut last = None;
    for round in 0..3_000 {
        let lease = backend.try_acquire(&format!("r{}", round % 1_500), TTL).await.unwrap().unwrap();
        assert!(lease.token() > last.as_ref());
        last = lease.token().cloned();
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        clock.advance(Duration::from_millis(1));
    }
    let removed = backend.clean_up().await.unwrap().removed;
    assert!((1..=1_024).contains(&removed), "the rest was swept on the way: {removed}");
    assert_eq!(backend.inspect(&name("r1")).await.unwrap().last_value, None);
}

#[tokio::test]
async fn lists_in_pages_by_prefix() {
    let (_clock, store) = store();
    let backend = MemoryBackend::on(store);
    for resource in ["a", "job/1", "job/2", "job/3", "jobs"] {
        drop(backend.try_acquire(resource, TTL).await.unwrap().unwrap());
    }
    let first = backend.list("job/", None, 2).await.unwrap();
    let names = |page: &lease_core::NamePage| page.grants.iter().map(|g| g.resource.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&first), ["job/1", "job/2"]);
    let second = backend.list("job/", first.next_after.as_ref(), 2).await.unwrap();
    assert_eq!((names(&second), second.next_after), (vec!["job/3".to_owned()], None));
}

#[tokio::test]
async fn the_native_fence_refuses_from_the_moment_the_grant_ended() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let lease = acquire(&backend, &attempt("r")).await;
    let register: &dyn FencedRegister = &backend;
    register.write(&lease, "1").await.unwrap();
    clock.advance(TTL);
    assert!(matches!(register.write(&lease, "2").await, Err(FenceError::Refused { .. })));
    assert_eq!(register.read(&name("r")).await.unwrap().as_deref(), Some("1"));
}

fn order(lease: &Lease) -> ForceRelease {
    let value = lease.token().unwrap().value();
    ForceRelease::new(lease.resource().clone(), value, HolderLabel::parse("ops").unwrap(), "host 12 burned").unwrap()
}

#[tokio::test]
async fn force_ends_the_grant_that_it_names_for_good() {
    let (_clock, store) = store();
    let (holder, operator) = (MemoryBackend::on(store.clone()), MemoryBackend::on(store));
    let attempt = attempt("r");
    let lease = acquire(&holder, &attempt).await;
    let other = acquire(&holder, &self::attempt("other")).await;
    holder.write(&lease, "before").await.unwrap();
    assert_eq!(operator.force_release(&order(&lease)).await.unwrap(), Forced::Ended);
    assert_eq!(operator.force_release(&order(&lease)).await.unwrap(), Forced::NotHeld, "repeated, it finds nothing");
    let seen = operator.inspect(&name("r")).await.unwrap();
    assert_eq!((seen.held, seen.last_value), (None, lease.token().map(lease_core::FencingToken::value)));
    assert!(matches!(holder.write(&lease, "after").await, Err(FenceError::Refused { .. })));
    assert!(matches!(holder.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Forced)));
    assert!(matches!(holder.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })), "it makes one grant ever");
    assert_eq!(holder.release(&lease).await.unwrap(), Release::NotHeld, "it was lost before");
    let next = acquire(&holder, &self::attempt("r")).await;
    assert!(next.token() > lease.token());
    assert_eq!(holder.release(&next).await.unwrap(), Release::Released);
    // A request of it that was held up on its way, when nothing but the store's memory of the order is in its way any more.
    let held_up = holder.acquire(&attempt.as_held_up()).await;
    assert!(matches!(held_up, Err(LeaseError::AttemptOver { .. })), "{held_up:?}");
    assert!(matches!(holder.renew(&other).await.unwrap(), Renewal::Renewed(_)), "another name's grant is left alone");
}

#[tokio::test]
async fn force_leaves_a_newer_grant_alone() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let old = acquire(&backend, &attempt("r")).await;
    clock.advance(TTL);
    assert_eq!(backend.force_release(&order(&old)).await.unwrap(), Forced::NotHeld, "it has expired");
    let new = acquire(&backend, &attempt("r")).await;
    let value = new.token().unwrap().value();
    assert_eq!(backend.force_release(&order(&old)).await.unwrap(), Forced::OtherGrant { value });
    assert!(matches!(backend.renew(&new).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(backend.release(&new).await.unwrap(), Release::Released);
    assert_eq!(backend.force_release(&order(&new)).await.unwrap(), Forced::NotHeld);
    assert_eq!(
        backend.release(&new).await.unwrap(),
        Release::Released,
        "which an order that came too late changes not"
    );
}

#[tokio::test]
async fn a_wait_tries_at_least_once_and_returns_what_the_store_granted() {
    let (clock, store) = store();
    let backend = MemoryBackend::on(store);
    let lease = backend.acquire_within("r", TTL, Duration::ZERO).await.unwrap().unwrap();
    assert!(backend.acquire_within("r", TTL, Duration::ZERO).await.unwrap().is_none());
    let waiter = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire_within("r", TTL, Duration::MAX).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    clock.advance(Duration::from_secs(1));
    assert!(waiter.await.unwrap().unwrap().unwrap().token() > lease.token());
}

#[tokio::test]
async fn trusting_adopts_the_first_authority_and_never_replaces_one() {
    let destination = MemoryDestination::new();
    let (a, b) = (Authority::parse("a").unwrap(), Authority::parse("b").unwrap());
    destination.trust(&a).await.unwrap();
    destination.trust(&a).await.unwrap();
    match destination.trust(&b).await {
        Err(GuardError::AdoptConflict { found }) => assert_eq!(found, Some(a.clone())),
        other => panic!("{other:?}"),
    }
    destination.seal(&name("r"), &attempt("r").token(a, 1).unwrap()).await.unwrap();
}

#[tokio::test]
async fn adopting_is_compare_and_set_and_marks_stay() {
    let destination = MemoryDestination::new();
    let (a, b) = (Authority::parse("a").unwrap(), Authority::parse("b").unwrap());
    let token = |authority: &Authority, value| attempt("r").token(authority.clone(), value).unwrap();
    destination.adopt(None, &a).await.unwrap();
    destination.write(&name("r"), &token(&a, 9), "nine").await.unwrap();
    assert!(matches!(destination.adopt(None, &b).await, Err(GuardError::AdoptConflict { found: Some(_) })));
    destination.adopt(Some(&a), &b).await.unwrap();
    let refused = destination.write(&name("r"), &token(&a, 10), "old").await;
    assert!(matches!(refused, Err(GuardError::Refused { refusal: Refusal::UnknownAuthority { .. }, .. })));
    destination.write(&name("r"), &token(&b, 1), "new").await.unwrap();
    destination.adopt(Some(&b), &a).await.unwrap();
    let refused = destination.write(&name("r"), &token(&a, 8), "stale").await;
    assert!(
        matches!(refused, Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. })),
        "its mark is still there"
    );
}
