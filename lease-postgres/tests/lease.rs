//! The lease contract on a real PostgreSQL.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Acquisition, Advice, Effect, LeaseBackend, LeaseError, LeaseExt, LossReason, Release, Renewal};
use lease_postgres::PostgresBackend;
use std::time::Duration;
use support::{admin, attempt, connect, expire_in, is_held, name, number, shared, sql, take, url, value};

#[tokio::test(flavor = "multi_thread")]
async fn one_holder_until_release() {
    let server = shared();
    let (a, b) = (connect(&server, "one_holder").await, connect(&server, "one_holder").await);
    let lease = take(&a, "r", 60_000).await;
    assert!(is_held(&a, "r").await, "not re-entrant");
    let Acquisition::Held(held) = b.acquire(&attempt("r", 1_000)).await.unwrap() else { panic!("two holders") };
    let remaining = held.remaining.unwrap();
    assert!(remaining > Duration::from_secs(30) && remaining <= Duration::from_mins(1), "{remaining:?}");
    assert_eq!(a.release(&lease).await.unwrap(), Release::Released);
    assert_eq!(a.release(&lease).await.unwrap(), Release::Released, "idempotent");
    let next = take(&b, "r", 60_000).await;
    assert!(value(&next) > value(&lease));
    assert_eq!(a.release(&lease).await.unwrap(), Release::NotHeld, "another's grant now");
    assert!(is_held(&a, "r").await, "the old release left the new grant alone");
    assert!(matches!(a.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_ends_a_grant_for_good() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "expiry").await);
    let lease = take(&backend, "r", 60_000).await;
    expire_in(&pool, "expiry", "r", 0).await;
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Expired)));
    assert_eq!(backend.release(&lease).await.unwrap(), Release::NotHeld);
    let next = take(&backend, "r", 60_000).await;
    assert!(value(&next) > value(&lease));
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(backend.release(&next).await.unwrap(), Release::Released);
    assert!(matches!(backend.renew(&next).await.unwrap(), Renewal::Lost(LossReason::Released)));
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_extends_keeps_the_token_and_never_shortens() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "renewal").await;
    let lease = take(&backend, "r", 60_000).await;
    let expires = "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM renewal.lease";
    let before = number(&pool, expires).await;
    let Renewal::Renewed(renewed) = backend.renew(&lease).await.unwrap() else { panic!("lost") };
    assert_eq!(renewed.token(), lease.token());
    assert!(renewed.deadline() >= lease.deadline());
    assert!(number(&pool, expires).await > before);
    sql(&pool, "UPDATE renewal.lease SET expires_at = expires_at + interval '1 hour'").await;
    let far = number(&pool, expires).await;
    assert!(matches!(backend.renew(&renewed).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(number(&pool, expires).await, far, "a renewal never shortens");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_makes_one_grant_and_a_repeat_does_not_extend_it() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "attempts").await;
    let attempt = attempt("r", 60_000);
    let Acquisition::Acquired(lease) = backend.acquire(&attempt).await.unwrap() else { panic!("held") };
    let expires = "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM attempts.lease";
    let before = number(&pool, expires).await;
    let Acquisition::Acquired(again) = backend.acquire(&attempt).await.unwrap() else { panic!("held by itself") };
    assert_eq!((again.token(), again.deadline()), (lease.token(), lease.deadline()));
    assert_eq!(number(&pool, expires).await, before);
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    assert!(matches!(backend.acquire(&attempt).await, Err(LeaseError::AttemptOver { .. })));
    assert!(!is_held(&backend, "r").await);
}

