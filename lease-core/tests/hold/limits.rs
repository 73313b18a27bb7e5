//! Limits that the holder sets itself.

use crate::bench::{TTL, bench, settle};
use lease_core::hold::{HoldOptions, LossCause, StaleBehaviour};
use std::time::Duration;

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
async fn a_late_report_of_progress_revives_nothing() {
    let bench = bench();
    let limit = Duration::from_secs(2);
    let guard = bench.acquire_with(HoldOptions::default().with_progress_limit(limit)).await;
    bench.clock.advance(limit);
    guard.progress();
    assert_eq!(guard.loss().unwrap().cause(), LossCause::NoProgress);
}
