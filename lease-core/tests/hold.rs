//! Holding a lease on virtual time, with scripted faults: loss is loud, on time and for good; nothing else is a loss.
#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a test may end at the first thing that is wrong"
)]

use lease_core::hold::{EnsureError, HoldOptions, Keeper, LeaseGuard, LossCause, RunError, StaleBehaviour};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::{Fault, Scripted};
use lease_core::{
    Clock as _, Effect, LeaseBackend, LeaseError, LeaseExt, ManualClock, Operation, Release, ResourceName, SystemClock,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(9);

/// How finely virtual time passes.
const STEP: Duration = Duration::from_millis(100);

struct Bench {
    clock: ManualClock,
    /// The holder's client.
    backend: Arc<Scripted>,
    keeper: Keeper,
    /// Another client of the same store.
    rival: MemoryBackend,
}

fn bench() -> Bench {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock.shared()).unwrap();
    let backend = Arc::new(Scripted::new(Arc::new(MemoryBackend::on(store.clone()))));
    let keeper = Keeper::start(backend.clone()).unwrap();
    Bench { clock, backend, keeper, rival: MemoryBackend::on(store) }
}

impl Bench {
    async fn acquire(&self) -> LeaseGuard {
        self.acquire_with(HoldOptions::default()).await
    }

    async fn acquire_with(&self, options: HoldOptions) -> LeaseGuard {
        let guard = self.keeper.acquire("r", TTL, options).await.unwrap().unwrap();
        settle().await;
        guard
    }

    /// Lets virtual time pass in small steps, and everybody act in each.
    async fn pass(&self, time: Duration) {
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.clock.advance(STEP);
            settle().await;
        }
    }

    async fn is_free(&self) -> bool {
        self.rival.inspect(&ResourceName::parse("r").unwrap()).await.unwrap().held.is_none()
    }
}

/// Lets all tasks of this single-threaded runtime run until they wait.
async fn settle() {
    for _ in 0..30 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn it_renews_after_a_third_of_the_ttl_and_keeps_the_token() {
    let bench = bench();
    let guard = bench.acquire().await;
    let token = guard.token().cloned();
    bench.pass(TTL * 10).await;
    assert_eq!(guard.loss(), None);
    assert_eq!(guard.token().cloned(), token);
    let renewals = bench.backend.calls(Operation::Renew);
    assert!((30..=40).contains(&renewals), "{renewals} renewals in ten TTLs");
    assert!(bench.rival.try_acquire("r", TTL).await.unwrap().is_none());
}

#[tokio::test]
async fn in_a_black_hole_it_is_lost_by_the_deadline_and_never_revived() {
    for fault in [Fault::Silent, Fault::SilentAfter, Fault::RequestLost, Fault::ReplyLost] {
        let bench = bench();
        let guard = bench.acquire().await;
        let deadline = bench.clock.now().saturating_add(guard.remaining());
        bench.backend.always(Operation::Renew, Some(fault));
        let waiter = async { guard.lost().await };
        let (loss, ()) = tokio::join!(waiter, bench.pass(TTL));
        assert_eq!(loss.cause(), LossCause::Unresolved, "{fault:?}");
        assert!(loss.at() >= deadline && loss.at() < deadline.saturating_add(STEP), "{fault:?}: noticed too late");
        bench.backend.always(Operation::Renew, None);
        bench.pass(TTL).await;
        assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::Unresolved, "{fault:?}");
    }
}

#[tokio::test]
async fn a_stalled_reply_and_a_short_fault_raise_no_loss() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.backend.next(Operation::Renew, Fault::Silent);
    bench.pass(TTL * 3).await;
    assert_eq!(guard.loss(), None, "one stalled reply");
    for fault in [Fault::RequestLost, Fault::Refused, Fault::ReplyLost] {
        bench.backend.always(Operation::Renew, Some(fault));
        bench.pass(Duration::from_secs(4)).await;
        bench.backend.always(Operation::Renew, None);
        bench.pass(TTL).await;
        assert_eq!(guard.loss(), None, "{fault:?}");
    }
}

#[tokio::test]
async fn a_definite_refusal_is_a_loss_at_once_with_its_reason() {
    let bench = bench();
    let guard = bench.acquire().await;
    let data = guard.into_hand_over().unwrap();
    let lease = data.clone().into_lease(bench.clock.shared()).unwrap();
    let guard = bench.keeper.hold(data.into_lease(bench.clock.shared()).unwrap(), HoldOptions::default());
    assert_eq!(bench.rival.release(&lease).await.unwrap(), Release::Released);
    bench.pass(Duration::from_secs(4)).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::ReleasedElsewhere);

    let guard = bench.acquire().await;
    let lease = guard.into_hand_over().unwrap().into_lease(bench.clock.shared()).unwrap();
    let guard = bench.keeper.hold(lease.clone(), HoldOptions::default());
    assert_eq!(bench.rival.release(&lease).await.unwrap(), Release::Released);
    let _newer = bench.rival.try_acquire("r", TTL).await.unwrap().unwrap();
    bench.pass(Duration::from_secs(4)).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Superseded);
}

