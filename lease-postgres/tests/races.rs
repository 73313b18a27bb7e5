//! Many clients at once: exclusion, the order of tokens, clean-up against acquire, set-up against set-up.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Acquisition, LeaseBackend, Release};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use support::{admin, attempt, connect, connect_with, name, number, shared, sql, take, until_blocked, value};
use tokio::task::JoinSet;

async fn all(mut tasks: JoinSet<()>) {
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// A later grant has a larger token, over several connections and instances; and no two hold at once.
#[tokio::test(flavor = "multi_thread")]
async fn later_grants_have_larger_tokens() {
    const ROUNDS: u32 = 60;
    let server = shared();
    let last = Arc::new(AtomicU64::new(0));
    let grants = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let backend = connect(&server, "token_order").await;
        for _ in 0..4 {
            let (backend, last, grants) = (backend.clone(), Arc::clone(&last), Arc::clone(&grants));
            tasks.spawn(async move {
                let mut done = 0;
                while done < ROUNDS {
                    let Acquisition::Acquired(lease) = backend.acquire(&attempt("r", 60_000)).await.unwrap() else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    // Between the grant and the release nobody else may be here: what is swapped out is the grant before.
                    let before = last.swap(value(&lease), Ordering::SeqCst);
                    assert!(before < value(&lease), "{before} was granted before {}", value(&lease));
                    grants.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(last.load(Ordering::SeqCst), value(&lease), "another holder");
                    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
                    done += 1;
                }
            });
        }
    }
    all(tasks).await;
    assert_eq!(grants.load(Ordering::SeqCst), 3 * 4 * u64::from(ROUNDS));
}

/// The same for names that nobody has had before, which take another path: the insert that wins.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_wins_a_fresh_name() {
    let server = shared();
    let backends = [connect(&server, "fresh").await, connect(&server, "fresh").await];
    for round in 0..40 {
        let resource = format!("r{round}");
        let holders = Arc::new(AtomicI64::new(0));
        let mut tasks = JoinSet::new();
        for place in 0..8_usize {
            let backend = backends[place % 2].clone();
            let (resource, holders) = (resource.clone(), Arc::clone(&holders));
            tasks.spawn(async move {
                match backend.acquire(&attempt(&resource, 60_000)).await.unwrap() {
                    Acquisition::Acquired(_) => drop(holders.fetch_add(1, Ordering::SeqCst)),
                    Acquisition::Held(held) => assert!(held.remaining.is_some(), "the winner is known"),
                }
            });
        }
        all(tasks).await;
        assert_eq!(holders.load(Ordering::SeqCst), 1, "{resource}");
    }
}

/// One attempt sent by many at once makes one grant, and each of them finds it.
#[tokio::test(flavor = "multi_thread")]
async fn one_attempt_sent_many_times_at_once_is_one_grant() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "same_attempt").await;
    for round in 0..20 {
        let resource = format!("r{}", round % 4);
        let attempt = attempt(&resource, 60_000);
        let values = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for _ in 0..6 {
            let (backend, attempt, values) = (backend.clone(), attempt.clone(), Arc::clone(&values));
            tasks.spawn(async move {
                if let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() {
                    values.lock().unwrap().push(value(&lease));
                }
            });
        }
        all(tasks).await;
        let found = values.lock().unwrap().clone();
        assert!(!found.is_empty() && found.iter().all(|v| v == &found[0]), "{found:?}");
        // Whoever asks again finds it too.
        let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() else { panic!("held by itself") };
        assert_eq!(value(&lease), found[0]);
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM same_attempt.lease").await, 4);
}

/// Clean-up that forgets at once, against acquires of the same names, with a server clock that is of no help: the values lie in
/// the future, so only the rows and the floor keep them from going back.
#[tokio::test(flavor = "multi_thread")]
async fn clean_up_never_takes_a_token_back() {
    const NAMES: u64 = 12;
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect_with(&server, "namespace=forgetting&idle_retention_ms=1").await;
    let ahead = "UPDATE forgetting.meta SET floor = (extract(epoch FROM now()) * 1000000)::bigint + 1000000000000";
    sql(&pool, ahead).await;
    let highest = number(&pool, "SELECT floor FROM forgetting.meta").await;

    let removed = Arc::new(AtomicU64::new(0));
    let busy = Arc::new(AtomicI64::new(4));
    let mut tasks = JoinSet::new();
    for worker in 0..4_u64 {
        let (backend, busy) = (backend.clone(), Arc::clone(&busy));
        tasks.spawn(async move {
            // Each name belongs to one worker, so that the worker knows what was granted before.
            let mut last: HashMap<u64, u64> = HashMap::new();
            for round in 0..150_u64 {
                let number = worker + 4 * (round % (NAMES / 4));
                let lease = take(&backend, &format!("r{number}"), 60_000).await;
                let before = last.insert(number, value(&lease)).unwrap_or(u64::try_from(highest).unwrap());
                assert!(before < value(&lease), "r{number}: {before} was granted before {}", value(&lease));
                assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
            }
            busy.fetch_sub(1, Ordering::SeqCst);
        });
    }
    for _ in 0..2 {
        let (backend, removed, busy) = (backend.clone(), Arc::clone(&removed), Arc::clone(&busy));
        tasks.spawn(async move {
            while busy.load(Ordering::SeqCst) > 0 {
                removed.fetch_add(backend.clean_up().await.unwrap().removed, Ordering::SeqCst);
            }
        });
    }
    all(tasks).await;
    assert!(removed.load(Ordering::SeqCst) > 20, "clean-up met the acquires: {removed:?}");
}