#[cfg(feature = "testing")]
/// What the client remembers of an attempt must not be what protects it: the same owner in another process is refused by the store.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_itself_refuses_a_spent_attempt() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "spent").await;
    for (resource, prepare) in [("abandoned first", false), ("abandoned after the grant", true)] {
        let spent = attempt(resource, 60_000);
        let twin = spent.clone();
        if prepare {
            assert!(matches!(backend.acquire(&spent).await.unwrap(), Acquisition::Acquired(_)));
        }
        backend.abandon(&spent).await.unwrap();
        assert!(matches!(backend.acquire(&twin).await, Err(LeaseError::AttemptOver { .. })), "by the client");
        // The same statement that a request still on its way would run.
        let granted = raw_acquire(&pool, &backend, resource, &spent.owner().reveal()).await;
        assert_eq!(granted, "over", "{resource}");
        assert_eq!(backend.inspect(&name(resource)).await.unwrap().held, None);
        // Another attempt on it goes on as ever, and does not make the store forget.
        let lease = take(&backend, resource, 60_000).await;
        assert_eq!(raw_acquire(&pool, &backend, resource, &spent.owner().reveal()).await, "over");
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        assert_eq!(raw_acquire(&pool, &backend, resource, &spent.owner().reveal()).await, "over");
    }
}

#[cfg(feature = "testing")]
/// Runs `acquire` as a request that comes late: no client is there to remember anything.
async fn raw_acquire(pool: &sqlx::PgPool, backend: &PostgresBackend, resource: &str, owner: &str) -> String {
    let row: (String, Option<i64>, Option<String>, Option<i64>) =
        sqlx::query_as(sqlx::AssertSqlSafe(backend.acquire_statement()))
            .bind(resource)
            .bind(owner)
            .bind("0123456789abcdef")
            .bind("late")
            .bind(60_000_i64)
            .bind(0_i64)
            .fetch_one(pool)
            .await
            .unwrap();
    row.0
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_are_removed_in_time() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "tombstones").await;
    for _ in 0..5 {
        backend.abandon(&attempt("r", 1_000)).await.unwrap();
    }
    let spent = "SELECT count(*) FROM tombstones.lease, jsonb_each(spent)";
    assert_eq!(number(&pool, spent).await, 5);
    sql(&pool, "UPDATE tombstones.lease SET spent = (SELECT jsonb_object_agg(key, 1) FROM jsonb_each(spent))").await;
    let lease = take(&backend, "r", 60_000).await;
    assert_eq!(number(&pool, spent).await, 0, "their time was over");
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_and_list_show_holders_and_no_secret() {
    let server = shared();
    let backend = connect(&server, "listing").await;
    assert_eq!(backend.inspect(&name("a")).await.unwrap(), lease_core::Inspection::default());
    let mut leases = Vec::new();
    for resource in ["a", "a/1", "a/2", "a/日本", "a0", "A/1", "b"] {
        leases.push(take(&backend, resource, 60_000).await);
    }
    let seen = backend.inspect(&name("a/1")).await.unwrap();
    let held = seen.held.unwrap();
    assert_eq!((held.value, seen.last_value), (Some(value(&leases[1])), Some(value(&leases[1]))));
    assert!(held.remaining <= Duration::from_mins(1) && held.granted_ago < Some(Duration::from_mins(1)));
    assert!(!format!("{held:?}").contains(&leases[1].owner().reveal()));

    let page = backend.list("a/", None, 2).await.unwrap();
    assert_eq!(names(&page), ["a/1", "a/2"]);
    let page = backend.list("a/", page.next_after.as_ref(), 2).await.unwrap();
    assert_eq!((names(&page), page.next_after), (vec!["a/日本".to_owned()], None));
    assert_eq!(names(&backend.list("", None, 100).await.unwrap()), ["A/1", "a", "a/1", "a/2", "a/日本", "a0", "b"]);
    assert_eq!(names(&backend.list("%", None, 100).await.unwrap()), [""; 0]);

    assert_eq!(backend.release(&leases[1]).await.unwrap(), Release::Released);
    let seen = backend.inspect(&name("a/1")).await.unwrap();
    assert_eq!((seen.held, seen.last_value), (None, Some(value(&leases[1]))));
    assert_eq!(names(&backend.list("a/", None, 1).await.unwrap()), ["a/2"]);
}

