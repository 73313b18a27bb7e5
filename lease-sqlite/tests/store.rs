//! The store over time: another boot, clean-up, another history, `purge`, edited statements.
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

mod support;

use lease_core::{
    BootId, BootInstant, Clock, ConnectOptions, FencedRegister, LeaseBackend as _, LossReason, ManualClock, Release,
    Renewal, SystemClock,
};
use lease_sqlite::{SqliteBackend, SqliteConfig};
use std::sync::Arc;
use std::time::Duration;
use support::*;

const SECOND: Duration = Duration::from_secs(1);

/// The clock after the machine was booted anew: it stands at a few minutes.
#[derive(Debug)]
struct NextBoot;

#[async_trait::async_trait]
impl Clock for NextBoot {
    fn now(&self) -> BootInstant {
        BootInstant::from_nanos(300_000_000_000)
    }
    fn boot_id(&self) -> BootId {
        BootId::from_text("next")
    }
    async fn sleep_until(&self, _: BootInstant) {}
}

async fn on_next_boot(place: &Place) -> SqliteBackend {
    let mut options = ConnectOptions::default();
    options.clock = Arc::new(NextBoot);
    let config = SqliteConfig::new(place.path(), options).unwrap();
    SqliteBackend::connect_with(config).await.unwrap()
}

#[tokio::test]
async fn another_boot_means_expired_and_the_token_grows() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let before = place.backend_on(&clock).await;
    let lease = acquire(&before, "r").await;
    let renewed = acquire(&before, "s").await;
    let after = on_next_boot(&place).await;
    assert!(after.inspect(&name("r")).await.unwrap().held.is_none());
    assert!(after.list("", None, 9).await.unwrap().grants.is_empty());
    let next = acquire(&after, "r").await;
    assert!(next.token() > lease.token(), "same history");
    assert!(matches!(after.renew(&renewed).await, Ok(Renewal::Lost(LossReason::Expired))));
    assert!(matches!(after.release(&renewed).await, Ok(Release::NotHeld)));
    assert!(after.fence().register().unwrap().write(&renewed, "stale").await.is_err());
}

#[tokio::test]
async fn a_live_grant_and_its_token_survive_closing_the_file() {
    let place = Place::new();
    let first = place.backend().await;
    let lease = acquire(&first, "r").await;
    drop(first);
    let second = place.backend().await;
    assert!(is_held(&second, "r").await);
    assert!(matches!(second.renew(&lease).await, Ok(Renewal::Renewed(_))));
    assert!(matches!(second.release(&lease).await, Ok(Release::Released)));
    assert!(acquire(&second, "r").await.token() > lease.token());
}

#[tokio::test]
async fn clean_up_forgets_idle_names_and_no_value() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on_with(&clock, "idle_retention_ms=60000").await;
    let ahead = acquire(&backend, "ahead").await;
    assert!(matches!(backend.release(&ahead).await, Ok(Release::Released)));
    let mut plain = place.plain().await;
    // Its value is from a wall clock an hour ahead: only the floor can keep the next one above it.
    sqlx::query("UPDATE leasehold_lease SET value = value + 3600000000").execute(&mut plain).await.unwrap();
    let live = acquire_for(&backend, "live", SECOND * 600).await;
    let data = acquire(&backend, "data").await;
    backend.fence().register().unwrap().write(&data, "kept").await.unwrap();
    acquire(&backend, "expired").await;

    clock.advance(SECOND * 59);
    assert_eq!(backend.clean_up().await.unwrap().removed, 0, "the retention is not over");
    clock.advance(SECOND * 12);
    assert_eq!(backend.clean_up().await.unwrap().removed, 2);
    assert!(is_held(&backend, "live").await);
    assert!(matches!(backend.renew(&live).await, Ok(Renewal::Renewed(_))));
    assert_eq!(FencedRegister::read(&backend, &name("data")).await.unwrap().as_deref(), Some("kept"));
    let next = acquire(&backend, "ahead").await;
    assert_eq!(value(&next), value(&ahead) + 3_600_000_001);
    assert_eq!(next.token().unwrap().authority(), ahead.token().unwrap().authority());
}

