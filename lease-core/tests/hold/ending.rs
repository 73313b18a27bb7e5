//! Release and drop: afterwards nothing renews, and nothing is lost.

use crate::bench::{TTL, bench, settle};
use lease_core::hold::{HoldOptions, Keeper, LossCause};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::Fault;
use lease_core::{Effect, LeaseBackend as _, LeaseError, LeaseExt as _, ManualClock, Operation, Release, SystemClock};
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

/// Renewals whose replies were lost have prolonged it: without a release nobody could have it for one more TTL.
#[tokio::test]
async fn a_lost_guard_frees_what_the_store_still_has() {
    for fault in [Fault::ReplyLost, Fault::SilentAfter] {
        for is_released in [true, false] {
            let bench = bench();
            let guard = bench.acquire().await;
            bench.backend.always(Operation::Renew, Some(fault));
            bench.pass(TTL).await;
            assert_eq!(guard.loss().unwrap().cause(), LossCause::Unresolved, "{fault:?}");
            assert!(!bench.is_free().await, "{fault:?}");
            if is_released {
                assert_eq!(guard.release().await.unwrap(), Release::Released, "{fault:?}");
            } else {
                drop(guard);
                settle().await;
            }
            assert!(bench.is_free().await, "{fault:?}");
            assert_eq!(bench.backend.calls(Operation::Release), 1, "{fault:?}");
        }
    }
}

#[tokio::test]
async fn a_release_of_a_lost_guard_that_nobody_waits_for_goes_on() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.backend.always(Operation::Renew, Some(Fault::ReplyLost));
    bench.pass(TTL).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Unresolved);
    bench.backend.next(Operation::Release, Fault::Silent);
    tokio::select! {
        biased;
        _ = guard.release() => unreachable!("its answer never comes"),
        () = settle() => {}
    }
    settle().await;
    assert!(bench.is_free().await);
}

/// On another machine a lease begins as past its deadline, however long the store has it.
#[tokio::test]
async fn a_guard_that_was_past_its_deadline_from_the_first_frees_the_resource() {
    let bench = bench();
    let data = bench.acquire().await.into_hand_over().unwrap();
    let guard = bench.keeper.hold(data.into_lease(SystemClock::shared()).unwrap(), HoldOptions::default());
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    assert!(!bench.is_free().await);
    drop(guard);
    settle().await;
    assert!(bench.is_free().await);
}

#[tokio::test]
async fn a_guard_whose_end_the_store_has_told_sends_no_release() {
    let bench = bench();
    let guard = bench.acquire().await;
    assert_eq!(bench.rival.release(&guard.lease()).await.unwrap(), Release::Released);
    bench.pass(TTL / 2).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::ReleasedElsewhere);
    let _newer = bench.rival.try_acquire("r", TTL).await.unwrap().unwrap();
    drop(guard);
    settle().await;
    assert_eq!(bench.backend.calls(Operation::Release), 0);
    assert!(!bench.is_free().await);
}

/// Nothing in the process stands for a lease, so nothing is left locked when a guard ends in a bad way.
#[tokio::test]
async fn a_release_that_fails_or_comes_too_late_keeps_nobody_of_the_process_out() {
    let bench = bench();
    let again = || bench.keeper.acquire_within("r", TTL, TTL * 2, HoldOptions::default());

    let late = bench.acquire().await;
    bench.clock.advance(TTL);
    assert_eq!(late.release().await.unwrap(), Release::NotHeld);
    assert_eq!(again().await.unwrap().unwrap().release().await.unwrap(), Release::Released);

    for fault in [Fault::RequestLost, Fault::ReplyLost] {
        let in_doubt = bench.acquire().await;
        bench.backend.next(Operation::Release, fault);
        assert_eq!(in_doubt.release().await.unwrap_err().effect(), Effect::Unknown);
        let (next, ()) = tokio::join!(again(), bench.pass(TTL * 2));
        assert_eq!(next.unwrap().unwrap().release().await.unwrap(), Release::Released, "{fault:?}");
    }

    let guard = bench.acquire().await;
    let task = tokio::spawn(async move {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("the work panicked"));
    });
    assert!(task.await.unwrap_err().is_panic());
    settle().await;
    assert_eq!(again().await.unwrap().unwrap().release().await.unwrap(), Release::Released);
}

/// Whose connection was found broken by the first try, say.
#[tokio::test]
async fn a_dropped_guard_is_released_again_until_the_store_has_heard_of_it() {
    let bench = bench();
    let guard = bench.acquire().await;
    for fault in [Fault::RequestLost, Fault::Refused, Fault::ReplyLost] {
        bench.backend.next(Operation::Release, fault);
    }
    drop(guard);
    bench.pass(Duration::from_secs(1)).await;
    assert!(bench.is_free().await);
    assert_eq!(bench.backend.calls(Operation::Release), 4);
    bench.pass(TTL).await;
    assert_eq!(bench.backend.calls(Operation::Release), 4, "once it is done, it is done");
}

/// How many of the resources `0`, `1`, … are held.
async fn held(bench: &crate::bench::Bench, resources: u32) -> Vec<u32> {
    let mut held = Vec::new();
    for n in 0..resources {
        let name = lease_core::ResourceName::parse(n.to_string()).unwrap();
        if bench.rival.inspect(&name).await.unwrap().held.is_some() {
            held.push(n);
        }
    }
    held
}

/// While the store is silent, 64 releases are under way, 10,000 wait, and the oldest of more are left to their TTL.
#[tokio::test]
async fn what_is_done_in_the_background_has_a_limit() {
    let bench = bench();
    bench.backend.always(Operation::Release, Some(Fault::Late(Duration::from_secs(1))));
    let day = Duration::from_hours(24);
    let dropped = 5;
    let all = 64 + 10_000 + dropped;
    for n in 0..all {
        let guard = bench.keeper.acquire(&n.to_string(), day, HoldOptions::default()).await.unwrap().unwrap();
        drop(guard);
        // The keeper's task hears of it.
        tokio::task::yield_now().await;
    }
    settle().await;
    assert_eq!((bench.backend.calls(Operation::Release), bench.backend.most_at_once(Operation::Release)), (64, 64));
    // The store answers again. Those are done in the order in which they came.
    bench.backend.always(Operation::Release, None);
    bench.clock.advance(Duration::from_secs(1));
    while bench.backend.calls(Operation::Release) < u64::from(all - dropped) {
        settle().await;
    }
    for _ in 0..10 {
        settle().await;
    }
    assert_eq!(bench.backend.most_at_once(Operation::Release), 64);
    assert_eq!(held(&bench, all).await, [64, 65, 66, 67, 68], "the oldest that waited");
    bench.clock.advance(day);
    assert_eq!(held(&bench, all).await, [0; 0], "the TTL ends them");
}