fn names(page: &lease_core::NamePage) -> Vec<String> {
    page.grants.iter().map(|grant| grant.resource.to_string()).collect()
}

/// `list` reads the names of its prefix and no others, also with a plan that the server made for any prefix.
#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread")]
async fn list_is_a_range_of_the_key_in_a_generic_plan_too() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "plans").await;
    let mut connection = pool.acquire().await.unwrap();
    let prepare = format!(
        "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; PREPARE list AS {}",
        backend.list_statement()
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
    let explain = "EXPLAIN EXECUTE list('a/', 'a/1', 'a0', 10)";
    let plan: Vec<String> = sqlx::query_scalar(explain).fetch_all(&mut *connection).await.unwrap();
    let bounds = plan.iter().find(|line| line.contains("Index Cond")).unwrap();
    assert!(["$1", "$2", "$3"].iter().all(|bound| bounds.contains(bound)), "{plan:#?}");
}

/// Byte equality: no collation, no folding, no trimming, no cut.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_never_confused() {
    let server = shared();
    let backend = connect(&server, "names").await;
    let long = "x".repeat(511);
    let (one, two) = (format!("{long}1"), format!("{long}2"));
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "a%",
        "a_",
        "a'",
        "a\"",
        "{a}",
        "a\\",
        "ä",
        "a\u{308}",
        "ss",
        "ß",
        "a\u{200D}",
        "日本",
        "$1",
        &one,
        &two,
    ];
    for resource in names {
        let lease = take(&backend, resource, 60_000).await;
        assert_eq!(lease.resource().as_str(), resource);
    }
    assert_eq!(backend.list("", None, 100).await.unwrap().grants.len(), names.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn ttls_at_their_limits() {
    let server = shared();
    let backend = connect(&server, "ttls").await;
    let longest = lease_core::Ttl::MAX;
    let lease = backend.try_acquire("long", longest).await.unwrap().unwrap();
    assert_eq!(lease.granted_ttl(), longest);
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    let held = backend.inspect(&name("long")).await.unwrap().held.unwrap();
    assert!(held.remaining <= longest && held.remaining > Duration::from_hours(24 * 365 * 99));
    // A millisecond is granted, and is over before it can be used.
    match backend.try_acquire("short", Duration::from_nanos(1)).await {
        Ok(Some(lease)) => assert_eq!(lease.granted_ttl(), Duration::from_millis(1)),
        Ok(None) => panic!("nobody else holds it"),
        Err(error) => assert!(matches!(error, LeaseError::LateGrant { .. }), "{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_run_out_are_an_error_and_no_grant() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "range").await;
    let lease = take(&backend, "r", 60_000).await;
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    sql(&pool, &format!("UPDATE range.lease SET value = {}", i64::MAX - 1)).await;
    let last = take(&backend, "r", 60_000).await;
    assert_eq!(last.token().unwrap().value_i64(), i64::MAX);
    assert_eq!(backend.release(&last).await.unwrap(), Release::Released);
    let error = backend.acquire(&attempt("r", 60_000)).await.unwrap_err();
    assert!(matches!(error, LeaseError::TokenRange { .. }), "{error}");
    assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::Fix));
    assert_eq!(backend.inspect(&name("r")).await.unwrap().held, None);
    sql(&pool, &format!("UPDATE range.meta SET floor = {}", i64::MAX)).await;
    let error = backend.acquire(&attempt("fresh", 60_000)).await.unwrap_err();
    assert!(matches!(error, LeaseError::TokenRange { .. }), "{error}");
}

/// The value is at least the clock's, but a clock that was set back does not take a name's values back.
#[tokio::test(flavor = "multi_thread")]
async fn values_never_go_back_with_the_clock() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "clock").await;
    let lease = take(&backend, "r", 60_000).await;
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    // As if the latest grant had been made by a clock that was a year ahead.
    let ahead = value(&lease) + 31_536_000_000_000;
    sql(&pool, &format!("UPDATE clock.lease SET value = {ahead}")).await;
    let next = take(&backend, "r", 60_000).await;
    assert_eq!(value(&next), ahead + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_lasts_as_long_as_the_store_and_changes_when_it_was_emptied() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "history").await;
    let other = connect(&server, "history").await;
    let authority = |lease: &lease_core::Lease| lease.token().unwrap().authority().clone();
    let (a, b) = (take(&backend, "a", 60_000).await, take(&other, "b", 60_000).await);
    assert_eq!(authority(&a), authority(&b));
    assert!(authority(&a).as_str().starts_with("postgres:") && authority(&a).as_str().ends_with(":0"));
    sql(&pool, "TRUNCATE history.lease, history.meta").await;
    let c = take(&backend, "a", 60_000).await;
    assert_ne!(authority(&a), authority(&c));
    assert!(matches!(other.renew(&a).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    let raised = PostgresBackend::connect(&url(&server, "namespace=history&epoch=7")).await.unwrap();
    let d = take(&raised, "d", 60_000).await;
    assert!(authority(&d).as_str().ends_with(":7"));
}

/// Dropping the leases alone forgets the last values as well: a new authority.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_lease_table_ends_the_history() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "ended").await;
    let before = take(&backend, "r", 60_000).await;
    sql(&pool, "DROP TABLE ended.lease").await;
    let after = take(&connect(&server, "ended").await, "r", 60_000).await;
    assert_ne!(before.token().unwrap().authority(), after.token().unwrap().authority());
    sql(&pool, "DROP TABLE ended.lease").await;
    sql(&pool, &PostgresBackend::migration(&lease_core::Namespace::parse("ended").unwrap())).await;
    let migrated = take(&connect(&server, "ended").await, "r", 60_000).await;
    assert_ne!(migrated.token().unwrap().authority(), after.token().unwrap().authority());
}