#[tokio::test]
async fn clean_up_pages_through_many_names() {
    let (place, clock) = (Place::new(), ManualClock::new());
    let backend = place.backend_on_with(&clock, "idle_retention_ms=1").await;
    let mut plain = place.plain().await;
    sqlx::query(
        "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 3500)
         INSERT INTO leasehold_lease SELECT 'n' || value, 'o', 'g', 'h', value, 'manual', CASE value % 2 WHEN 0 THEN 1
         ELSE 9000000000000000000 END, 1, 1, 0, 0, NULL FROM n",
    )
    .execute(&mut plain)
    .await
    .unwrap();
    assert_eq!(backend.clean_up().await.unwrap().removed, 1_750);
    assert_eq!(number(&mut plain, "SELECT count(*) FROM leasehold_lease").await, 1_750);
    assert_eq!(backend.clean_up().await.unwrap().removed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_names_are_forgotten_without_anybody_asking() {
    let place = Place::new();
    let backend = place.backend_with("idle_retention_ms=1").await;
    for n in 0..640 {
        let lease = acquire(&backend, &format!("name {n}")).await;
        assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    }
    // The sweeps run behind the callers' backs; each looks at more names than were granted since the one before.
    let mut plain = place.plain().await;
    let mut n = 640;
    while number(&mut plain, "SELECT count(*) FROM leasehold_lease").await > 200 {
        n += 1;
        acquire(&backend, &format!("name {n}")).await;
    }
}

/// As programs do that take one lease and end.
#[tokio::test(flavor = "multi_thread")]
async fn instances_of_one_grant_each_forget_idle_names_too() {
    let place = Place::new();
    let mut plain = place.plain().await;
    for made in 1..2_000 {
        let backend = place.backend_with("idle_retention_ms=1").await;
        let lease = acquire(&backend, &made.to_string()).await;
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        if number(&mut plain, "SELECT count(*) FROM leasehold_lease").await < made {
            return;
        }
    }
    panic!("nothing was forgotten");
}

#[tokio::test(flavor = "multi_thread")]
async fn clean_up_racing_acquire_never_lets_a_token_go_back() {
    let place = Place::new();
    let (worker, cleaner) =
        (place.backend_with("idle_retention_ms=1").await, place.backend_with("idle_retention_ms=1").await);
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cleaning = tokio::spawn({
        let done = Arc::clone(&done);
        async move {
            let mut removed = 0;
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                removed += cleaner.clean_up().await.unwrap().removed;
            }
            removed
        }
    });
    // A floor far above the wall clock, so that only it orders the values.
    let mut plain = place.plain().await;
    acquire(&worker, "first").await;
    sqlx::query("UPDATE leasehold_store SET floor = 8000000000000000000").execute(&mut plain).await.unwrap();
    let mut last = 0;
    for _ in 0..300 {
        let lease = acquire(&worker, "r").await;
        assert!(value(&lease) > last, "{} after {last}", value(&lease));
        last = value(&lease);
        assert!(matches!(worker.release(&lease).await, Ok(Release::Released)));
        SystemClock.sleep_until(SystemClock.now().saturating_add(Duration::from_millis(2))).await;
    }
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(cleaning.await.unwrap() > 10, "the clean-up was in the way");
}

#[tokio::test]
async fn a_history_that_vanished_changes_the_authority() {
    let place = Place::new();
    let backend = place.backend().await;
    let lease = acquire(&backend, "r").await;
    let mut plain = place.plain().await;
    sqlx::query("DELETE FROM leasehold_store").execute(&mut plain).await.unwrap();
    let other = acquire(&backend, "s").await;
    assert_eq!(other.token().partial_cmp(&lease.token()), None);
    sqlx::query("DROP TABLE leasehold_lease").execute(&mut plain).await.unwrap();
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Lost(LossReason::Gone))));
    assert!(!is_held(&backend, "r").await);
}

