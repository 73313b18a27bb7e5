//! The documented names of events and series, as others see them.
#![cfg(feature = "metrics")]
#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is wrong")]

use lease_core::hold::{HoldOptions, Keeper, StaleBehaviour};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::{Fault, Scripted};
use lease_core::{ForceRelease, Forced, HolderLabel, LeaseBackend, LeaseError, ManualClock, Operation, ResourceName};
use metrics_util::debugging::DebuggingRecorder;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};

const TTL: Duration = Duration::from_secs(9);

/// Keeps every event's fields as text.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "leasehold"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// One life of everything: granted, renewed, failed to renew, worked, refused, released, lost.
async fn life() {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock.shared()).unwrap();
    let backend = Arc::new(Scripted::new(Arc::new(MemoryBackend::on(store))));
    let keeper = Keeper::start(backend.clone()).unwrap();
    let pass = async |time: Duration| {
        clock.advance(time);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    let guard = keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap();
    pass(Duration::ZERO).await;
    pass(Duration::from_secs(3)).await;
    backend.next(Operation::Renew, Fault::Refused);
    pass(Duration::from_secs(3)).await;
    guard.permit(StaleBehaviour::Fenced).unwrap().committed();
    guard.permit(StaleBehaviour::Unprotected { reason: "only a test" }).unwrap().refused();
    guard.run(async |_| Err::<(), _>("broke")).await.unwrap_err();
    assert_eq!(guard.release().await.unwrap(), lease_core::Release::Released);
    let lost = keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap();
    clock.advance(TTL);
    assert!(lost.loss().is_some());
}

fn observe(life: impl Future<Output = ()>) -> (Vec<String>, BTreeSet<String>) {
    let events = Events::default();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tracing::subscriber::with_default(events.clone(), || {
        metrics::with_local_recorder(&recorder, || runtime.block_on(life));
    });
    let series = snapshotter.snapshot().into_vec().into_iter().map(|(key, ..)| {
        let labels: Vec<String> = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        format!("{} {}", key.key().name(), labels.join(",")).trim().to_owned()
    });
    let series = series.collect();
    let events = events.0.lock().unwrap().clone();
    (events, series)
}

#[test]
fn every_documented_name_is_seen_and_no_secret() {
    let (events, series) = observe(life());
    for name in [
        "attempt",
        "granted",
        "renewed",
        "renewal_failed",
        "lost",
        "permit",
        "work_started",
        "work_failed",
        "effect_committed",
        "effect_refused",
        "released",
    ] {
        let event = events.iter().find(|event| event.contains(&format!("event=\"{name}\"")));
        let event = event.unwrap_or_else(|| panic!("{name} is missing in {events:#?}"));
        assert!(event.contains("resource=r "), "{event}");
    }
    assert!(events.iter().any(|e| e.contains("reason=\"only a test\"")), "an unprotected effect gives its reason");
    assert!(events.iter().all(|e| !e.contains("owner")));
    for expected in [
        "leasehold_attempts_total",
        "leasehold_grants_total",
        "leasehold_releases_total",
        "leasehold_renewals_total outcome=renewed",
        "leasehold_renewals_total outcome=failed",
        "leasehold_losses_total reason=expired",
        "leasehold_work_failures_total",
        "leasehold_permits_total behaviour=fenced",
        "leasehold_permits_total behaviour=unprotected",
        "leasehold_effects_committed_total behaviour=fenced",
        "leasehold_stale_writes_refused_total behaviour=unprotected",
        "leasehold_wait_seconds",
        "leasehold_hold_seconds",
        "leasehold_renewal_slack_seconds",
    ] {
        assert!(series.contains(expected), "{expected} is missing in {series:#?}");
    }
}

