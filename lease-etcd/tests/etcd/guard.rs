//! The guarded destination.

use crate::support::*;
use lease_core::{
    Authority, Claim, Effect, FencedRegister, FencingToken, GrantId, GuardError, GuardedDestination, LeaseError,
    Refusal, ResourceName,
};
use lease_etcd::{EtcdBackend, EtcdDestination};
use lease_servers::{Once, Proxy, Server};
use std::time::Duration;

fn authority(text: &str) -> Authority {
    Authority::parse(text).unwrap()
}

fn token(authority_text: &str, value: u64, grant: u64) -> FencingToken {
    let grant = GrantId::from_hex(&format!("{grant:016x}")).unwrap();
    FencingToken::new(authority(authority_text), value, grant).unwrap()
}

async fn destination(server: &Server) -> EtcdDestination {
    let destination = EtcdDestination::connect(server.url()).await.unwrap();
    destination.adopt(None, &authority("a")).await.unwrap();
    destination
}

fn refusal(answer: Result<(), GuardError>) -> Refusal {
    match answer {
        Err(GuardError::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

async fn stored(destination: &EtcdDestination, resource: &ResourceName) -> (Option<String>, Option<u64>) {
    let stored = destination.read(resource).await.unwrap();
    (stored.value, stored.mark.map(|(value, _)| value))
}

#[tokio::test]
async fn admits_at_or_above_the_mark_and_refuses_below() {
    let server = server();
    let (destination, r) = (destination(&server).await, name("r"));
    assert_eq!(stored(&destination, &r).await, (None, None));
    destination.write(&r, &token("a", 9, 1), "nine").await.unwrap();
    destination.write(&r, &token("a", 9, 1), "nine again").await.unwrap();
    destination.seal(&r, &token("a", 9, 1)).await.unwrap();
    destination.seal(&r, &token("a", 10, 2)).await.unwrap();
    assert_eq!(stored(&destination, &r).await, (Some("nine again".into()), Some(10)), "by number, not by text");
    let stale = Refusal::Stale { presented: 9, mark: 10 };
    assert_eq!(refusal(destination.write(&r, &token("a", 9, 1), "stale").await), stale);
    assert_eq!(refusal(destination.seal(&r, &token("a", 9, 1)).await), stale);
    let conflict = Refusal::Conflict { value: 10 };
    assert_eq!(refusal(destination.write(&r, &token("a", 10, 3), "twin").await), conflict);
    assert_eq!(stored(&destination, &r).await, (Some("nine again".into()), Some(10)));
    destination.write(&name("r2"), &token("a", 1, 1), "another resource has its own mark").await.unwrap();
}

#[tokio::test]
async fn the_largest_values_compare_exactly() {
    let server = server();
    let (destination, r) = (destination(&server).await, name("r"));
    let max = FencingToken::MAX_VALUE;
    destination.write(&r, &token("a", max - 1, 1), "one less").await.unwrap();
    destination.write(&r, &token("a", max, 2), "max").await.unwrap();
    let stale = Refusal::Stale { presented: max - 1, mark: max };
    assert_eq!(refusal(destination.write(&r, &token("a", max - 1, 1), "stale").await), stale);
    assert_eq!(stored(&destination, &r).await, (Some("max".into()), Some(max)));
}

#[tokio::test]
async fn one_authority_is_trusted_and_changed_by_compare_and_set() {
    let server = server();
    let (destination, r) = (EtcdDestination::connect(server.url()).await.unwrap(), name("r"));
    let unknown = |answer| matches!(refusal(answer), Refusal::UnknownAuthority { .. });
    assert!(unknown(destination.write(&r, &token("a", 1, 1), "x").await), "nothing is trusted yet");
    destination.adopt(None, &authority("a")).await.unwrap();
    destination.write(&r, &token("a", 5, 1), "five").await.unwrap();
    assert!(unknown(destination.write(&r, &token("b", 99, 1), "x").await));
    assert!(unknown(destination.seal(&r, &token("b", 99, 1)).await));

    for expected in [None, Some(authority("b"))] {
        match destination.adopt(expected.as_ref(), &authority("c")).await {
            Err(GuardError::AdoptConflict { found }) => assert_eq!(found, Some(authority("a"))),
            other => panic!("{other:?}"),
        }
    }
    destination.adopt(Some(&authority("a")), &authority("b")).await.unwrap();
    assert_eq!(stored(&destination, &r).await, (Some("five".into()), None), "marks begin anew");
    destination.write(&r, &token("b", 1, 1), "one").await.unwrap();
    assert!(unknown(destination.write(&r, &token("a", 99, 1), "old").await), "the old one stays refused");

    destination.adopt(Some(&authority("b")), &authority("a")).await.unwrap();
    let stale = Refusal::Stale { presented: 4, mark: 5 };
    assert_eq!(refusal(destination.write(&r, &token("a", 4, 1), "x").await), stale, "and finds its old marks");
}

#[tokio::test]
async fn the_callers_own_transaction_commits_only_while_it_is_not_stale() {
    let server = server();
    let (destination, raw, r) = (destination(&server).await, raw(&server).await, name("r"));
    let put = |guard: &lease_etcd::EtcdGuard, value: &str| {
        let op = etcd_client::TxnOp::put("mine/data", value, None);
        let txn = etcd_client::Txn::new().when(guard.compares()).and_then([op]);
        let mut kv = raw.kv_client();
        async move { kv.txn(txn).await.unwrap().succeeded() }
    };
    let old = destination.open(&r, &token("a", 1, 1)).await.unwrap();
    assert!(put(&old, "old").await);
    old.check().await.unwrap();
    let new = destination.open(&r, &token("a", 2, 2)).await.unwrap();
    assert!(!put(&old, "stale").await, "sealed by a newer grant");
    assert_eq!(refusal(old.check().await), Refusal::Stale { presented: 1, mark: 2 });
    assert!(put(&new, "new").await);
    assert!(destination.open(&r, &token("a", 1, 1)).await.is_err());
    destination.adopt(Some(&authority("a")), &authority("b")).await.unwrap();
    assert!(!put(&new, "x").await, "another authority");
    let got = raw.kv_client().get("mine/data", None).await.unwrap();
    assert_eq!(got.kvs().first().unwrap().value(), b"new");
}

#[tokio::test]
async fn mark_and_data_stand_or_fall_together_and_survive_a_kill() {
    let mut server = server();
    let (destination, r) = (destination(&server).await, name("r"));
    destination.write(&r, &token("a", 1, 1), "small").await.unwrap();
    // More than etcd takes in one request, and more than its gRPC reads.
    for too_much in [1_600_000, 2_200_000] {
        let error = destination.write(&r, &token("a", 2, 2), &"x".repeat(too_much)).await.unwrap_err();
        let GuardError::Store(error @ LeaseError::Store { .. }) = error else { panic!("{error}") };
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(stored(&destination, &r).await, (Some("small".into()), Some(1)), "no mark without its mutation");
    }
    destination.write(&r, &token("a", 2, 2), &"x".repeat(1_500_000)).await.unwrap();

    destination.write(&r, &token("a", 7, 2), "seven").await.unwrap();
    server.kill();
    server.restart().unwrap();
    let destination = EtcdDestination::connect(server.url()).await.unwrap();
    assert_eq!(stored(&destination, &r).await, (Some("seven".into()), Some(7)));
    assert!(destination.claims().has(Claim::MarkSurvivesRestart));
    destination.purge().await.unwrap();
    assert_eq!(stored(&destination, &r).await, (None, None));
}

#[tokio::test]
async fn a_damaged_mark_is_an_error_and_admits_nothing() {
    let server = server();
    let (destination, raw, r) = (destination(&server).await, raw(&server).await, name("r"));
    raw.kv_client().put("leasehold/guard/mark/a|r", "zebra", None).await.unwrap();
    let error = destination.write(&r, &token("a", 1, 1), "x").await.unwrap_err();
    assert!(matches!(error, GuardError::Store(LeaseError::ForeignData { .. })), "{error}");
}

#[tokio::test]
async fn a_connection_that_fell_silent_is_given_up() {
    let server = server();
    destination(&server).await;
    let proxy = Proxy::to(server.port()).unwrap();
    let url = format!("etcd://127.0.0.1:{}/?call_timeout_ms=1000", proxy.port());
    let behind = EtcdDestination::connect(&url).await.unwrap();
    proxy.once(Once::SwallowReply);
    let error = behind.seal(&name("r"), &token("a", 1, 1)).await.unwrap_err();
    assert!(matches!(error, GuardError::Store(LeaseError::Timeout { effect: Effect::Unknown, .. })), "{error}");
    behind.seal(&name("r"), &token("a", 1, 1)).await.unwrap();
}

#[tokio::test]
async fn purge_removes_values_of_any_size() {
    let server = server();
    let destination = destination(&server).await;
    let backend = backend(&server).await;
    let big = "x".repeat(1_000_000);
    for n in 0..5 {
        let lease = acquire(&backend, &n.to_string(), TTL).await;
        FencedRegister::write(&backend, &lease, &big).await.unwrap();
        destination.write(lease.resource(), &token("a", 1, 1), &big).await.unwrap();
    }
    destination.purge().await.unwrap();
    backend.purge().await.unwrap();
    assert_eq!(keys(&raw(&server).await).await.len(), 0);
}

#[tokio::test]
async fn concurrent_writers_leave_the_highest() {
    let server = server();
    let (destination, r) = (destination(&server).await, name("r"));
    let mut writers = tokio::task::JoinSet::new();
    for value in 1..=40_u64 {
        let (destination, r) = (destination.clone(), r.clone());
        writers.spawn(async move { destination.write(&r, &token("a", value, value), &value.to_string()).await });
    }
    while let Some(answer) = writers.join_next().await {
        match answer.unwrap() {
            Ok(()) | Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(stored(&destination, &r).await, (Some("40".into()), Some(40)));
}

#[tokio::test]
async fn a_lease_and_its_destination_work_together() {
    let server = server();
    let (backend, r) = (EtcdBackend::connect(server.url()).await.unwrap(), name("r"));
    let lease = acquire(&backend, "r", Duration::from_secs(30)).await;
    let token = lease.token().unwrap();
    let destination = EtcdDestination::connect(server.url()).await.unwrap();
    destination.adopt(None, token.authority()).await.unwrap();
    destination.seal(&r, token).await.unwrap();
    destination.write(&r, token, "x").await.unwrap();
    assert_eq!(stored(&destination, &r).await, (Some("x".into()), Some(token.value())));
    assert!(token.authority().as_str().starts_with("etcd:"));
}
