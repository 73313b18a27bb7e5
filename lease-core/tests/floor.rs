//! A floor given to acquire: the value is larger, or there is no grant.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end at the first thing that is wrong")]

use lease_core::hold::{HoldOptions, Keeper};
use lease_core::memory::{MemoryBackend, MemoryDestination};
use lease_core::testing::{Fault, Scripted};
use lease_core::{
    Acquisition, Attempt, Effect, FencingToken, GuardedDestination as _, Lease, LeaseBackend, LeaseError, Operation,
    Release, ResourceName, Ttl, accept_grant,
};
use std::sync::Arc;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

fn name() -> ResourceName {
    ResourceName::parse("r").unwrap()
}

fn attempt() -> Attempt {
    Attempt::new(name(), Ttl::parse(TTL).unwrap()).unwrap()
}

async fn acquire(backend: &dyn LeaseBackend, attempt: &Attempt) -> Lease {
    match backend.acquire(attempt).await.unwrap() {
        Acquisition::Acquired(lease) => lease,
        Acquisition::Held(held) => panic!("{held:?}"),
    }
}

fn value(lease: &Lease) -> u64 {
    lease.token().unwrap().value()
}

#[tokio::test]
async fn the_value_is_above_the_floor_and_a_repeat_finds_it() {
    let backend = MemoryBackend::new().unwrap();
    let above = attempt().above(1_000);
    let lease = acquire(&backend, &above).await;
    assert_eq!(value(&lease), 1_001);
    assert_eq!(acquire(&backend, &above).await.token(), lease.token());
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    assert_eq!(value(&acquire(&backend, &attempt()).await), 1_002, "the next one is larger still");
}

#[tokio::test]
async fn a_floor_that_is_passed_already_changes_nothing() {
    let backend = MemoryBackend::new().unwrap();
    let first = acquire(&backend, &attempt().above(7)).await;
    assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
    assert_eq!(value(&acquire(&backend, &attempt().above(3)).await), 9);
}

#[tokio::test]
async fn a_floor_without_a_larger_value_is_refused_before_anything_is_done() {
    let backend = MemoryBackend::new().unwrap();
    for floor in [FencingToken::MAX_VALUE, u64::MAX] {
        let error = backend.acquire(&attempt().above(floor)).await.unwrap_err();
        assert!(matches!(error, LeaseError::InvalidFloor { .. }), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    let last = acquire(&backend, &attempt().above(FencingToken::MAX_VALUE - 1)).await;
    assert_eq!(value(&last), FencingToken::MAX_VALUE);
    assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
    assert!(matches!(backend.acquire(&attempt()).await, Err(LeaseError::TokenRange { .. })), "no overflow");
}

/// As of a backend that knows nothing of floors: the grant was made by a request without one, whose answer was lost.
#[tokio::test]
async fn a_grant_at_or_below_the_floor_is_given_up() {
    let store = MemoryBackend::new().unwrap();
    for floor in [1, 2] {
        let made = attempt();
        drop(acquire(&store, &made).await);
        let error = store.acquire(&made.as_held_up().above(floor)).await.unwrap_err();
        assert!(matches!(error, LeaseError::BelowFloor { effect: Effect::None, .. }), "{error}");
        assert!(error.to_string().contains("raise `epoch`"), "{error}");
        assert!(store.inspect(&name()).await.unwrap().held.is_none(), "given up");
    }
    // When that fails too, nobody knows.
    let backend = Scripted::new(Arc::new(store.clone()));
    backend.next(Operation::Abandon, Fault::RequestLost);
    let made = attempt();
    let lease = acquire(&store, &made).await;
    let error = accept_grant(&backend, &made.as_held_up().above(3), lease).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
}

/// The caller works under it: it is not taken away, only not called a grant above the floor.
#[tokio::test]
async fn a_grant_that_its_caller_has_already_is_left_alone() {
    let backend = MemoryBackend::new().unwrap();
    let made = attempt();
    let lease = acquire(&backend, &made).await;
    let error = backend.acquire(&made.above(value(&lease))).await.unwrap_err();
    assert!(matches!(error, LeaseError::BelowFloor { .. }), "{error}");
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_keeper_passes_it_on_and_the_destinations_mark_is_one() {
    let (old, new) = (MemoryBackend::new().unwrap(), Arc::new(MemoryBackend::new().unwrap()));
    let destination = MemoryDestination::new();
    assert_eq!(destination.read(&name()).await.unwrap().floor(), 0);
    let lease = acquire(&old, &attempt().above(40)).await;
    let token = lease.token().unwrap();
    destination.adopt(None, token.authority()).await.unwrap();
    destination.seal(&name(), token).await.unwrap();

    let keeper = Keeper::start(new).unwrap();
    let floor = destination.read(&name()).await.unwrap().floor();
    let guard = keeper.acquire("r", TTL, HoldOptions::default().above(floor)).await.unwrap().unwrap();
    assert_eq!(guard.token().map(FencingToken::value), Some(42));
}
