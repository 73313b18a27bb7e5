//! A machine that slept, which is a jump of the boot clock in which nothing ran: the first touch tells, whatever it is.

use crate::bench::{TTL, bench};
use lease_core::hold::{EnsureError, HoldOptions, LeaseGuard, LossCause, RunError, StaleBehaviour};
use lease_core::{LeaseBackend as _, LossReason, Operation, Renewal};
use std::time::Duration;

/// A touch, and the cause that it tells.
type Touch = (&'static str, fn(&LeaseGuard) -> Option<LossCause>);

const TOUCHES: [Touch; 5] = [
    ("permit", |guard| guard.permit(StaleBehaviour::Fenced).err().map(|loss| loss.cause())),
    ("ensure", |guard| match guard.ensure(Duration::ZERO) {
        Err(EnsureError::Lost(loss)) => Some(loss.cause()),
        _ => None,
    }),
    ("remaining", |guard| {
        assert_eq!(guard.remaining(), Duration::ZERO);
        guard.loss().map(|loss| loss.cause())
    }),
    ("loss", |guard| guard.loss().map(|loss| loss.cause())),
    ("progress", |guard| {
        guard.progress();
        guard.loss().map(|loss| loss.cause())
    }),
];

#[tokio::test]
async fn every_touch_of_a_guard_tells() {
    for (name, touch) in TOUCHES {
        let bench = bench();
        let guard = bench.acquire().await;
        let last = Duration::from_nanos(1);
        bench.clock.advance(guard.remaining().saturating_sub(last));
        assert_eq!(guard.remaining(), last, "held until the very end");
        bench.clock.advance(last);
        assert_eq!(touch(&guard), Some(LossCause::Expired), "{name}");
        bench.pass(TTL).await;
        assert_eq!(bench.backend.calls(Operation::Renew), 0, "a lost lease is not renewed");
        assert_eq!(guard.loss().map(|loss| loss.cause()), Some(LossCause::Expired), "{name}: for good");
    }
}

#[tokio::test]
async fn work_is_not_begun_and_lost_tells_at_once() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.clock.advance(TTL);
    let run = guard.run(|_| -> std::future::Ready<Result<(), ()>> { unreachable!("not even called") }).await;
    assert!(matches!(run, Err(RunError::Lost(loss)) if loss.cause() == LossCause::Expired));

    let guard = bench.acquire().await;
    bench.clock.advance(TTL);
    assert_eq!(guard.lost().await.cause(), LossCause::Expired);
}

/// The machine sleeps while the work waits for something, and what it waited for is there when it wakes up.
#[tokio::test]
async fn work_that_was_under_way_is_stopped_before_its_next_step() {
    let bench = bench();
    let guard = bench.acquire().await;
    let run = guard.run(async |_| {
        bench.clock.advance(TTL);
        tokio::task::yield_now().await;
        unreachable!("the next step");
        #[expect(unreachable_code, reason = "it gives the work its type")]
        Ok::<(), ()>(())
    });
    assert!(matches!(run.await, Err(RunError::Lost(loss)) if loss.cause() == LossCause::Expired));
}

#[tokio::test]
async fn a_lease_that_slept_on_its_way_to_another_process_is_past_its_deadline() {
    let bench = bench();
    let data = bench.acquire().await.into_hand_over().unwrap();
    bench.clock.advance(TTL);
    let lease = data.into_lease(bench.clock.shared()).unwrap();
    assert!(lease.is_past_deadline());
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert!(matches!(bench.backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Expired)));
    let guard = bench.keeper.hold(lease, HoldOptions::default());
    assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::Expired);
}

#[tokio::test]
async fn a_lease_that_was_taken_over_and_slept_tells_at_its_first_touch() {
    let bench = bench();
    let data = bench.acquire().await.into_hand_over().unwrap();
    let guard = bench.keeper.hold(data.into_lease(bench.clock.shared()).unwrap(), HoldOptions::default());
    assert!(guard.remaining() > TTL / 2);
    bench.clock.advance(TTL);
    assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::Expired);

    let guard = bench.acquire().await;
    bench.clock.advance(TTL);
    assert_eq!(guard.into_hand_over().unwrap_err().cause(), LossCause::Expired, "and it is not given away");
}
