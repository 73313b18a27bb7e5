//! Every call ends, and a dropped one leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

mod support;

use lease_core::{
    Clock as _, Effect, FenceError, Forced, GuardedDestination as _, LeaseBackend as _, LeaseError, LossReason,
    Operation, Release, Renewal, SystemClock,
};
use lease_sqlite::SqliteDestination;
use std::future::Future;
use std::task::Poll;
use std::time::Duration;
use support::*;

const SHORT: &str = "call_timeout_ms=200";
/// Longer than any machine is slow.
const PATIENT: &str = "call_timeout_ms=600000";

async fn lock(place: &Place) -> sqlx::SqliteConnection {
    let mut plain = place.plain().await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut plain).await.unwrap();
    plain
}

async fn unlock(mut plain: sqlx::SqliteConnection) {
    sqlx::query("ROLLBACK").execute(&mut plain).await.unwrap();
}

/// Whoever holds the write lock does not let go: each call says within its limit that it had no effect.
#[tokio::test]
async fn a_write_lock_that_is_never_free_ends_each_call_without_effect() {
    let place = Place::new();
    let backend = place.backend_with(SHORT).await;
    let destination = SqliteDestination::connect(&format!("{}?{SHORT}", place.url())).await.unwrap();
    let lease = acquire(&backend, "r").await;
    let locked = lock(&place).await;
    let attempt = attempt("s", TEN);
    let errors = [
        backend.acquire(&attempt).await.unwrap_err(),
        backend.renew(&lease).await.unwrap_err(),
        backend.release(&lease).await.unwrap_err(),
        backend.abandon(&attempt).await.unwrap_err(),
        backend.force_release(&order("r", value(&lease))).await.unwrap_err(),
    ];
    assert!(errors[4].to_string().contains("force-release"), "{}", errors[4]);
    for error in errors {
        assert_busy(&error);
        for secret in [lease.owner().reveal(), attempt.owner().reveal()] {
            assert!(!format!("{error} {error:?}").contains(&secret));
        }
    }
    assert!(backend.begin_fenced(&lease).await.is_err());
    assert!(destination.seal(&name("r"), &token(1, 1)).await.is_err());
    assert!(destination.guard().begin(&name("r"), &token(1, 1)).await.is_err());
    // What only reads goes on, connecting included.
    assert!(backend.inspect(&name("r")).await.unwrap().held.is_some());
    assert_eq!(backend.list("", None, 9).await.unwrap().grants.len(), 1);
    let late = place.backend_with(SHORT).await;
    unlock(locked).await;
    // The refused release and the refused order were definite, so this one is the whole truth.
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))));
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    acquire(&late, "s").await;
}

/// An error without effect leaves nothing on its way, so the release after it needs no tombstone.
#[tokio::test]
async fn a_definite_error_settles_the_attempt() {
    let place = Place::new();
    let backend = place.backend_with(SHORT).await;
    let attempt = attempt("r", TEN);
    let locked = lock(&place).await;
    backend.acquire(&attempt).await.unwrap_err();
    unlock(locked).await;
    let lease = try_acquire(&backend, &attempt).await.unwrap().unwrap();
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    assert_eq!(number(&mut place.plain().await, "SELECT count(*) FROM leasehold_spent").await, 0);
}

