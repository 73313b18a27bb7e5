//! Grants that an operator ends by force, on a real server.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, reason = "one module for several test programs")]
mod support;

use lease_core::{
    Acquisition, Effect, ErrorKind, FenceError, FencedRegister as _, Forced, LeaseBackend, LeaseError, LossReason,
    Release, Renewal,
};
use lease_postgres::PostgresBackend;
use lease_servers::{Once, Proxy};
use sqlx::PgPool;
use support::{
    admin, attempt, connect, expire_in, force, is_held, name, number, order, shared, sql, take, until_blocked,
    until_blocked_or_done, until_expired, url, value,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_named_grant_is_over_for_good_and_its_holder_is_told_why() {
    let server = shared();
    let (a, b) = (connect(&server, "force_end").await, connect(&server, "force_end").await);
    let attempt = attempt("r", 60_000);
    let Acquisition::Acquired(broken) = a.acquire(&attempt).await.unwrap() else { panic!("held") };
    a.write(&broken, "before").await.unwrap();
    assert_eq!(force(&b, &broken).await, Forced::Ended);
    let free = b.inspect(&name("r")).await.unwrap();
    assert_eq!((free.held, free.last_value), (None, Some(value(&broken))));
    assert!(matches!(a.renew(&broken).await.unwrap(), Renewal::Lost(LossReason::Forced)));
    assert!(matches!(a.write(&broken, "after").await, Err(FenceError::Refused { .. })));
    assert_eq!(a.read(&name("r")).await.unwrap().as_deref(), Some("before"));
    assert_eq!(a.release(&broken).await.unwrap(), Release::NotHeld);
    // Giving the attempt up, too, does not make it a released one; nor does a release with a tombstone.
    a.abandon(&attempt).await.unwrap();
    assert_eq!(a.release(&broken).await.unwrap(), Release::NotHeld);
    let handed_over = broken.clone().into_hand_over().into_lease(a.clock()).unwrap();
    assert_eq!(a.release(&handed_over).await.unwrap(), Release::NotHeld);
    assert!(matches!(a.renew(&broken).await.unwrap(), Renewal::Lost(LossReason::Forced)));

    let next = take(&b, "r", 60_000).await;
    assert!(next.token() > broken.token());
    assert!(matches!(a.renew(&broken).await.unwrap(), Renewal::Lost(LossReason::Superseded)));
    assert_eq!(a.release(&broken).await.unwrap(), Release::NotHeld);
    // The row that was ended by force carries the next grant, which can end as any other.
    assert!(matches!(b.renew(&next).await.unwrap(), Renewal::Renewed(_)));
    assert_eq!(b.release(&next).await.unwrap(), Release::Released);
    let handed_over = next.clone().into_hand_over().into_lease(b.clock()).unwrap();
    assert_eq!(b.release(&handed_over).await.unwrap(), Release::Released);
    assert!(matches!(b.renew(&next).await.unwrap(), Renewal::Lost(LossReason::Released)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_finds_no_grant_but_the_one_that_it_names() {
    let server = shared();
    let pool = admin(&server).await;
    let (a, b) = (connect(&server, "force_named").await, connect(&server, "force_named").await);
    assert_eq!(b.force_release(&order("r", 1)).await.unwrap(), Forced::NotHeld, "never held");
    assert_eq!(number(&pool, "SELECT count(*) FROM force_named.lease").await, 0);
    let old = take(&a, "r", 60_000).await;
    assert_eq!(force(&b, &old).await, Forced::Ended);
    assert_eq!(force(&b, &old).await, Forced::NotHeld, "again");
    let (next, other) = (take(&a, "r", 60_000).await, take(&a, "other", 60_000).await);
    let live = value(&next);
    assert_eq!(force(&b, &old).await, Forced::OtherGrant { value: live }, "again, after another grant");
    for wrong in [live - 1, live + 1, 1, i64::MAX.unsigned_abs(), value(&other)] {
        assert_eq!(b.force_release(&order("r", wrong)).await.unwrap(), Forced::OtherGrant { value: live }, "{wrong}");
    }
    assert_eq!(b.force_release(&order("R", live)).await.unwrap(), Forced::NotHeld, "another name");
    for lease in [&next, &other] {
        assert!(matches!(a.renew(lease).await.unwrap(), Renewal::Renewed(_)), "left alone");
    }
    assert_eq!(number(&pool, SPENT).await, 1, "of the grant that was ended");
}

const SPENT: &str = "SELECT count(*) FROM force_named.lease, jsonb_each(spent)";

/// What has ended by itself stays what it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_had_ended_was_not_ended_by_force() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "force_ended").await);
    let (expired, released) = (take(&backend, "expired", 60_000).await, take(&backend, "released", 60_000).await);
    expire_in(&pool, "force_ended", "expired", 0).await;
    assert_eq!(backend.release(&released).await.unwrap(), Release::Released);
    for lease in [&expired, &released] {
        assert_eq!(force(&backend, lease).await, Forced::NotHeld, "{}", lease.resource());
    }
    assert!(matches!(backend.renew(&expired).await.unwrap(), Renewal::Lost(LossReason::Expired)));
    assert_eq!(backend.release(&released).await.unwrap(), Release::Released, "never a false loss");
    assert_eq!(number(&pool, "SELECT count(*) FROM force_ended.lease WHERE forced OR spent <> '{}'").await, 0);
    // Nor does a server clock that was set back bring any of them back: as if their ends were still to come.
    let broken = take(&backend, "broken", 60_000).await;
    assert_eq!(force(&backend, &broken).await, Forced::Ended);
    sql(&pool, "UPDATE force_ended.lease SET expires_at = expires_at + interval '1 hour' WHERE released").await;
    for lease in [&released, &broken] {
        assert_eq!(force(&backend, lease).await, Forced::NotHeld, "{}", lease.resource());
    }
    assert_eq!(backend.release(&released).await.unwrap(), Release::Released);
    assert!(matches!(backend.renew(&broken).await.unwrap(), Renewal::Lost(LossReason::Forced)));
    assert_eq!(backend.release(&broken).await.unwrap(), Release::NotHeld);
}

/// Requests of the attempt that were held up find that it is over, for as long as after `abandon`: two granted TTLs, at least ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_attempt_still_has_on_its_way_makes_no_grant() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "force_late").await);
    let late = async |attempt: &lease_core::Attempt, when| {
        let answer = backend.acquire(&attempt.as_held_up()).await;
        assert!(matches!(answer, Err(LeaseError::AttemptOver { .. })), "{when}: {answer:?}");
    };
    for (resource, ttl_ms, remembered_ms) in [("long", 60_000, 120_000), ("short", 3_000, 10_000)] {
        let attempt = attempt(resource, 600_000);
        let Acquisition::Acquired(broken) = backend.acquire(&attempt).await.unwrap() else { panic!("held") };
        // A grant of this TTL, made long ago and just renewed; but no test depends on being quick, so it lasts.
        let as_if = format!(
            "UPDATE force_late.lease SET granted_at = granted_at - interval '1 day',
                    renewed_at = expires_at - interval '{ttl_ms} ms' WHERE name = '{resource}'"
        );
        sql(&pool, &as_if).await;
        let before = number(&pool, NOW_US).await;
        assert_eq!(force(&backend, &broken).await, Forced::Ended);
        let after = number(&pool, NOW_US).await;
        late(&attempt, "by the row's owner").await;
        let until =
            format!("SELECT s.value::bigint FROM force_late.lease l, jsonb_each(spent) s WHERE name = '{resource}'");
        let until = number(&pool, &until).await;
        let about = before + remembered_ms * 1_000..=after + remembered_ms * 1_000;
        assert!(about.contains(&until), "{resource}: {until} is not in {about:?}");

        let next = take(&backend, resource, 60_000).await;
        late(&attempt, "while another grant is live").await;
        assert!(matches!(backend.renew(&next).await.unwrap(), Renewal::Renewed(_)));
        assert_eq!(backend.release(&next).await.unwrap(), Release::Released);
        late(&attempt, "after another grant").await;
        assert!(!is_held(&backend, resource).await, "it left nothing");
    }
}

const NOW_US: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// An order without an answer: it was carried out or it was not, and its repeat tells no lie and does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_without_an_answer_can_be_repeated() {
    let server = shared();
    let witness = connect(&server, "force_lost").await;
    for (fault, answer) in [
        (Once::CutBeforeRequest, Forced::Ended),
        (Once::CutBeforeReply, Forced::NotHeld),
        (Once::SwallowReply, Forced::NotHeld),
    ] {
        let proxy = Proxy::to(server.port()).unwrap();
        let through =
            url(&server, "namespace=force_lost&max_connections=1&call_timeout_ms=5000&connect_timeout_ms=30000")
                .replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
        let operator = PostgresBackend::connect(&through).await.unwrap();
        let lease = take(&operator, &format!("{fault:?}"), 60_000).await;
        // Warmed up, and in use: the next request is the statement itself.
        assert_eq!(operator.force_release(&order("nobody's", 1)).await.unwrap(), Forced::NotHeld);
        proxy.once(fault);
        let error = operator.force_release(&order(lease.resource().as_str(), value(&lease))).await.unwrap_err();
        assert!(proxy.happened());
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Transport, Effect::Unknown), "{fault:?}: {error}");
        assert!(error.to_string().contains("force-release"), "{error}");
        assert_eq!(force(&witness, &lease).await, answer, "{fault:?}");
        assert!(matches!(witness.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Forced)));
    }
}