#[tokio::test]
async fn a_process_that_slept_learns_it_at_the_first_touch() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.clock.advance(TTL);
    assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::Expired);
    assert!(matches!(guard.ensure(Duration::ZERO), Err(EnsureError::Lost(loss)) if loss.cause() == LossCause::Expired));
    let renewals = bench.backend.calls(Operation::Renew);
    bench.pass(TTL).await;
    assert_eq!(bench.backend.calls(Operation::Renew), renewals, "a lost lease is not renewed");
}

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
async fn limits_end_a_leaked_and_a_stuck_guard() {
    let bench = bench();
    let guard = bench.acquire_with(HoldOptions::default().with_hold_limit(TTL * 2)).await;
    std::mem::forget(guard);
    bench.pass(Duration::from_millis(17_900)).await;
    assert!(!bench.is_free().await);
    bench.pass(Duration::from_millis(200)).await;
    assert!(bench.is_free().await, "released at its hold limit");

    let guard = bench.acquire_with(HoldOptions::default().with_progress_limit(TTL)).await;
    for _ in 0..5 {
        bench.pass(TTL / 2).await;
        guard.progress();
    }
    assert_eq!(guard.loss(), None);
    bench.pass(TTL + Duration::from_millis(100)).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::NoProgress);
    assert!(bench.is_free().await);
}

#[tokio::test]
async fn run_tells_loss_from_failure_and_stops_the_work() {
    struct Dropped<'a>(&'a AtomicBool);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let bench = bench();
    let guard = bench.acquire().await;
    assert_eq!(guard.run(async |_| Ok::<_, ()>(7)).await.unwrap(), 7);
    assert!(matches!(guard.run(async |_| Err::<(), _>("broke")).await, Err(RunError::Work("broke"))));
    let stopped = AtomicBool::new(false);
    bench.backend.always(Operation::Renew, Some(Fault::Silent));
    let work = guard.run(async |_| {
        let _dropped = Dropped(&stopped);
        std::future::pending::<Result<(), ()>>().await
    });
    let (result, ()) = tokio::join!(work, bench.pass(TTL));
    assert!(matches!(result, Err(RunError::Lost(_))));
    assert!(stopped.load(Ordering::SeqCst));
    assert!(matches!(guard.run(async |_| Ok::<_, ()>(())).await, Err(RunError::Lost(_))), "not begun at all");
}

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
async fn on_the_real_clock_a_guard_begins_with_its_whole_ttl() {
    let keeper = Keeper::start(Arc::new(MemoryBackend::new().unwrap())).unwrap();
    let guard = keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap();
    assert!(guard.remaining() <= TTL && guard.remaining() > TTL / 2);
    guard.ensure(TTL / 2).unwrap();
    assert!(matches!(guard.ensure(TTL), Err(EnsureError::TooLittle { needed: TTL, .. })));
    let permit = guard.permit(StaleBehaviour::Unprotected { reason: "a test" }).unwrap();
    assert!(permit.given_at() <= lease_core::Clock::now(&SystemClock));
    permit.committed();
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
async fn renewals_that_came_together_part_again() {
    let bench = bench();
    let mut guards = Vec::new();
    for n in 0..50 {
        guards.push(bench.keeper.acquire(&format!("r{n}"), TTL, HoldOptions::default()).await.unwrap().unwrap());
    }
    settle().await;
    // A machine that stalled: all renewals are due at once.
    bench.clock.advance(TTL / 2);
    for _ in 0..10 {
        settle().await;
    }
    let mut before = bench.backend.calls(Operation::Renew);
    assert_eq!(before, 50);
    let mut most = 0;
    for _ in 0..40 {
        bench.pass(STEP).await;
        settle().await;
        let now = bench.backend.calls(Operation::Renew);
        most = most.max(now - before);
        before = now;
    }
    assert!(most < 40, "{most} of 50 in one step");
    assert!(guards.iter().all(|guard| guard.loss().is_none()));
}

#[tokio::test]
async fn work_that_ends_after_the_deadline_is_no_success() {
    let bench = bench();
    let guard = bench.acquire().await;
    // The process is paused in the middle of a step of the work, and the work ends in that very step.
    let paused = guard.run(async |_| {
        bench.clock.advance(TTL);
        Ok::<_, ()>(())
    });
    assert!(matches!(paused.await, Err(RunError::Lost(_))));
}

#[tokio::test]
async fn the_hold_limit_is_seen_at_the_first_touch() {
    let bench = bench();
    let limit = Duration::from_secs(2);
    let guard = bench.acquire_with(HoldOptions::default().with_hold_limit(limit)).await;
    assert!(guard.remaining() <= limit, "less is left than the deadline says");
    bench.clock.advance(limit);
    assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::HoldLimit);
    settle().await;
    assert!(bench.is_free().await, "and it is released");
}

#[tokio::test]
async fn a_deadline_that_passes_during_a_renewal_is_unresolved() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.backend.next(Operation::Renew, Fault::Silent);
    bench.pass(Duration::from_secs(3)).await;
    assert_eq!(bench.backend.calls(Operation::Renew), 1);
    bench.clock.advance(TTL);
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Unresolved);
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

#[tokio::test]
async fn a_late_report_of_progress_revives_nothing() {
    let bench = bench();
    let limit = Duration::from_secs(2);
    let guard = bench.acquire_with(HoldOptions::default().with_progress_limit(limit)).await;
    bench.clock.advance(limit);
    guard.progress();
    assert_eq!(guard.loss().unwrap().cause(), LossCause::NoProgress);
}

#[tokio::test]
async fn a_release_whose_answer_never_came_is_in_doubt() {
    for fault in [Fault::Silent, Fault::SilentAfter] {
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
