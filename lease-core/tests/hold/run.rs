//! Work under a lease, stopped when it is lost.

use crate::bench::{TTL, bench};
use lease_core::Operation;
use lease_core::hold::RunError;
use lease_core::testing::Fault;
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
