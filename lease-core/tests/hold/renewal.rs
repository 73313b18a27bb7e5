//! Renewal goes on by itself, and a short fault is no loss.

use crate::bench::{STEP, TTL, bench, settle};
use lease_core::hold::{EnsureError, HoldOptions, Keeper, StaleBehaviour};
use lease_core::memory::MemoryBackend;
use lease_core::testing::Fault;
use lease_core::{LeaseBackend as _, LeaseExt as _, Operation, Renewal, SystemClock};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn it_renews_after_a_third_of_the_ttl_and_keeps_the_token() {
    let bench = bench();
    let guard = bench.acquire().await;
    let token = guard.token().cloned();
    bench.pass(TTL * 10).await;
    assert_eq!(guard.loss(), None);
    assert_eq!(guard.token().cloned(), token);
    assert_eq!(guard.lease().remaining(), guard.remaining(), "the data are those of the latest renewal");
    let renewals = bench.backend.calls(Operation::Renew);
    assert!((30..=40).contains(&renewals), "{renewals} renewals in ten TTLs");
    assert!(bench.rival.try_acquire("r", TTL).await.unwrap().is_none());
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
async fn the_deadline_counts_from_before_a_renewal_was_sent_that_came_late() {
    let bench = bench();
    let lease = bench.backend.try_acquire("r", TTL).await.unwrap().unwrap();
    let (late, before) = (Duration::from_secs(2), lease.remaining());
    bench.clock.advance(TTL / 3);
    bench.backend.next(Operation::Renew, Fault::Late(late));
    let (renewal, ()) = tokio::join!(bench.backend.renew(&lease), bench.pass(late));
    let Renewal::Renewed(renewed) = renewal.unwrap() else { unreachable!("the store had it all the time") };
    assert_eq!(renewed.remaining(), before.saturating_sub(late));

    let guard = bench.keeper.hold(renewed, HoldOptions::default());
    settle().await;
    bench.backend.next(Operation::Renew, Fault::Late(STEP * 5));
    let calls = bench.backend.calls(Operation::Renew);
    while bench.backend.calls(Operation::Renew) == calls {
        bench.pass(STEP).await;
    }
    bench.pass(STEP * 5).await;
    assert_eq!(guard.remaining(), before.saturating_sub(STEP * 5), "a guard's, too");
}