/// A guard that is released, and one that is dropped, each while a renewal is under way.
async fn ended_while_renewing() {
    let clock = ManualClock::new();
    let backend = Arc::new(Scripted::new(Arc::new(MemoryBackend::on(MemoryStore::on_clock(clock.shared()).unwrap()))));
    let keeper = Keeper::start(backend.clone()).unwrap();
    let settle = async || {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    for (is_released, renewals) in [(true, 1), (false, 2)] {
        let guard = keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap();
        settle().await;
        backend.next(Operation::Renew, Fault::Silent);
        clock.advance(Duration::from_secs(3));
        settle().await;
        assert_eq!(backend.calls(Operation::Renew), renewals);
        if is_released {
            assert_eq!(guard.release().await.unwrap(), lease_core::Release::Released);
        } else {
            drop(guard);
        }
        settle().await;
    }
}

#[test]
fn ending_a_lease_while_it_is_renewed_is_no_failure() {
    let (events, series) = observe(ended_while_renewing());
    let of = |name: &str| events.iter().filter(|event| event.contains(&format!("event=\"{name}\""))).count();
    assert_eq!((of("renewal_failed"), of("lost")), (0, 0), "{events:#?}");
    assert_eq!((of("granted"), of("released")), (2, 2), "a dropped guard is seen to end: {events:#?}");
    assert!(!series.contains("leasehold_renewals_total outcome=failed"));
}

/// One guard more is dropped than may wait for a store that is silent.
async fn one_too_many() {
    let clock = ManualClock::new();
    let backend = Arc::new(Scripted::new(Arc::new(MemoryBackend::on(MemoryStore::on_clock(clock.shared()).unwrap()))));
    let keeper = Keeper::start(backend.clone()).unwrap();
    backend.always(Operation::Release, Some(Fault::Silent));
    for n in 0..10_065 {
        drop(keeper.acquire(&format!("r{n}"), TTL, HoldOptions::default()).await.unwrap().unwrap());
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_release_that_is_given_up_is_told() {
    let (events, series) = observe(one_too_many());
    let dropped: Vec<_> = events.iter().filter(|event| event.contains("event=\"clean_up_dropped\"")).collect();
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert!(dropped[0].contains("resource=r64 ") && dropped[0].contains("clean_up=\"release\""), "{dropped:?}");
    assert!(series.contains("leasehold_clean_ups_dropped_total"), "{series:#?}");
}

/// One order that ends a grant, the same again, and one whose answer was lost.
async fn orders() {
    let backend = MemoryBackend::on(MemoryStore::on_clock(ManualClock::new().shared()).unwrap());
    let lease = lease_core::LeaseExt::try_acquire(&backend, "r", TTL).await.unwrap().unwrap();
    let (name, ops) = (ResourceName::parse("r").unwrap(), HolderLabel::parse("ops@desk").unwrap());
    let order = ForceRelease::new(name, lease.token().unwrap().value(), ops, "host 12 burned").unwrap();
    assert_eq!(backend.force_release(&order).await.unwrap(), Forced::Ended);
    assert_eq!(backend.force_release(&order).await.unwrap(), Forced::NotHeld);
    let lost = LeaseError::Timeout {
        operation: Operation::ForceRelease,
        limit: Duration::from_secs(2),
        effect: lease_core::Effect::Unknown,
    };
    order.carry_out(async { Err(lost) }).await.unwrap_err();
}

#[test]
fn force_is_logged_with_who_why_and_what_became_of_it() {
    let (events, _) = observe(orders());
    let order = "event=\"force_release\" resource=r value=1 who=\"ops@desk\" why=\"host 12 burned\" ";
    let outcome = |id| format!("event=\"force_released\" resource=r value=1 who=\"ops@desk\" outcome=\"{id}\" ");
    let (ended, not_held) = (outcome("ended"), outcome("not-held"));
    assert_eq!(events.len(), 6, "{events:#?}");
    assert_eq!(events[..5], [order, &ended, order, &not_held, order], "the order first, lest a cut hide it");
    let failed = "event=\"force_release_failed\" resource=r value=1 who=\"ops@desk\" error=";
    assert!(events[5].starts_with(failed) && events[5].contains("repeat the order"), "{}", events[5]);
}
