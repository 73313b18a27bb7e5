//! Waiting for a lease, through a keeper and in the short form: who is granted it, when, and for how long.

use crate::bench::{Bench, STEP, TTL, bench, settle};
use lease_core::hold::HoldOptions;
use lease_core::{BootInstant, Clock as _, LeaseBackend as _, LeaseExt as _, Release, ResourceName};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Waits in one of the two ways; what was granted, for how long, and when the answer was there.
async fn wait_in(keeper: bool, bench: &Bench, ttl: Duration, wait: Duration) -> (Option<Duration>, BootInstant) {
    let granted = if keeper {
        let guard = bench.keeper.acquire_within("r", ttl, wait, HoldOptions::default()).await.unwrap();
        guard.map(|guard| guard.into_hand_over().unwrap().into_lease(bench.clock.shared()).unwrap().granted_ttl())
    } else {
        bench.rival.acquire_within("r", ttl, wait).await.unwrap().map(|lease| lease.granted_ttl())
    };
    (granted, bench.clock.now())
}

#[tokio::test]
async fn the_limit_of_a_wait_and_a_ttl_are_apart() {
    for keeper in [true, false] {
        let bench = bench();
        let begin = bench.clock.now();
        let after = |at: BootInstant| at.saturating_since(begin);
        // Nobody renews it.
        let _held = bench.rival.acquire_within("r", SECOND * 30, SECOND).await.unwrap().unwrap();
        let held = bench.rival.inspect(&ResourceName::parse("r").unwrap()).await.unwrap().held.unwrap();
        assert_eq!(held.remaining, SECOND * 30, "the wait did not become its TTL");

        let ((granted, at), ()) = tokio::join!(wait_in(keeper, &bench, SECOND * 30, SECOND), bench.pass(SECOND * 2));
        assert_eq!(granted, None, "the TTL did not become its wait");
        assert!(after(at) >= SECOND && after(at) < SECOND + STEP, "{:?}", after(at));

        let ((granted, at), ()) = tokio::join!(wait_in(keeper, &bench, SECOND, SECOND * 60), bench.pass(SECOND * 40));
        assert_eq!(granted, Some(SECOND));
        assert!(after(at) >= SECOND * 30 && after(at) < SECOND * 31, "{:?}", after(at));
    }
}

#[tokio::test]
async fn every_form_of_waiting_makes_one_owner_at_a_time() {
    let bench = Arc::new(bench());
    let (owners, granted) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..50_u32 {
        let (bench, owners, granted) = (Arc::clone(&bench), Arc::clone(&owners), Arc::clone(&granted));
        let wait = [Duration::ZERO, Duration::from_nanos(1), SECOND, Duration::MAX][usize::try_from(n % 4).unwrap()];
        waiters.spawn(async move {
            // Other waits than that without an end may be over before it is their turn.
            let Some(guard) = bench.keeper.acquire_within("r", TTL, wait, HoldOptions::default()).await.unwrap() else {
                assert_ne!(wait, Duration::MAX);
                return;
            };
            assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two owners");
            bench.clock.sleep_until(bench.clock.now().saturating_add(STEP)).await;
            assert_eq!(owners.fetch_sub(1, Ordering::SeqCst), 1, "two owners");
            assert_eq!(guard.release().await.unwrap(), Release::Released);
            granted.fetch_add(1, Ordering::SeqCst);
        });
    }
    bench.pass(SECOND * 60).await;
    while let Some(done) = waiters.join_next().await {
        done.unwrap();
    }
    assert!(granted.load(Ordering::SeqCst) >= 12, "those that wait without an end: {granted:?}");
    settle().await;
    assert!(bench.is_free().await);
}
