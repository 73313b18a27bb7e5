//! Work under a lease, stopped when it is lost.

use crate::bench::{TTL, bench, settle};
use lease_core::hold::{LeaseGuard, LossCause, RunError, StaleBehaviour};
use lease_core::testing::Fault;
use lease_core::{LeaseError, Operation};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
async fn a_failure_keeps_its_chain() {
    let bench = bench();
    let guard = bench.acquire().await;
    let fail = async || guard.run(async |_| Err::<(), _>(std::io::Error::other("disk full"))).await.unwrap_err();
    let error = fail().await;
    assert_eq!(error.to_string(), "the work failed", "whoever prints the chain has the rest once");
    assert_eq!(error.source().unwrap().downcast_ref::<std::io::Error>().unwrap().to_string(), "disk full");
    assert!(fail().await.into_boxed().is::<std::io::Error>());

    // A box is no error of its own, so it has no chain until it is taken out.
    let boxed = guard.run(async |_| Err::<(), Box<dyn Error + Send + Sync>>("broke".into())).await.unwrap_err();
    assert_eq!(boxed.into_boxed().to_string(), "broke");
    bench.clock.advance(TTL);
    let lost = guard.run(async |_| Ok::<_, LeaseError>(())).await.unwrap_err();
    assert!(lost.source().is_none());
    let lost = lost.into_boxed();
    assert_eq!(lost.downcast_ref::<lease_core::hold::Loss>().unwrap().cause(), LossCause::Expired);
}

/// A lease that is still held when the last of its work is gone.
struct Work<'a> {
    guard: &'a LeaseGuard,
    was_held: &'a AtomicBool,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.was_held.store(self.guard.permit(StaleBehaviour::Fenced).is_ok(), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn work_that_is_cancelled_has_ended_before_its_lease() {
    let bench = bench();
    let was_held = Arc::new(AtomicBool::new(false));
    let guard = bench.acquire().await;
    let task = tokio::spawn({
        let was_held = Arc::clone(&was_held);
        async move {
            let work = guard.run(async |guard| {
                let _work = Work { guard, was_held: &was_held };
                std::future::pending::<Result<(), ()>>().await
            });
            work.await.unwrap();
        }
    });
    // Renewed as long as the work runs.
    bench.pass(TTL * 2).await;
    assert!(!bench.is_free().await);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(was_held.load(Ordering::SeqCst), "the lease was given up first");
    settle().await;
    assert!(bench.is_free().await);
}
