//! Limits that the holder sets itself.

use crate::bench::{TTL, bench, settle};
use lease_core::hold::{HoldOptions, LossCause, StaleBehaviour};
use lease_core::{Operation, Release};
use std::time::Duration;

#[tokio::test]
async fn a_leaked_guard_is_renewed_until_its_hold_limit_and_ends_with_its_ttl() {
    let bench = bench();
    let guard = bench.acquire_with(HoldOptions::default().with_hold_limit(TTL * 2)).await;
    std::mem::forget(guard);
    bench.pass(TTL * 2).await;
    let renewals = bench.backend.calls(Operation::Renew);
    assert!(renewals >= 5, "{renewals}");
    assert!(!bench.is_free().await);
    bench.pass(TTL).await;
    assert!(bench.is_free().await);
    assert_eq!(bench.backend.calls(Operation::Renew), renewals, "nothing renews after the limit");
}

/// Released at the limit, it would let the next worker begin beside one that is stuck and may go on at any time.
#[tokio::test]
async fn a_stuck_worker_loses_its_lease_and_keeps_the_rest_of_its_ttl() {
    let bench = bench();
    let guard = bench.acquire_with(HoldOptions::default().with_progress_limit(TTL)).await;
    for _ in 0..5 {
        bench.pass(TTL / 2).await;
        guard.progress();
    }
    assert_eq!(guard.loss(), None);
    bench.pass(TTL).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::NoProgress);
    let renewals = bench.backend.calls(Operation::Renew);
    bench.pass(TTL / 2).await;
    assert!(!bench.is_free().await, "the last renewal was less than half a TTL before the limit");
    bench.pass(TTL / 2).await;
    assert!(bench.is_free().await);
    assert_eq!(bench.backend.calls(Operation::Renew), renewals);
    assert_eq!(bench.backend.calls(Operation::Release), 0);
}

#[tokio::test]
async fn after_a_limit_release_and_drop_free_the_resource_at_once() {
    let bench = bench();
    let limit = Duration::from_secs(2);
    for is_released in [true, false] {
        let guard = bench.acquire_with(HoldOptions::default().with_hold_limit(limit)).await;
        bench.pass(limit).await;
        assert_eq!(guard.loss().unwrap().cause(), LossCause::HoldLimit);
        assert!(!bench.is_free().await);
        if is_released {
            assert_eq!(guard.release().await.unwrap(), Release::Released, "no false loss: the store had it still");
        } else {
            drop(guard);
            settle().await;
        }
        assert!(bench.is_free().await);
    }
}

#[tokio::test]
async fn the_hold_limit_is_seen_at_the_first_touch() {
    let bench = bench();
    let limit = Duration::from_secs(2);
    let guard = bench.acquire_with(HoldOptions::default().with_hold_limit(limit)).await;
    assert!(guard.remaining() <= limit, "less is left than the deadline says");
    bench.clock.advance(limit);
    assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::HoldLimit);
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
