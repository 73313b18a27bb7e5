//! Release and drop: afterwards nothing renews, and nothing is lost.

use crate::bench::{TTL, bench, settle};
use lease_core::hold::{HoldOptions, Keeper};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::Fault;
use lease_core::{LeaseBackend as _, LeaseError, LeaseExt as _, ManualClock, Operation, Release};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn after_a_release_nothing_renews_and_nothing_is_lost() {
    let bench = bench();
    let guard = bench.acquire().await;
    // A renewal is on its way when the release comes.
    bench.backend.next(Operation::Renew, Fault::SilentAfter);
    bench.pass(Duration::from_secs(3)).await;
    assert_eq!(bench.backend.calls(Operation::Renew), 1);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(bench.is_free().await);
    bench.pass(TTL * 2).await;
    assert_eq!(bench.backend.calls(Operation::Renew), 1);
}

#[tokio::test]
async fn a_dropped_guard_releases_and_a_panic_does_too() {
    let bench = bench();
    drop(bench.acquire().await);
    settle().await;
    assert!(bench.is_free().await);
    let guard = bench.acquire().await;
    let task = tokio::spawn(async move {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("the work panicked"));
    });
    assert!(task.await.unwrap_err().is_panic());
    settle().await;
    assert!(bench.is_free().await);
    bench.pass(TTL).await;
    assert_eq!(bench.backend.calls(Operation::Renew), 0);
}

#[tokio::test]
async fn a_guard_dropped_without_a_runtime_harms_nobody() {
    let guard = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let keeper = Keeper::start(Arc::new(MemoryBackend::new().unwrap())).unwrap();
            keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap()
        })
    })
    .join()
    .unwrap();
    assert_eq!(guard.loss(), None, "its clock still tells");
    drop(guard);
    assert!(matches!(
        std::thread::spawn(|| Keeper::start(Arc::new(MemoryBackend::new().unwrap()))).join().unwrap(),
        Err(LeaseError::InvalidConfig { .. })
    ));
}

#[tokio::test]
async fn ten_thousand_quick_pairs_leave_no_renewal() {
    let bench = bench();
    for _ in 0..10_000 {
        let guard = bench.keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    bench.pass(TTL * 2).await;
    assert_eq!(bench.backend.calls(Operation::Renew), 0);
    assert!(bench.is_free().await);
}

#[tokio::test]
async fn guards_that_are_gone_cost_nothing() {
    let clock = ManualClock::new().shared();
    let keeper =
        Keeper::start(Arc::new(MemoryBackend::on(MemoryStore::on_clock(Arc::clone(&clock)).unwrap()))).unwrap();
    settle().await;
    let before = Arc::strong_count(&clock);
    let day = Duration::from_hours(24);
    for n in 0..100 {
        let acquire = async |kind: &str| {
            keeper.acquire(&format!("{kind}{n}"), day, HoldOptions::default()).await.unwrap().unwrap()
        };
        assert_eq!(acquire("released").await.release().await.unwrap(), Release::Released);
        drop(acquire("dropped").await);
        drop(acquire("handed over").await.into_hand_over().unwrap());
    }
    for _ in 0..100 {
        settle().await;
    }
    assert_eq!(Arc::strong_count(&clock), before, "though no virtual time has passed");
}

#[tokio::test]
async fn a_release_that_nobody_waits_for_goes_on() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.backend.next(Operation::Release, Fault::Silent);
    let mut release = Box::pin(guard.release());
    tokio::select! {
        biased;
        _ = &mut release => unreachable!("its answer never comes"),
        () = settle() => {}
    }
    assert!(!bench.is_free().await);
    drop(release);
    settle().await;
    assert!(bench.is_free().await);
}

#[tokio::test]
async fn a_release_whose_answer_never_came_is_in_doubt() {
    for fault in [Fault::Silent, Fault::SilentAfter, Fault::Late(TTL)] {
        let bench = bench();
        let lease = bench.backend.try_acquire("r", TTL).await.unwrap().unwrap();
        bench.backend.next(Operation::Release, fault);
        tokio::select! {
            biased;
            _ = bench.backend.release(&lease) => unreachable!("its answer never comes"),
            () = settle() => {}
        }
        bench.clock.advance(TTL);
        let _newer = bench.rival.try_acquire("r", TTL).await.unwrap().unwrap();
        assert_eq!(bench.backend.release(&lease).await.unwrap(), Release::EndedCauseUnknown, "{fault:?}");
    }
}