#[tokio::test]
async fn an_operator_can_raise_the_epoch() {
    let place = Place::new();
    let (a, b) = (place.backend().await, place.backend_with("epoch=1").await);
    let before = acquire(&a, "r").await;
    assert!(matches!(a.release(&before).await, Ok(Release::Released)));
    let after = acquire(&b, "r").await;
    assert_eq!(before.token().partial_cmp(&after.token()), None);
}

#[tokio::test]
async fn purge_removes_this_namespace_and_begins_a_new_history() {
    let place = Place::new();
    let (backend, other, witness) =
        (place.backend().await, place.backend_with("namespace=other").await, place.backend().await);
    let lease = acquire(&backend, "r").await;
    acquire(&other, "r").await;
    let guarded = lease_sqlite::SqliteDestination::connect(&place.url()).await.unwrap();
    backend.purge().await.unwrap();
    let mut plain = place.plain().await;
    let left =
        "SELECT count(*) FROM sqlite_schema WHERE name IN ('leasehold_lease', 'leasehold_store', 'leasehold_spent')";
    assert_eq!(number(&mut plain, left).await, 0);
    assert!(is_held(&other, "r").await);
    assert!(
        matches!(witness.renew(&lease).await, Ok(Renewal::Lost(LossReason::Gone))),
        "another client, still connected"
    );
    let next = acquire(&backend, "r").await;
    assert_eq!(next.token().partial_cmp(&lease.token()), None, "another authority");
    backend.purge().await.unwrap();
    guarded.purge().await.unwrap();
    assert_eq!(number(&mut plain, "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'leasehold%'").await, 0);
}

#[cfg(feature = "testing")]
#[tokio::test]
async fn an_edited_statement_is_really_used_and_a_stale_edit_is_loud() {
    let place = Place::new();
    let error = SqliteBackend::connect_edited(&place.url(), &[("no such text", "")]).await.unwrap_err();
    assert!(error.to_string().contains("no such text"));
    let edits = [("AND (leasehold_lease.released OR leasehold_lease.boot <> ?3 OR leasehold_lease.expires <= ?4)", "")];
    let saboteur = SqliteBackend::connect_edited(&place.url(), &edits).await.unwrap();
    let lease = acquire(&saboteur, "r").await;
    assert!(acquire(&saboteur, "r").await.token() > lease.token(), "it takes what is held");
    let honest = SqliteBackend::connect_edited(&place.url(), &[]).await.unwrap();
    assert!(is_held(&honest, "r").await);
}

/// A retention far below the TTL: attempts are remembered all the same, and only the reason of an end is forgotten.
#[tokio::test]
async fn a_retention_below_the_ttl_forgets_reasons_and_no_attempt() {
    for how in ["forced", "abandoned", "handed over"] {
        let (place, clock) = (Place::new(), ManualClock::new());
        let backend = place.backend_on_with(&clock, "idle_retention_ms=1").await;
        let attempt = attempt("r", SECOND * 60);
        let lease = try_acquire(&backend, &attempt).await.unwrap().unwrap();
        match how {
            "forced" => assert_eq!(force(&backend, &lease).await, lease_core::Forced::Ended),
            "abandoned" => backend.abandon(&attempt).await.unwrap(),
            _ => {
                let elsewhere = lease.clone().into_hand_over().into_lease(clock.shared()).unwrap();
                assert!(matches!(backend.release(&elsewhere).await, Ok(Release::Released)));
            }
        }
        clock.advance(Duration::from_millis(2));
        assert_eq!(backend.clean_up().await.unwrap().removed, 1, "{how}");
        let late = try_acquire(&backend, &attempt.as_held_up()).await;
        assert!(matches!(late, Err(lease_core::LeaseError::AttemptOver { .. })), "{how}: {late:?}");
        let renewal = backend.renew(&lease).await.unwrap();
        assert!(matches!(renewal, Renewal::Lost(lease_core::LossReason::Gone)), "{how}: {renewal:?}");
        // The very same where nothing is remembered: then it would be granted.
        let mut plain = place.plain().await;
        sqlx::query("DELETE FROM leasehold_spent").execute(&mut plain).await.unwrap();
        assert!(try_acquire(&backend, &attempt.as_held_up()).await.unwrap().is_some(), "{how}: the control");
    }
}