/// Runs an order against a lease whose row somebody else has locked, and changes by `change` before the lock is given up.
async fn behind_a_lock(pool: &PgPool, backend: &PostgresBackend, namespace: &str, change: &str) -> Forced {
    let lease = take(backend, "r", 60_000).await;
    let mut foreign = pool.begin().await.unwrap();
    let lock = format!("SELECT FROM {namespace}.lease WHERE name = 'r' FOR UPDATE");
    sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *foreign).await.unwrap();
    let ordering = tokio::spawn({
        let backend = backend.clone();
        async move { force(&backend, &lease).await }
    });
    until_blocked(pool, namespace, 1, &ordering).await;
    let change = format!("UPDATE {namespace}.lease SET {change} WHERE name = 'r'");
    sqlx::query(sqlx::AssertSqlSafe(change)).execute(&mut *foreign).await.unwrap();
    foreign.commit().await.unwrap();
    ordering.await.unwrap()
}

/// What happens to the grant while the order waits for its row is what the order answers to.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_decides_when_it_has_the_row() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "force_wait").await);
    for (change, answer) in [
        ("expires_at = expires_at + interval '1 hour'", Some(Forced::Ended)),
        ("released = true, expires_at = clock_timestamp()", Some(Forced::NotHeld)),
        ("expires_at = clock_timestamp()", Some(Forced::NotHeld)),
        // Ended, and granted to somebody else.
        ("owner = 'another', value = value + 1", None),
    ] {
        let forced = behind_a_lock(&pool, &backend, "force_wait", change).await;
        match answer {
            Some(answer) => assert_eq!(forced, answer, "{change}"),
            None => assert!(matches!(forced, Forced::OtherGrant { .. }), "{change}: {forced:?}"),
        }
        let ended_by_force = number(&pool, "SELECT count(*) FROM force_wait.lease WHERE forced").await;
        assert_eq!(ended_by_force, i64::from(forced == Forced::Ended), "{change}");
    }
}

