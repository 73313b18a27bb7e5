//! Acquiring through a keeper: an unknown outcome is resolved or cleaned up.

use crate::bench::{TTL, bench, settle};
use lease_core::hold::{HoldOptions, Keeper};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::Fault;
use lease_core::{Clock as _, Effect, LeaseBackend as _, LeaseError, LeaseExt as _, Operation, Release};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn an_unknown_acquire_is_resolved_by_the_same_attempt() {
    for fault in [Fault::ReplyLost, Fault::RequestLost] {
        let bench = bench();
        bench.backend.next(Operation::Acquire, fault);
        let (guard, ()) = tokio::join!(bench.keeper.acquire("r", TTL, HoldOptions::default()), async {
            settle().await;
            bench.pass(Duration::from_secs(1)).await;
        });
        let guard = guard.unwrap().unwrap();
        assert_eq!(bench.backend.calls(Operation::Acquire), 2);
        let inspection = bench.rival.inspect(guard.resource()).await.unwrap();
        assert_eq!(inspection.last_value, guard.token().map(lease_core::FencingToken::value));
    }
}

#[tokio::test]
async fn an_acquire_dropped_in_flight_is_abandoned() {
    let bench = bench();
    bench.backend.next(Operation::Acquire, Fault::SilentAfter);
    {
        let mut acquire = Box::pin(bench.keeper.acquire("r", TTL, HoldOptions::default()));
        tokio::select! {
            biased;
            _ = &mut acquire => unreachable!("its answer never comes"),
            () = settle() => {}
        }
        assert!(!bench.is_free().await, "the store made the grant");
    }
    settle().await;
    assert!(bench.is_free().await);
}

#[tokio::test]
async fn an_unknown_acquire_stays_unknown_when_its_repeats_are_refused() {
    let bench = bench();
    bench.backend.next(Operation::Acquire, Fault::ReplyLost);
    bench.backend.next(Operation::Acquire, Fault::Refused);
    let acquire = || bench.keeper.acquire("r", TTL, HoldOptions::default());
    let (guard, ()) = tokio::join!(acquire(), bench.pass(Duration::from_secs(1)));
    let guard = guard.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);

    bench.backend.next(Operation::Acquire, Fault::ReplyLost);
    bench.backend.always(Operation::Acquire, Some(Fault::Refused));
    let (refused, ()) = tokio::join!(acquire(), bench.pass(Duration::from_secs(8)));
    assert_eq!(refused.unwrap_err().effect(), Effect::Unknown, "the store made the grant");
    settle().await;
    assert!(bench.is_free().await, "and it was given up");
}

#[tokio::test]
async fn an_unknown_acquire_does_not_outlast_the_wait_by_a_ttl() {
    let bench = bench();
    bench.backend.always(Operation::Acquire, Some(Fault::ReplyLost));
    let begin = bench.clock.now();
    let long = Duration::from_hours(1);
    let acquire = async {
        let answer = bench.keeper.acquire("r", long, HoldOptions::default()).await;
        (answer, bench.clock.now().saturating_since(begin))
    };
    let ((answer, took), ()) = tokio::join!(acquire, bench.pass(Duration::from_mins(1)));
    assert_eq!(answer.unwrap_err().effect(), Effect::Unknown);
    assert!(took < Duration::from_secs(10), "{took:?}");
    settle().await;
    assert!(bench.is_free().await);
}

#[tokio::test]
async fn a_request_that_may_still_come_is_given_up_when_a_repeat_finds_another_holder() {
    let bench = bench();
    let _holder = bench.rival.try_acquire("r", TTL).await.unwrap().unwrap();
    bench.backend.next(Operation::Acquire, Fault::RequestLost);
    let acquire = bench.keeper.acquire("r", TTL, HoldOptions::default());
    let (answer, ()) = tokio::join!(acquire, bench.pass(Duration::from_secs(1)));
    assert!(answer.unwrap().is_none());
    settle().await;
    assert_eq!(bench.backend.calls(Operation::Abandon), 1);
    assert!(bench.keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().is_none());
    settle().await;
    assert_eq!(bench.backend.calls(Operation::Abandon), 1, "an attempt whose requests were answered needs no clean-up");
}

#[tokio::test]
async fn a_keeper_whose_runtime_has_ended_acquires_nothing() {
    let store = MemoryStore::new().unwrap();
    let backend = Arc::new(MemoryBackend::on(store.clone()));
    let keeper = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { Keeper::start(backend).unwrap() })
    })
    .join()
    .unwrap();
    let error = keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap_err();
    assert!(matches!(error, LeaseError::InvalidConfig { .. }), "nobody would renew it: {error}");
    assert!(MemoryBackend::on(store).try_acquire("r", TTL).await.unwrap().is_some());
}

/// Starts an acquire whose answer never comes, and drops it.
async fn dropped_in_flight(bench: &crate::bench::Bench) {
    bench.backend.next(Operation::Acquire, Fault::SilentAfter);
    tokio::select! {
        biased;
        _ = bench.keeper.acquire("r", TTL * 100, HoldOptions::default()) => unreachable!("its answer never comes"),
        () = settle() => {}
    }
}

#[tokio::test]
async fn what_nobody_waits_for_is_abandoned_again_until_the_store_has_heard_of_it() {
    let bench = bench();
    for fault in [Fault::RequestLost, Fault::Refused, Fault::RequestLost] {
        bench.backend.next(Operation::Abandon, fault);
    }
    dropped_in_flight(&bench).await;
    bench.pass(Duration::from_secs(1)).await;
    assert!(bench.is_free().await);
    assert_eq!(bench.backend.calls(Operation::Abandon), 4);
}

#[tokio::test]
async fn a_clean_up_that_nobody_hears_of_ends() {
    let bench = bench();
    bench.backend.always(Operation::Abandon, Some(Fault::RequestLost));
    dropped_in_flight(&bench).await;
    bench.pass(Duration::from_secs(20)).await;
    let tries = bench.backend.calls(Operation::Abandon);
    assert!((5..=10).contains(&tries), "{tries}");
    bench.pass(Duration::from_mins(1)).await;
    assert_eq!(bench.backend.calls(Operation::Abandon), tries);
    assert!(!bench.is_free().await, "its TTL ends it");
}

#[tokio::test]
async fn the_short_form_gives_a_grant_in_doubt_up_also_when_the_first_try_fails() {
    let bench = bench();
    bench.backend.next(Operation::Acquire, Fault::ReplyLost);
    bench.backend.next(Operation::Abandon, Fault::RequestLost);
    assert_eq!(bench.backend.try_acquire("r", TTL).await.unwrap_err().effect(), Effect::Unknown);
    assert_eq!(bench.backend.calls(Operation::Abandon), 2);
    assert!(bench.is_free().await);
}