/// A grant whose token can't be made is there: the error must not say that nothing happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_history_is_an_error_with_an_unknown_effect() {
    let server = shared();
    let pool = admin(&server).await;
    let backend = connect(&server, "harmed").await;
    sql(&pool, "UPDATE harmed.meta SET incarnation = 'no authority'").await;
    let error = backend.acquire(&attempt("r", 60_000)).await.unwrap_err();
    assert_eq!((error.effect(), error.advice()), (Effect::Unknown, Advice::Fix), "{error}");
    assert!(backend.try_acquire("other", Duration::from_mins(1)).await.is_err());
    assert_eq!(backend.inspect(&name("other")).await.unwrap().held, None, "whoever asked in short gave it up");
}

/// The clean-up that begins with each client must not create anew what was purged under it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_comes_back_after_a_purge() {
    let server = shared();
    let pool = admin(&server).await;
    for round in 0..12 {
        let backend = connect(&server, &format!("purged{round}")).await;
        backend.purge().await.unwrap();
    }
    // Each client's own connections are the last that could; the server has seen all of them end.
    let clients =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND query LIKE '%\"purged%'";
    while number(&pool, clients).await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'purged%'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_apart_and_purge_removes_one() {
    let server = shared();
    let pool = admin(&server).await;
    let (a, b) = (connect(&server, "space_a").await, connect(&server, "space_b").await);
    let first = take(&a, "r", 60_000).await;
    take(&b, "r", 60_000).await;
    a.purge().await.unwrap();
    assert_eq!(number(&pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'space_a'").await, 0);
    assert!(is_held(&b, "r").await);
    let next = take(&a, "r", 60_000).await;
    assert_ne!(first.token().unwrap().authority(), next.token().unwrap().authority());
    // What somebody else keeps in the schema stays.
    sql(&pool, "CREATE TABLE space_a.mine (n int)").await;
    a.purge().await.unwrap();
    assert_eq!(number(&pool, "SELECT count(*) FROM space_a.mine").await, 0);
    // So does the schema that comes with the database.
    connect(&server, "public").await.purge().await.unwrap();
    assert_eq!(number(&pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'public'").await, 1);
}
