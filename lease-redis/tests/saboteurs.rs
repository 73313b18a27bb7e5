//! The tests of this crate must be able to fail: with one guarantee broken in the real scripts, each probe here sees it.
#![cfg(all(feature = "testing", any(feature = "client-redis", feature = "client-fred")))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::*;
use lease_core::{
    Acquisition, Authority, Fence, FencingToken, GrantId, GuardedDestination, LeaseBackend, LeaseError, Release,
    Renewal,
};
use lease_redis::{RedisBackend, RedisDestination};
use lease_servers::Server;

const CLIENT: &str = if cfg!(feature = "client-redis") { "redis" } else { "redis+fred" };

async fn edited(server: &Server, edits: &[(&str, &str)]) -> RedisBackend {
    RedisBackend::connect_edited(&url(server, CLIENT, ""), edits).await.unwrap()
}

#[tokio::test]
async fn a_stale_edit_is_an_error() {
    let server = server();
    let url = url(&server, CLIENT, "");
    let edits = [("this text occurs nowhere", "")];
    assert!(matches!(RedisBackend::connect_edited(&url, &edits).await, Err(LeaseError::InvalidConfig { .. })));
    assert!(matches!(RedisDestination::connect_edited(&url, &edits).await, Err(LeaseError::InvalidConfig { .. })));
}

#[tokio::test]
async fn exclusion() {
    let server = server();
    let backend = edited(&server, &[("if live then return { 'held'", "if false then return { 'held'")]).await;
    drop(acquire(&backend, &attempt("r", 30_000)).await);
    assert!(!is_held(&backend, "r").await);
}

#[tokio::test]
async fn one_grant_per_attempt() {
    let server = server();
    let backend = edited(&server, &[("if owner == ARGV[1] then\n  if live", "if false then\n  if live")]).await;
    let again = attempt("r", 30_000);
    drop(acquire(&backend, &again).await);
    assert!(
        matches!(backend.acquire(&again).await.unwrap(), Acquisition::Held(_)),
        "its own grant is taken for another's"
    );
}

#[tokio::test]
async fn tombstones() {
    let server = server();
    let backend = edited(&server, &[("if others[2] then", "if false then")]).await;
    let spent = attempt("r", 30_000);
    let key = format!("leasehold:{{r}}:spent:{}", spent.owner().reveal());
    cli(&server, &["SET", &key, "1"]);
    assert!(matches!(backend.acquire(&spent).await.unwrap(), Acquisition::Acquired(_)));
}

#[tokio::test]
async fn growing_values() {
    let server = server();
    let backend = edited(&server, &[("math.max(before + 1, t)", "1")]).await;
    let first = acquire(&backend, &attempt("r", 30_000)).await;
    assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
    let second = acquire(&backend, &attempt("r", 30_000)).await;
    assert!(value(&second) <= value(&first));
}

#[tokio::test]
async fn ownership_and_expiry_of_renew_and_release() {
    let server = server();
    // The owner and the value are two lines of defence, so that both have to go.
    let owner = ("elseif owner ~= ARGV[1] then lost = 'superseded'", "");
    let value = ("if not lost and value ~= ARGV[4] then lost = 'superseded' end", "");
    for (resource, edits) in [("one line", &[owner][..]), ("no line", &[owner, value][..])] {
        let backend = edited(&server, edits).await;
        let first = acquire(&backend, &attempt(resource, 30_000)).await;
        assert_eq!(backend.release(&first).await.unwrap(), Release::Released);
        drop(acquire(&backend, &attempt(resource, 30_000)).await);
        assert_eq!(matches!(backend.renew(&first).await.unwrap(), Renewal::Renewed(_)), edits.len() == 2, "{resource}");
    }

    let backend = edited(&server, &[("elseif not live then lost = 'expired' end", "end")]).await;
    let short = acquire(&backend, &attempt("s", 30_000)).await;
    expire(&server, "s");
    assert!(matches!(backend.renew(&short).await.unwrap(), Renewal::Renewed(_)), "a resurrection");
}

#[tokio::test]
async fn the_native_fence() {
    let server = server();
    let backend = edited(&server, &[("if owner ~= ARGV[1] or value ~= ARGV[2] or", "if false and")]).await;
    let Fence::LiveOwner(register) = backend.fence() else { panic!() };
    let lease = acquire(&backend, &attempt("r", 30_000)).await;
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    register.write(&lease, "stale").await.unwrap();
}

#[tokio::test]
async fn the_guard() {
    let authority = Authority::parse("a").unwrap();
    let token =
        |value, grant: &str| FencingToken::new(authority.clone(), value, GrantId::from_hex(grant).unwrap()).unwrap();
    let (old, new) = (token(1 << 60, "00000000000000aa"), token((1 << 60) + 1, "00000000000000bb"));
    for edit in [
        ("if order < 0 then", "if false then"),
        // A guard that compares doubles takes neighbours for equal, and without the grant it admits them.
        ("and grant ~= ARGV[3]", "and false"),
        ("if order > 0 then redis.call('HSET'", "if false then redis.call('HSET'"),
    ] {
        let server = server();
        let destination = RedisDestination::connect_edited(&url(&server, CLIENT, ""), &[edit]).await.unwrap();
        destination.adopt(None, &authority).await.unwrap();
        destination.seal(&name("r"), &new).await.unwrap();
        let stale = if edit.1 == "and false" { token((1 << 60) + 1, "00000000000000cc") } else { old.clone() };
        destination.write(&name("r"), &stale, "stale").await.unwrap();
    }
}
