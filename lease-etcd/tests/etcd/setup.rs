//! Connecting, logging in, privileges, limits, and errors that say what to do.

use crate::force::order;
use crate::support::*;
use lease_core::{
    Acquisition, Effect, ErrorKind, FencedRegister, Forced, GuardedDestination, LeaseBackend, LeaseError, Release,
    Renewal,
};
use lease_etcd::{EtcdBackend, EtcdDestination};
use lease_servers::{Direction, EtcdSetup, Mode, Proxy, Server};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Turns authentication on: `root`, and `worker` who may use `leasehold/` only.
async fn with_login(server: &Server) {
    let mut raw = raw(server).await;
    raw.user_add("root", "r00t", None).await.unwrap();
    raw.user_grant_role("root", "root").await.unwrap();
    raw.user_add("worker", "s3cret", None).await.unwrap();
    raw.role_add("leases").await.unwrap();
    let prefix = etcd_client::Permission::read_write("leasehold/").with_prefix();
    raw.role_grant_permission("leases", prefix).await.unwrap();
    raw.user_grant_role("worker", "leases").await.unwrap();
    raw.auth_enable().await.unwrap();
}

fn url(server: &Server, login: &str, parameters: &str) -> String {
    format!("etcd://{login}127.0.0.1:{}/{parameters}", server.port())
}

