//! Many renewals due at once: few are under way at one time, the most urgent first, and nobody who can be saved loses a lease for that.

use crate::bench::{Bench, STEP, TTL, bench_with, settle};
use lease_core::hold::{HoldOptions, Keeper, KeeperOptions, LeaseGuard};
use lease_core::memory::MemoryBackend;
use lease_core::testing::Fault;
use lease_core::{LeaseBackend as _, LeaseError, Operation, ResourceName};
use std::sync::Arc;
use std::time::Duration;

fn crowd(renewals_at_once: u32) -> Bench {
    bench_with(KeeperOptions::default().with_renewals_at_once(renewals_at_once))
}

async fn hold(bench: &Bench, name: &str, ttl: Duration) -> LeaseGuard {
    let guard = bench.keeper.acquire(name, ttl, HoldOptions::default()).await.unwrap().unwrap();
    settle().await;
    guard
}

/// How long ago the store has renewed, or made, the grant.
async fn renewed_ago(bench: &Bench, name: &str) -> Duration {
    let inspection = bench.rival.inspect(&ResourceName::parse(name).unwrap()).await.unwrap();
    inspection.held.unwrap().renewed_ago.unwrap()
}

#[tokio::test]
async fn a_thousand_due_at_once_are_sent_a_few_at_a_time() {
    let bench = crowd(64);
    let mut guards = Vec::new();
    for n in 0..1_000 {
        guards.push(bench.keeper.acquire(&format!("r{n}"), TTL, HoldOptions::default()).await.unwrap().unwrap());
    }
    settle().await;
    bench.backend.always(Operation::Renew, Some(Fault::Late(STEP)));
    // A process that was paused: all are due at once.
    bench.clock.advance(TTL / 2);
    settle().await;
    bench.pass(STEP * 17).await;
    assert_eq!(bench.backend.most_at_once(Operation::Renew), 64);
    assert_eq!(bench.backend.calls(Operation::Renew), 1_000, "sixteen rounds are enough for all");
    assert!(guards.iter().all(|guard| guard.loss().is_none() && guard.remaining() > TTL / 2));
}

#[tokio::test]
async fn the_most_urgent_is_sent_first() {
    let bench = crowd(1);
    // Acquired in another order than that of their deadlines.
    let seconds = [24, 18, 27, 30, 21];
    let mut guards = Vec::new();
    for ttl in seconds {
        guards.push(hold(&bench, &format!("r{ttl}"), Duration::from_secs(ttl)).await);
    }
    bench.backend.always(Operation::Renew, Some(Fault::Late(STEP)));
    // A third of the longest TTL: all are due, and the shortest has still more than a third of its own left.
    bench.clock.advance(Duration::from_secs(10));
    settle().await;
    bench.pass(STEP * 5).await;
    let mut order = Vec::new();
    for ttl in seconds {
        order.push((renewed_ago(&bench, &format!("r{ttl}")).await, ttl));
    }
    order.sort_unstable();
    order.reverse();
    let order: Vec<_> = order.into_iter().map(|(_, ttl)| ttl).collect();
    assert_eq!(order, [18, 21, 24, 27, 30]);
}

#[tokio::test]
async fn a_stalled_renewal_gives_its_place_up_and_time_in_the_queue_is_no_time_out() {
    let bench = crowd(1);
    let (stalled, queued) = (hold(&bench, "stalled", TTL).await, hold(&bench, "queued", TTL).await);
    bench.backend.next(Operation::Renew, Fault::Silent);
    // Answered half a second after it was sent, which is longer after it was due than any try may take.
    bench.backend.next(Operation::Renew, Fault::Late(STEP * 5));
    bench.clock.advance(TTL / 3);
    settle().await;
    assert_eq!(bench.backend.calls(Operation::Renew), 1);
    bench.pass(Duration::from_secs(3)).await;
    assert_eq!(stalled.loss(), None);
    assert_eq!(queued.loss(), None);
    assert_eq!(bench.backend.calls(Operation::Renew), 3, "one stalled, the other, and the stalled one again");
    assert_eq!(bench.backend.most_at_once(Operation::Renew), 1);
}

#[tokio::test]
async fn no_lease_is_lost_for_a_stalled_one_that_has_the_only_place() {
    let bench = crowd(1);
    let hour = Duration::from_hours(1);
    let _slow = hold(&bench, "slow", hour).await;
    // A stalled renewal that has minutes before its time-out takes the only place.
    bench.backend.next(Operation::Renew, Fault::Silent);
    bench.clock.advance(hour / 3);
    settle().await;
    assert_eq!(bench.backend.most_at_once(Operation::Renew), 1);
    let guards = [hold(&bench, "a", TTL).await, hold(&bench, "b", TTL).await];
    bench.pass(TTL / 2).await;
    assert_eq!(bench.backend.calls(Operation::Renew), 1, "they wait while there is time");
    bench.pass(TTL * 5).await;
    assert!(guards.iter().all(|guard| guard.loss().is_none()));
    assert!(renewed_ago(&bench, "a").await < TTL * 2 / 3);
}

