//! Each guarantee can be taken out, and then its test fails: shown here in short for the suite that relies on it.

use crate::force::order;
use crate::support::*;
use lease_core::{
    Authority, FencedRegister, FencingToken, Forced, GrantId, GuardedDestination, LeaseBackend, LeaseError, Release,
    Renewal,
};
use lease_etcd::{EtcdBackend, EtcdDestination};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_stale_edit_is_an_error() {
    for edits in [[("no such check", "")], [("release compares the owner", "x")]] {
        let error = EtcdBackend::connect_edited("etcd://127.0.0.1:1", &edits).await.unwrap_err();
        assert!(matches!(error, LeaseError::InvalidConfig { .. }), "{error:?}");
        let error = EtcdDestination::connect_edited("etcd://127.0.0.1:1", &edits).await.unwrap_err();
        assert!(error.to_string().contains("guard compares the mark"), "{error}");
    }
}

#[tokio::test]
async fn flawed_backends_show_their_flaw() {
    let server = server();
    let (sound, raw) = (backend(&server).await, raw(&server).await);
    let flawed = async |edit| EtcdBackend::connect_edited(server.url(), &[(edit, "")]).await.unwrap();

    let forgetful = flawed("release compares the owner").await;
    let stale = acquire(&forgetful, "r", TTL).await;
    until_free(&sound, "r").await;
    acquire(&sound, "r", LONG).await;
    assert_eq!(forgetful.release(&stale).await.unwrap(), Release::Released);
    assert!(!is_held(&sound, "r").await, "it released another's grant");

    let blind = flawed("renew reads the key").await;
    let lease = acquire(&blind, "s", LONG).await;
    raw.kv_client().delete("leasehold/lease/grant/s", None).await.unwrap();
    assert!(matches!(blind.renew(&lease).await.unwrap(), Renewal::Renewed(_)), "it renewed what is gone");

    let open = flawed("fence compares the owner").await;
    let lease = acquire(&open, "t", LONG).await;
    assert_eq!(open.release(&lease).await.unwrap(), Release::Released);
    FencedRegister::write(&open, &lease, "stale").await.unwrap();

    let endless = flawed("acquire attaches the lease").await;
    acquire(&endless, "u", TTL).await;
    while etcd_leases(&raw).await > 1 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_held(&sound, "u").await, "it never ends");
}

#[tokio::test]
async fn flawed_grants_and_orders_show_their_flaw() {
    let server = server();
    let sound = backend(&server).await;
    let flawed = async |edit| EtcdBackend::connect_edited(server.url(), &[(edit, "")]).await.unwrap();

    let greedy = flawed("acquire compares that the resource is free").await;
    acquire(&sound, "r", LONG).await;
    acquire(&greedy, "r", LONG).await;

    let unordered = flawed("the token is the grant's revision").await;
    let first = acquire(&unordered, "s", TTL).await;
    until_free(&sound, "s").await;
    assert_eq!(acquire(&unordered, "s", LONG).await.token().unwrap().value(), first.token().unwrap().value());

    let trusting = flawed("renew compares the owner").await;
    let stale = acquire(&trusting, "t", TTL).await;
    until_free(&sound, "t").await;
    acquire(&sound, "t", LONG).await;
    assert!(matches!(trusting.renew(&stale).await.unwrap(), Renewal::Renewed(_)), "it renewed another's grant");

    let rash = flawed("force-release compares the value").await;
    acquire(&sound, "u", LONG).await;
    assert_eq!(rash.force_release(&order("u", 1)).await.unwrap(), Forced::Ended);
    assert!(!is_held(&sound, "u").await, "it ended what no order named");

    let forgetful = flawed("force-release leaves a marker").await;
    let broken = attempt("v", LONG);
    let value = repeat(&sound, &broken).await.token().unwrap().value();
    assert_eq!(forgetful.force_release(&order("v", value)).await.unwrap(), Forced::Ended);
    repeat(&sound, &broken.as_held_up()).await;
}

#[tokio::test]
async fn flawed_destinations_show_their_flaw() {
    let server = server();
    let (a, r) = (Authority::parse("a").unwrap(), name("r"));
    let token = |authority: &Authority, value| {
        FencingToken::new(authority.clone(), value, GrantId::from_hex("00000000000000aa").unwrap()).unwrap()
    };
    let flawed = async |edit| EtcdDestination::connect_edited(server.url(), &[(edit, "")]).await.unwrap();
    let unmarked = flawed("guard compares the mark").await;
    unmarked.adopt(None, &a).await.unwrap();
    unmarked.write(&r, &token(&a, 2), "new").await.unwrap();
    unmarked.write(&r, &token(&a, 1), "stale").await.unwrap();
    let trusting = flawed("guard compares the authority").await;
    trusting.write(&r, &token(&Authority::parse("b").unwrap(), 1), "foreign").await.unwrap();
}