#[tokio::test]
async fn the_least_privileged_account_runs_everything_and_nothing_else() {
    let mut server = server();
    with_login(&server).await;
    let worker = url(&server, "worker:s3cret@", "");
    let backend = EtcdBackend::connect(&worker).await.unwrap();
    run_all(&backend, &worker).await;

    // After a restart the server has forgotten the login; a renewal gets a new one by itself.
    let lease = acquire(&backend, "r", LONG).await;
    server.kill();
    server.restart().unwrap();
    settled(|| backend.renew(&lease)).await;
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);

    let error = EtcdBackend::connect(&url(&server, "worker:s3cret@", "?namespace=other")).await.unwrap_err();
    assert!(matches!(error, LeaseError::MissingPrivilege { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("--prefix=true readwrite other/lease/") && !message.contains("s3cret"), "{message}");
    let error = EtcdDestination::connect(&url(&server, "worker:s3cret@", "?namespace=other")).await.unwrap_err();
    assert!(error.to_string().contains("readwrite other/guard/"), "{error}");
}

/// Where logging in takes longer than a call may, calls fail for a while and then find the login that their forerunners began.
#[tokio::test(flavor = "multi_thread")]
async fn logging_in_may_take_longer_than_a_call() {
    let server = server();
    with_login(&server).await;
    let proxy = Proxy::to(server.port()).unwrap();
    // A login that hangs for a quarter of `connect_timeout_ms` is not waited for any longer, but taken when it is there.
    let limits = "?call_timeout_ms=500&connect_timeout_ms=1600";
    let address = url(&server, "worker:s3cret@", limits);
    let through = address.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let backend = EtcdBackend::connect(&through).await.unwrap();
    let resource = name("r");
    // A call that is never answered gives its connection up, and the login with it.
    proxy.set(Direction::Requests, Mode::Hold);
    backend.inspect(&resource).await.unwrap_err();
    // A login takes longer than a call, and a request does not.
    proxy.set(Direction::Requests, Mode::Delay(Duration::from_millis(300)));
    let mut failures = 0_u32;
    let begun = std::time::Instant::now();
    while let Err(error) = backend.inspect(&resource).await {
        failures += 1;
        assert_eq!(error.effect(), Effect::None);
        assert!(begun.elapsed() < Duration::from_mins(1), "no call succeeds any more: {error}");
    }
    assert!(failures > 0, "logging in was too quick to show anything");
}

async fn run_all(backend: &EtcdBackend, url: &str) {
    let mine = attempt("all", LONG);
    let lease = repeat(backend, &mine).await;
    repeat(backend, &mine).await;
    assert!(matches!(backend.acquire(&attempt("all", LONG)).await.unwrap(), Acquisition::Held(_)));
    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    assert!(is_held(backend, "all").await);
    assert_eq!(backend.list("a", None, 9).await.unwrap().grants.len(), 1);
    FencedRegister::write(backend, &lease, "x").await.unwrap();
    assert!(FencedRegister::read(backend, &name("all")).await.unwrap().is_some());
    backend.clean_up().await.unwrap();
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    backend.abandon(&mine).await.unwrap();
    let broken = acquire(backend, "all", LONG).await;
    let order = order("all", broken.token().unwrap().value());
    assert_eq!(backend.force_release(&order).await.unwrap(), Forced::Ended);

    let destination = EtcdDestination::connect(url).await.unwrap();
    let token = lease.token().unwrap();
    destination.adopt(None, token.authority()).await.unwrap();
    destination.open(&name("all"), token).await.unwrap().check().await.unwrap();
    destination.write(&name("all"), token, "x").await.unwrap();
    destination.read(&name("all")).await.unwrap();
    destination.purge().await.unwrap();
    backend.purge().await.unwrap();
}

/// Calls until the connection is there again after a restart.
async fn settled<F: Future<Output = Result<Renewal, LeaseError>>>(call: impl Fn() -> F) {
    loop {
        match call().await {
            Ok(Renewal::Renewed(_)) => return,
            Ok(lost) => panic!("{lost:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Transport, "{error}"),
        }
    }
}

/// With tokens of this kind, which the server does not remember, each change of users and roles makes all logins before it outdated.
#[tokio::test]
async fn a_change_of_roles_is_survived_with_a_new_login() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "a key of the test").unwrap();
    let tokens = format!("--auth-token=jwt,priv-key={},sign-method=HS256,ttl=10m", key.display());
    let server = lease_servers::etcd(&EtcdSetup { extra_args: vec![tokens], ..EtcdSetup::default() }).unwrap();
    with_login(&server).await;
    let backend = EtcdBackend::connect(&url(&server, "worker:s3cret@", "")).await.unwrap();
    let destination = EtcdDestination::connect(&url(&server, "worker:s3cret@", "")).await.unwrap();
    let lease = acquire(&backend, "r", LONG).await;
    let as_root = etcd_client::ConnectOptions::new().with_user("root", "r00t");
    let endpoint = [format!("127.0.0.1:{}", server.port())];
    let mut root = etcd_client::Client::connect(endpoint, Some(as_root)).await.unwrap();
    for change in ["one", "two"] {
        root.role_add(change).await.unwrap();
        root.refresh_token().await.unwrap();
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        destination.read(&name("r")).await.unwrap();
    }
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn refused_logins_say_what_to_check_and_keep_the_secret() {
    let server = server();
    let not_demanded = EtcdBackend::connect(&url(&server, "worker:s3cret@", "")).await.unwrap_err();
    with_login(&server).await;
    let wrong = EtcdBackend::connect(&url(&server, "worker:s3cretx@", "")).await.unwrap_err();
    let unknown = EtcdBackend::connect(&url(&server, "nobody:s3cret@", "")).await.unwrap_err();
    let none = EtcdBackend::connect(&url(&server, "", "")).await.unwrap_err();
    for error in [not_demanded, wrong, unknown, none] {
        assert!(matches!(error, LeaseError::LoginRefused { .. }), "{error:?}");
        let all = format!("{error}{error:?}");
        assert!(all.contains("user and password") && !all.contains("s3cret"), "{all}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_told_within_the_limit_and_nothing_was_sent() {
    let mut server = server();
    let backend = backend(&server).await;
    let lease = acquire(&backend, "r", LONG).await;
    server.kill();
    let error = EtcdBackend::connect(server.url()).await.unwrap_err();
    assert!(matches!(error, LeaseError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("etcd://127.0.0.1:{}", server.port())), "{error}");
    // The first call may still find the old connection; then it cannot know.
    drop(backend.renew(&lease).await);
    let error = backend.renew(&lease).await.unwrap_err();
    assert!(matches!(error, LeaseError::Unreachable { .. }), "{error:?}");
    assert_eq!(error.effect(), Effect::None);
    let error = EtcdBackend::connect("etcd://no-such-host.invalid").await.unwrap_err();
    assert!(matches!(error, LeaseError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_peer_that_accepts_and_never_answers_ends_every_call() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("etcd://{}/?connect_timeout_ms=200", listener.local_addr().unwrap());
    for login in ["", "u:s3cret@"] {
        let silent = silent.replace("etcd://", &format!("etcd://{login}"));
        let error = EtcdBackend::connect(&silent).await.unwrap_err();
        assert!(matches!(error, LeaseError::Timeout { .. }), "{error:?}");
        assert!(matches!(EtcdDestination::connect(&silent).await.unwrap_err(), LeaseError::Timeout { .. }));
    }

    let server = server();
    let backend = EtcdBackend::connect(&format!("{}?call_timeout_ms=300", server.url())).await.unwrap();
    let destination = EtcdDestination::connect(&format!("{}?call_timeout_ms=300", server.url())).await.unwrap();
    let lease = acquire(&backend, "r", LONG).await;
    server.pause();
    let timed_out = |error: LeaseError, effect| {
        assert!(matches!(error, LeaseError::Timeout { .. }), "{error:?}");
        assert_eq!(error.effect(), effect, "{error}");
    };
    let r = name("r");
    timed_out(backend.acquire(&attempt("s", LONG)).await.unwrap_err(), Effect::Unknown);
    timed_out(backend.renew(&lease).await.unwrap_err(), Effect::Unknown);
    timed_out(backend.release(&elsewhere(&lease)).await.unwrap_err(), Effect::Unknown);
    timed_out(backend.abandon(&attempt("s", LONG)).await.unwrap_err(), Effect::Unknown);
    timed_out(backend.force_release(&order("r", 1)).await.unwrap_err(), Effect::Unknown);
    timed_out(backend.inspect(&r).await.unwrap_err(), Effect::None);
    timed_out(backend.list("", None, 9).await.unwrap_err(), Effect::None);
    timed_out(backend.purge().await.unwrap_err(), Effect::Unknown);
    timed_out(FencedRegister::read(&backend, &r).await.unwrap_err(), Effect::None);
    assert!(FencedRegister::write(&backend, &lease, "x").await.is_err());
    assert!(destination.write(&r, lease.token().unwrap(), "x").await.is_err());
    assert!(destination.seal(&r, lease.token().unwrap()).await.is_err());
    assert!(destination.read(&r).await.is_err());
    assert!(destination.adopt(None, lease.token().unwrap().authority()).await.is_err());
    server.resume();
}

#[tokio::test]
async fn a_small_ttl_is_raised_to_what_the_server_grants() {
    let slow = EtcdSetup { heartbeat_ms: 100, election_ms: 1_000, ..EtcdSetup::default() };
    let server = lease_servers::etcd(&slow).unwrap();
    let backend = backend(&server).await;
    let shortest = Duration::from_secs(2);
    assert_eq!(backend.limits().min_ttl, shortest);
    let lease = acquire(&backend, "r", Duration::from_millis(1)).await;
    assert_eq!(lease.granted_ttl(), shortest);
    assert_eq!(acquire(&backend, "s", Duration::from_millis(2_001)).await.granted_ttl(), Duration::from_secs(3));
    let longest = acquire(&backend, "t", lease_core::Ttl::MAX).await;
    assert_eq!(longest.granted_ttl(), lease_core::Ttl::MAX);
    assert_eq!(backend.release(&longest).await.unwrap(), Release::Released);
    assert_eq!(backend.description().server_version, server.version());
}

#[tokio::test]
async fn a_dead_member_is_passed_over() {
    let server = server();
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("etcd://{dead},127.0.0.1:{}/?call_timeout_ms=20000", server.port());
    let backend = EtcdBackend::connect(&url).await.unwrap();
    for _ in 0..20 {
        let lease = acquire(&backend, "r", LONG).await;
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    }
}