/// A thousand guards whose deadlines are not in the order in which they were acquired, each with its TTL; the shortest is `TTL`.
async fn thousand(bench: &Bench) -> Vec<(Duration, LeaseGuard)> {
    let mut guards = Vec::new();
    for n in 0..1_000 {
        let ttl = TTL + Duration::from_millis(n * 389 % 1_000);
        guards.push((ttl, bench.keeper.acquire(&format!("r{n}"), ttl, HoldOptions::default()).await.unwrap().unwrap()));
    }
    settle().await;
    guards.sort_by_key(|(ttl, _)| *ttl);
    guards
}

#[tokio::test]
async fn after_a_pause_that_left_little_time_all_are_saved_and_never_more_than_four_times_the_limit_are_sent() {
    for tenths in [7, 8] {
        let bench = crowd(64);
        let guards = thousand(&bench).await;
        bench.backend.always(Operation::Renew, Some(Fault::Late(STEP)));
        bench.clock.advance(TTL * tenths / 10);
        settle().await;
        assert_eq!(bench.backend.calls(Operation::Renew), 256, "0.{tenths} TTL: sent at once");
        bench.pass(STEP * 5).await;
        assert_eq!(bench.backend.most_at_once(Operation::Renew), 256, "0.{tenths} TTL");
        assert_eq!(bench.backend.calls(Operation::Renew), 1_000, "0.{tenths} TTL: each once");
        assert!(guards.iter().all(|(_, guard)| guard.loss().is_none()), "0.{tenths} TTL");
        let mut last = Duration::MAX;
        for (ttl, guard) in &guards {
            let ago = renewed_ago(&bench, guard.resource().as_str()).await;
            assert!(ago <= last, "0.{tenths} TTL: one with {ttl:?} was renewed before one whose deadline came first");
            last = ago;
        }
    }
}

#[tokio::test]
async fn what_is_too_much_for_the_time_left_is_saved_by_deadline_as_far_as_it_goes() {
    let bench = crowd(8);
    let guards = thousand(&bench).await;
    bench.backend.always(Operation::Renew, Some(Fault::Late(STEP)));
    // 1.71 s are left of the shortest: enough for sixteen rounds, which is as many as half of them need.
    bench.clock.advance(TTL * 8 / 10);
    settle().await;
    bench.pass(TTL / 2).await;
    assert_eq!(bench.backend.most_at_once(Operation::Renew), 32);
    let (first, rest) = guards.split_at(500);
    assert!(first.iter().all(|(_, guard)| guard.loss().is_none()));
    assert!(rest.iter().any(|(_, guard)| guard.loss().is_some()), "there were too many, or this shows nothing");
}

/// Renewals that stall take all places until their time-out; then the store answers again.
#[tokio::test]
async fn after_a_silence_that_left_little_time_all_are_saved() {
    let bench = crowd(64);
    let guards = thousand(&bench).await;
    bench.backend.always(Operation::Renew, Some(Fault::Silent));
    bench.pass(TTL * 7 / 10).await;
    bench.backend.always(Operation::Renew, None);
    bench.pass(TTL).await;
    assert_eq!(bench.backend.most_at_once(Operation::Renew), 256);
    assert!(guards.iter().all(|(_, guard)| guard.loss().is_none()));
}

#[tokio::test]
async fn a_keeper_that_could_not_renew_does_not_start() {
    let options = KeeperOptions::default().with_renewals_at_once(0);
    let refused = Keeper::start_with(Arc::new(MemoryBackend::new().unwrap()), options);
    assert!(matches!(refused, Err(LeaseError::InvalidConfig { .. })));
}

/// A distant store, whose answers take longer than a ninth of the TTL: those who had to wait for their turn have as long for a try as the others.
#[tokio::test]
async fn a_slow_store_costs_those_who_waited_no_lease() {
    for late in [TTL * 2 / 15, TTL / 5] {
        let bench = crowd(64);
        let mut guards = Vec::new();
        for n in 0..300 {
            guards.push(bench.keeper.acquire(&format!("r{n}"), TTL, HoldOptions::default()).await.unwrap().unwrap());
        }
        settle().await;
        bench.backend.always(Operation::Renew, Some(Fault::Late(late)));
        bench.pass(TTL * 3).await;
        let lost = guards.iter().filter(|guard| guard.loss().is_some()).count();
        assert_eq!(lost, 0, "answers after {late:?}");
    }
}