/// The grant's own end, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_waits_past_the_end_ends_nothing() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "force_past").await);
    // The wait has to begin before the lease's end; a slow machine needs more time for that.
    for left_ms in [500, 2_000, 8_000, 20_000] {
        let lease = take(&backend, "r", 60_000).await;
        expire_in(&pool, "force_past", "r", left_ms).await;
        let mut foreign = pool.begin().await.unwrap();
        sqlx::query("SELECT FROM force_past.lease FOR UPDATE").execute(&mut *foreign).await.unwrap();
        let ordering = tokio::spawn({
            let (backend, lease) = (backend.clone(), lease.clone());
            async move { force(&backend, &lease).await }
        });
        let began_in_time = until_blocked_or_done(&pool, "force_past", 1, &ordering).await
            && backend.inspect(&name("r")).await.unwrap().held.is_some();
        until_expired(&backend, "r").await;
        foreign.commit().await.unwrap();
        assert_eq!(ordering.await.unwrap(), Forced::NotHeld);
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Lost(LossReason::Expired)));
        if began_in_time {
            return;
        }
    }
    panic!("too slow for this test");
}

/// A holder inside a fenced transaction does not hold the order up. What it has fenced commits, and nobody is granted the resource before that;
/// it fences nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_transaction_ends_before_the_next_grant() {
    let server = shared();
    let (pool, backend) = (admin(&server).await, connect(&server, "force_fenced").await);
    sql(&pool, "CREATE TABLE force_fenced.work (n int)").await;
    let lease = take(&backend, "r", 60_000).await;
    let mut fenced = pool.begin().await.unwrap();
    backend.transaction_fence().check(&mut fenced, &lease).await.unwrap();
    assert_eq!(force(&backend, &lease).await, Forced::Ended);
    assert!(is_held(&backend, "r").await, "as long as what was fenced before may commit");
    let mut later = pool.begin().await.unwrap();
    let refused = backend.transaction_fence().check(&mut later, &lease).await;
    assert!(matches!(refused, Err(FenceError::Refused { .. })));
    assert!(sqlx::query("INSERT INTO force_fenced.work VALUES (2)").execute(&mut *later).await.is_err());
    sqlx::query("INSERT INTO force_fenced.work VALUES (1)").execute(&mut *fenced).await.unwrap();
    fenced.commit().await.unwrap();
    take(&backend, "r", 60_000).await;
    assert_eq!(number(&pool, "SELECT sum(n)::bigint FROM force_fenced.work").await, 1);
}