/// A new name that comes while a clean-up is under way waits for it, and begins above the floor that it leaves: not above the one
/// that its own snapshot shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_name_waits_for_a_clean_up_and_reads_its_floor() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "floor").await;
    let mut cleaning = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM floor.meta FOR UPDATE").execute(&mut *cleaning).await.unwrap();
    let taking = tokio::spawn({
        let backend = backend.clone();
        async move { take(&backend, "new", 60_000).await }
    });
    let abandoning = tokio::spawn({
        let backend = backend.clone();
        async move { backend.abandon(&attempt("abandoned", 60_000)).await }
    });
    until_blocked(&pool, "floor", 2, &taking).await;
    sqlx::query("UPDATE floor.meta SET floor = 9000000000000000000").execute(&mut *cleaning).await.unwrap();
    cleaning.commit().await.unwrap();
    assert!(value(&taking.await.unwrap()) > 9_000_000_000_000_000_000);
    abandoning.await.unwrap().unwrap();
    assert!(value(&take(&backend, "abandoned", 60_000).await) > 9_000_000_000_000_000_000);
}

/// And a clean-up waits for a new name that is under way, before it has touched any row: so neither waits for the other in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_waits_for_a_new_name_with_empty_hands() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect_with(&server, "namespace=hands&idle_retention_ms=1").await;
    let mut inserting = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM hands.meta FOR SHARE").execute(&mut *inserting).await.unwrap();
    sqlx::query(
        "INSERT INTO hands.lease (name, owner, grant_id, holder, value, incarnation, granted_at, renewed_at, expires_at) \
         SELECT 'idle', 'o', 'g', 'h', 1, 'i', t, t, t FROM (SELECT now() - interval '1 day' AS t) past",
    )
    .execute(&pool)
    .await
    .unwrap();
    let cleaning = tokio::spawn({
        let backend = backend.clone();
        async move { backend.clean_up().await }
    });
    until_blocked(&pool, "hands", 1, &cleaning).await;
    sql(&pool, "SELECT FROM hands.lease FOR UPDATE NOWAIT").await;
    inserting.commit().await.unwrap();
    cleaning.await.unwrap().unwrap();
    assert_eq!(number(&pool, "SELECT count(*) FROM hands.lease").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clean_up_removes_what_is_idle_and_keeps_what_is_not() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "idle").await;
    let held = take(&backend, "held", 60_000).await;
    sql(
        &pool,
        "INSERT INTO idle.lease (name, owner, grant_id, holder, value, incarnation, granted_at, renewed_at, expires_at, released) \
         SELECT 'old' || n, 'o', 'g', 'h', 9000000000000000000 + n, 'i', now() - interval '2 days', now() - interval '2 days', \
                now() - interval '25 hours', true FROM generate_series(1, 5000) n",
    )
    .await;
    let released = take(&backend, "released", 60_000).await;
    assert_eq!(backend.release(&released).await.unwrap(), Release::Released);
    backend.abandon(&attempt("abandoned", 60_000)).await.unwrap();
    sql(&pool, "UPDATE idle.lease SET expires_at = now() - interval '25 hours' WHERE name = 'abandoned'").await;

    // The one that began with the client may have removed some of them.
    assert!(backend.clean_up().await.unwrap().removed > 2_000, "more than one page");
    assert_eq!(backend.clean_up().await.unwrap().removed, 0);
    assert_eq!(number(&pool, "SELECT count(*) FROM idle.lease").await, 3, "held, just released, and a tombstone");
    assert_eq!(backend.inspect(&name("old1")).await.unwrap().last_value, None);
    let next = take(&backend, "old1", 60_000).await;
    assert!(value(&next) > 9_000_000_000_000_005_000, "above all that was forgotten");
    assert_eq!(backend.release(&held).await.unwrap(), Release::Released);
}

/// It also begins by itself.
#[tokio::test(flavor = "multi_thread")]
async fn clean_up_happens_without_being_asked() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect_with(&server, "namespace=by_itself&idle_retention_ms=1").await;
    let mut tasks = JoinSet::new();
    for worker in 0..8 {
        let backend = backend.clone();
        tasks.spawn(async move {
            for round in 0..130 {
                let lease = take(&backend, &format!("r{worker}/{round}"), 60_000).await;
                assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
            }
        });
    }
    all(tasks).await;
    while number(&pool, "SELECT count(*) FROM by_itself.lease").await > 500 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Ten clients of an empty database create the tables at once; there is one history, and one holder.
#[tokio::test(flavor = "multi_thread")]
async fn set_up_by_many_at_once_is_one_set_up() {
    let server = shared();
    for round in 0..3 {
        let holders = Arc::new(AtomicI64::new(0));
        let authorities = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for client in 0..10 {
            let (server, namespace) = (Arc::clone(&server), format!("together{round}"));
            let (holders, authorities) = (Arc::clone(&holders), Arc::clone(&authorities));
            tasks.spawn(async move {
                let backend = connect(&server, &namespace).await;
                if let Acquisition::Acquired(_) = backend.acquire(&attempt("r", 60_000)).await.unwrap() {
                    holders.fetch_add(1, Ordering::SeqCst);
                }
                let own = take(&backend, &format!("own{client}"), 60_000).await;
                authorities.lock().unwrap().push(own.token().unwrap().authority().clone());
            });
        }
        all(tasks).await;
        assert_eq!(holders.load(Ordering::SeqCst), 1);
        let authorities = authorities.lock().unwrap();
        assert!(authorities.iter().all(|a| a == &authorities[0]), "{authorities:?}");
    }
}