#[tokio::test]
async fn a_call_that_waits_behind_another_of_its_process_ends_too() {
    let place = Place::new();
    let backend = place.backend_with(SHORT).await;
    let locked = lock(&place).await;
    let calls: Vec<_> = (0..5)
        .map(|n| {
            let backend = backend.clone();
            tokio::spawn(async move { backend.acquire(&attempt(&format!("r{n}"), TEN)).await.map(drop) })
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert_busy(&error);
        if let LeaseError::Timeout { operation, limit, .. } = error {
            assert_eq!((operation, limit), (Operation::Acquire, Duration::from_millis(200)));
        }
    }
    unlock(locked).await;
    assert!(!is_held(&backend, "r0").await, "none of them was granted late");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_was_dropped_while_waiting_makes_no_grant_later() {
    let place = Place::new();
    let backend = place.backend_with(PATIENT).await;
    let locked = lock(&place).await;
    let attempt = attempt("r", TEN);
    let waiting = tokio::time::timeout(Duration::from_millis(100), backend.acquire(&attempt)).await;
    assert!(waiting.is_err(), "it waited for the lock");
    unlock(locked).await;
    // Behind it in the queue, so that it is over by then.
    acquire(&backend, "other").await;
    assert!(backend.inspect(&name("r")).await.unwrap().held.is_none());
    assert!(try_acquire(&backend, &attempt).await.unwrap().is_some(), "the attempt is still good");
}

#[tokio::test]
async fn a_write_lock_that_comes_after_the_attempts_own_ttl_makes_no_grant() {
    let place = Place::new();
    let backend = place.backend_with(PATIENT).await;
    let locked = lock(&place).await;
    let attempt = attempt("r", Duration::from_millis(50));
    let unlocking = async {
        SystemClock.sleep_until(SystemClock.now().saturating_add(Duration::from_millis(100))).await;
        unlock(locked).await;
    };
    // Polled in this order, so it is sent before the wait begins.
    let (answer, ()) = tokio::join!(biased; backend.acquire(&attempt), unlocking);
    let error = answer.unwrap_err();
    assert!(matches!(error, LeaseError::AttemptOver { .. }), "{error}");
    assert_eq!(backend.inspect(&name("r")).await.unwrap().last_value, None, "no value was used");
}

/// Polls `future` so often, with time in between for what it waits for, and drops it; true when it was over by then.
async fn drop_after(polls: usize, future: impl Future) -> bool {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        let done = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if done {
            return true;
        }
        SystemClock.sleep_until(SystemClock.now().saturating_add(Duration::from_micros(200))).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_dropped_anywhere_leave_nothing_that_nobody_knows() {
    let place = Place::new();
    let backend = place.backend().await;
    for polls in 0..12 {
        let attempt = attempt("r", TEN);
        drop_after(polls, backend.acquire(&attempt)).await;
        let lease = try_acquire(&backend, &attempt).await.unwrap().expect("the attempt finds or makes its grant");
        let again = try_acquire(&backend, &attempt).await.unwrap().unwrap();
        assert_eq!(lease.token(), again.token());

        drop_after(polls, backend.renew(&lease)).await;
        assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))));

        drop_after(polls, async { backend.begin_fenced(&lease).await.unwrap().commit().await }).await;
        drop_after(polls, backend.inspect(&name("r"))).await;

        drop_after(polls, backend.release(&lease)).await;
        assert!(matches!(backend.release(&lease).await, Ok(Release::Released)), "after {polls} polls");

        drop_after(polls, backend.abandon(&attempt)).await;
        backend.abandon(&attempt).await.unwrap();

        let broken = acquire(&backend, "broken").await;
        drop_after(polls, backend.force_release(&order("broken", value(&broken)))).await;
        let again = force(&backend, &broken).await;
        assert!(matches!(again, Forced::Ended | Forced::NotHeld), "{again:?}");
        assert!(matches!(backend.renew(&broken).await, Ok(Renewal::Lost(LossReason::Forced))), "after {polls} polls");
        unlock(lock(&place).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_commit_dropped_anywhere_is_whole_or_not_there() {
    let place = Place::new();
    let destination = SqliteDestination::connect(&place.url()).await.unwrap();
    destination.adopt(None, &authority("a")).await.unwrap();
    let mut plain = place.plain().await;
    sqlx::raw_sql("CREATE TABLE work (value INTEGER)").execute(&mut plain).await.unwrap();
    for polls in 0..12_u64 {
        let value = polls + 1;
        let write = async {
            let mut transaction = destination.guard().begin(&name("r"), &token(value, value)).await.unwrap();
            sqlx::query("INSERT INTO work VALUES (?1)")
                .bind(token(value, value).value_i64())
                .execute(&mut *transaction)
                .await
                .unwrap();
            transaction.commit().await.unwrap();
        };
        drop_after(usize::try_from(polls).unwrap(), write).await;
        // Behind it in the queue of writers.
        destination.guard().begin(&name("other"), &token(1, 1)).await.unwrap().commit().await.unwrap();
        let mark = destination.read(&name("r")).await.unwrap().mark.map_or(0, |(value, _)| value);
        let written = number(&mut plain, "SELECT coalesce(max(value), 0) FROM work").await;
        assert_eq!(i64::try_from(mark).unwrap(), written, "mark and data, after {polls} polls");
    }
}

/// Keeps whatever calls it waiting, until the other end is dropped.
fn barrier() -> (std::sync::mpsc::Sender<()>, impl Fn() + Send + Sync + 'static) {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    (release, move || assert!(held.lock().unwrap().recv().is_err()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_takes_longer_than_its_call_may_have_landed() {
    let place = Place::new();
    let backend = place.backend_with(SHORT).await;
    let lease = acquire(&backend, "r").await;
    let mut plain = place.plain().await;
    sqlx::raw_sql("CREATE TABLE work (value INTEGER)").execute(&mut plain).await.unwrap();
    let mut work = backend.begin_fenced(&lease).await.unwrap();
    sqlx::raw_sql("INSERT INTO work VALUES (1)").execute(&mut *work).await.unwrap();
    let (release, wait) = barrier();
    work.lock_handle().await.unwrap().set_commit_hook(move || {
        wait();
        true
    });
    let Err(FenceError::Store(error)) = work.commit().await else { panic!("it can't be over") };
    drop(release);
    unlock(lock(&place).await).await;
    assert_eq!(number(&mut plain, "SELECT count(*) FROM work").await, 1, "it landed");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_ends_in_time_too() {
    let place = Place::new();
    let backend = place.backend_with(SHORT).await;
    let lease = acquire(&backend, "r").await;
    let mut work = backend.begin_fenced(&lease).await.unwrap();
    let (release, wait) = barrier();
    work.lock_handle().await.unwrap().set_rollback_hook(wait);
    // Much longer than its limit, to fail instead of hanging.
    tokio::time::timeout(Duration::from_mins(1), work.rollback()).await.unwrap();
    drop(release);
    unlock(lock(&place).await).await;
}

/// A runtime that ends takes its tasks with it, wherever they are; the file must be free afterwards.
#[test]
fn a_runtime_that_ends_in_the_middle_leaves_the_file_free() {
    let place = Place::new();
    for pause_us in [0, 50, 100, 200, 400, 800] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let backend = runtime.block_on(place.backend());
        for n in 0..20 {
            let backend = backend.clone();
            runtime.spawn(async move { backend.acquire(&attempt(&format!("{pause_us}/{n}"), TEN)).await.map(drop) });
        }
        std::thread::sleep(Duration::from_micros(pause_us));
        runtime.shutdown_background();
        let next = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        next.block_on(async {
            unlock(lock(&place).await).await;
            // The same instance, whose connection may have gone with its task.
            let lease = acquire(&backend, &format!("after {pause_us}")).await;
            assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
        });
    }
}
