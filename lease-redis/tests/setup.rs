//! What goes wrong before the first lease: accounts, settings, foreign data, TLS. On both clients.
#![cfg(any(feature = "client-redis", feature = "client-fred"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::*;
use lease_core::{Authority, Claim, Fence, Forced, GuardedDestination, LeaseBackend, LeaseError, Release, Renewal};
use lease_redis::{RedisBackend, RedisDestination};
use lease_servers::{RedisSetup, Server};

/// The account that the crate's documentation gives.
const LEAST: &[&str] = &[
    "on",
    ">w0rker-s3cret",
    "resetkeys",
    "~leasehold:*",
    "resetchannels",
    "-@all",
    "+eval",
    "+evalsha",
    "+get",
    "+mget",
    "+set",
    "+time",
    "+hget",
    "+hset",
    "+info",
    "+config|get",
    "+ping",
];

fn account(server: &Server, name: &str, rules: &[&str]) {
    let words: Vec<&str> = ["ACL", "SETUSER", name].iter().chain(rules).copied().collect();
    assert_eq!(cli(server, &words), "OK");
}

/// The URL with another database in its path.
fn at_database(url: &str, number: &str) -> String {
    let (address, parameters) = url.split_once('?').unwrap();
    format!("{}/{number}?{parameters}", address.trim_end_matches('/'))
}

fn as_worker(server: &Server, client: &str) -> String {
    url(server, client, "").replace("://", "://worker:w0rker-s3cret@")
}

async fn connect_error(url: &str) -> LeaseError {
    let error = RedisBackend::connect(url).await.unwrap_err();
    let destination = RedisDestination::connect(url).await.unwrap_err();
    assert_eq!(error.to_string(), destination.to_string());
    assert_secret_free(&format!("{error} {error:?}"));
    error
}

fn assert_secret_free(text: &str) {
    assert!(!text.contains("s3cret"), "{text}");
}

/// The whole chain of an error, as a log would print it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text} {source} {source:?}");
        next = source.source();
    }
    text
}

both! {
    async fn a_wrong_login_is_named(_server: &mut Server, client: &str) {
        let server = lease_servers::redis(&RedisSetup { password: Some("right-s3cret".into()), ..RedisSetup::default() }).unwrap();
        let port = server.port();
        for login in ["", ":wrong-s3cret@", "nobody:wrong-s3cret@"] {
            let error = connect_error(&format!("{client}://{login}127.0.0.1:{port}/")).await;
            assert!(matches!(error, LeaseError::LoginRefused { .. }), "{login}: {error}");
            assert!(error.to_string().contains(&port.to_string()));
            assert_secret_free(&chain(&error));
        }
        let backend = backend(&server, client).await;
        assert_secret_free(&format!("{backend:?} {:?}", backend.description()));
        drop(acquire(&backend, &attempt("r", 1_000)).await);
    }

    async fn the_least_privileged_account_is_enough(server: &mut Server, client: &str) {
        account(server, "worker", LEAST);
        let url = as_worker(server, client);
        let backend = RedisBackend::connect(&url).await.unwrap();
        assert!(backend.claims().has(Claim::LeaseSurvivesRestart), "it may read the settings");
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        assert!(is_held(&backend, "r").await);
        let Renewal::Renewed(lease) = backend.renew(&lease).await.unwrap() else { panic!() };
        let Fence::LiveOwner(register) = backend.fence() else { panic!() };
        register.write(&lease, "x").await.unwrap();
        assert_eq!(register.read(lease.resource()).await.unwrap().as_deref(), Some("x"));
        assert!(backend.inspect(lease.resource()).await.unwrap().held.is_some());
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        backend.abandon(&attempt("r", 1_000)).await.unwrap();
        let broken = acquire(&backend, &attempt("r", 30_000)).await;
        assert_eq!(backend.force_release(&order("r", value(&broken))).await.unwrap(), Forced::Ended);
        let token = lease.token().unwrap();
        let destination = RedisDestination::connect(&url).await.unwrap();
        destination.adopt(None, token.authority()).await.unwrap();
        destination.seal(lease.resource(), token).await.unwrap();
        destination.write(lease.resource(), token, "x").await.unwrap();
        assert_eq!(destination.read(lease.resource()).await.unwrap().value.as_deref(), Some("x"));
        for error in [backend.purge().await.unwrap_err(), destination.purge().await.unwrap_err()] {
            assert!(matches!(error, LeaseError::MissingPrivilege { .. }), "{error}");
            assert!(error.to_string().contains("+scan +unlink"), "{error}");
        }
        let elsewhere = RedisBackend::connect(&format!("{url}namespace=other")).await.unwrap_err();
        assert!(matches!(elsewhere, LeaseError::MissingPrivilege { .. }), "{elsewhere}");
        account(server, "worker", &["+scan", "+unlink"]);
        backend.purge().await.unwrap();
        destination.purge().await.unwrap();
    }

    async fn a_database_that_is_not_there_says_what_to_write(server: &mut Server, client: &str) {
        let at = |number: &str| at_database(&url(server, client, ""), number);
        let error = connect_error(&at("16")).await;
        assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("database 16") && text.contains("`databases`"), "{text}");
        let (last, first) = (RedisBackend::connect(&at("15")).await.unwrap(), backend(server, client).await);
        drop(acquire(&last, &attempt("r", 30_000)).await);
        assert!(is_held(&last, "r").await && !is_held(&first, "r").await, "two databases");
        cli(server, &["CLIENT", "KILL", "TYPE", "normal"]);
        let mut answer = last.inspect(&name("r")).await;
        while answer.is_err() {
            answer = last.inspect(&name("r")).await;
        }
        assert!(answer.unwrap().held.unwrap().remaining <= std::time::Duration::from_secs(30), "the same one after a reconnect");
    }

    async fn a_database_that_may_not_be_selected_says_what_to_grant(server: &mut Server, client: &str) {
        account(server, "worker", LEAST);
        for number in ["", "0"] {
            let zero = RedisBackend::connect(&at_database(&as_worker(server, client), number)).await.unwrap();
            drop(zero.inspect(&name("r")).await.unwrap());
        }
        let url = at_database(&as_worker(server, client), "1");
        let error = connect_error(&url).await;
        assert!(matches!(error, LeaseError::MissingPrivilege { .. }) && error.to_string().contains("+select"), "{error}");
        account(server, "worker", &["+select"]);
        drop(acquire(&RedisBackend::connect(&url).await.unwrap(), &attempt("r", 30_000)).await);
    }

    async fn each_missing_privilege_says_what_to_grant(server: &mut Server, client: &str) {
        for missing in ["-eval", "-get", "-mget", "-set", "-time"] {
            account(server, "worker", &["reset"]);
            account(server, "worker", LEAST);
            account(server, "worker", &[missing]);
            let error = match RedisBackend::connect(&as_worker(server, client)).await {
                Err(error) => error,
                Ok(backend) => backend.acquire(&attempt("r", 1_000)).await.unwrap_err(),
            };
            assert!(matches!(error, LeaseError::MissingPrivilege { .. }), "{missing}: {error}");
            assert!(error.to_string().contains("ACL SETUSER"), "{error}");
            assert_eq!(error.effect(), lease_core::Effect::None);
            assert_eq!(cli(server, &["EXISTS", "leasehold:{r}:lease"]), "0");
            cli(server, &["FLUSHALL"]);
        }
    }

    async fn what_may_not_be_read_is_not_claimed(server: &mut Server, client: &str) {
        account(server, "worker", LEAST);
        account(server, "worker", &["-config|get"]);
        let backend = RedisBackend::connect(&as_worker(server, client)).await.unwrap();
        assert!(!backend.claims().has(Claim::LeaseSurvivesRestart));
        assert!(backend.claims().has(Claim::FencingToken));
        account(server, "worker", &["-info"]);
        match RedisBackend::connect(&as_worker(server, client)).await {
            Ok(backend) => {
                assert_eq!(backend.description().server_version, "unknown");
                assert!(!backend.claims().has(Claim::CrossProcess));
            }
            // fred reads the version by itself.
            Err(error) => assert!(client.contains("fred"), "{error}"),
        }
    }

    async fn settings_decide_what_is_claimed(_server: &mut Server, client: &str) {
        let survives = async |setup: RedisSetup| {
            let server = lease_servers::redis(&setup).unwrap();
            let backend = backend(&server, client).await;
            let destination = RedisDestination::connect(&url(&server, client, "")).await.unwrap();
            let lease = backend.claims().has(Claim::LeaseSurvivesRestart);
            assert_eq!(lease, destination.claims().has(Claim::MarkSurvivesRestart));
            (lease, backend.claims().has(Claim::CrossProcess))
        };
        let setup = RedisSetup::default;
        assert_eq!(survives(setup()).await, (true, true));
        assert_eq!(survives(RedisSetup { append_only: false, ..setup() }).await, (false, true));
        assert_eq!(survives(RedisSetup { append_fsync: "everysec", ..setup() }).await, (false, true));
        let extra_args = vec!["--no-appendfsync-on-rewrite".into(), "yes".into()];
        assert_eq!(survives(RedisSetup { extra_args, ..setup() }).await, (false, true));
        assert_eq!(survives(RedisSetup { maxmemory_policy: "volatile-lru", ..setup() }).await, (false, false));
        assert_eq!(survives(RedisSetup { maxmemory_policy: "allkeys-lru", ..setup() }).await, (false, false));
    }

    async fn servers_of_the_wrong_kind_are_refused(server: &mut Server, client: &str) {
        cli(server, &["REPLICAOF", "127.0.0.1", "1"]);
        let error = connect_error(&url(server, client, "")).await;
        assert!(matches!(error, LeaseError::NotSetUp { .. }) && error.to_string().contains("primary"), "{error}");
        let extra_args = vec!["--cluster-enabled".into(), "yes".into()];
        let cluster = lease_servers::redis(&RedisSetup { extra_args, ..RedisSetup::default() }).unwrap();
        let error = connect_error(&url(&cluster, client, "")).await;
        assert!(matches!(error, LeaseError::NotSetUp { .. }) && error.to_string().contains("cluster_enabled"), "{error}");
    }

    async fn a_primary_that_became_a_replica_refuses(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let lease = acquire(&backend, &attempt("r", 30_000)).await;
        cli(server, &["REPLICAOF", "127.0.0.1", "1"]);
        let error = backend.renew(&lease).await.unwrap_err();
        assert_eq!((error.effect(), error.advice()), (lease_core::Effect::None, lease_core::Advice::TryAgain), "{error}");
        let error = backend.renew(&lease).await.unwrap_err();
        assert!(matches!(error, LeaseError::NotSetUp { .. }), "on a new connection: {error}");
        cli(server, &["REPLICAOF", "NO", "ONE"]);
        assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
    }

    async fn an_unreachable_server_is_named(server: &mut Server, client: &str) {
        let url = url(server, client, "").replace("://", "://u:s3cret@");
        server.kill();
        let error = connect_error(&url).await;
        assert!(matches!(error, LeaseError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains(&server.port().to_string()), "{error}");
        let nowhere = connect_error(&format!("{client}://u:s3cret@no-such-host.invalid/")).await;
        assert!(matches!(nowhere, LeaseError::Unreachable { .. }), "{nowhere}");
    }

    async fn foreign_data_are_left_alone(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        cli(server, &["RPUSH", "leasehold:{list}:lease", "x"]);
        cli(server, &["SET", "leasehold:{text}:lease", "somebody else's"]);
        let before = cli(server, &["GET", "leasehold:{text}:lease"]);
        let warm = acquire(&backend, &attempt("r", 30_000)).await;
        for resource in ["list", "text"] {
            let attempt = attempt(resource, 30_000);
            let foreign = |error: LeaseError| assert!(matches!(error, LeaseError::ForeignData { .. }), "{resource}: {error}");
            foreign(backend.acquire(&attempt).await.unwrap_err());
            foreign(backend.inspect(attempt.resource()).await.unwrap_err());
            foreign(backend.abandon(&attempt).await.unwrap_err());
            foreign(backend.force_release(&order(resource, 1)).await.unwrap_err());
        }
        assert_eq!(backend.release(&warm).await.unwrap(), Release::Released);
        assert_eq!(cli(server, &["GET", "leasehold:{text}:lease"]), before);
        assert_eq!(cli(server, &["KEYS", "*spent*"]), "");
        cli(server, &["SET", "leasehold:incarnation", "zz"]);
        assert!(matches!(backend.acquire(&attempt("r", 1_000)).await, Err(LeaseError::NotSetUp { .. })));
        assert!(matches!(connect_not_set_up(server, client).await, LeaseError::NotSetUp { .. }));
        cli(server, &["DEL", "leasehold:incarnation"]);
        cli(server, &["RPUSH", "leasehold:incarnation", "x"]);
        assert!(matches!(backend.acquire(&attempt("r", 1_000)).await, Err(LeaseError::NotSetUp { .. })));
        assert!(matches!(connect_not_set_up(server, client).await, LeaseError::NotSetUp { .. }));
    }

    async fn owner_tokens_are_never_printed(server: &mut Server, client: &str) {
        let backend = backend(server, client).await;
        let attempt = attempt("r", 30_000);
        let lease = acquire(&backend, &attempt).await;
        let secret = attempt.owner().reveal();
        let seen = backend.inspect(attempt.resource()).await.unwrap();
        // A server that no longer knows the scripting commands echoes what it was sent.
        account(server, "default", &["-eval", "-evalsha"]);
        let denied = backend.renew(&lease).await.unwrap_err();
        let text = format!("{attempt:?} {lease:?} {backend:?} {seen:?} {:?} {}", backend.fence_for(&lease), chain(&denied));
        assert!(!text.contains(&secret), "{text}");
        assert!(text.contains("NOPERM"), "{text}");
    }

    async fn two_epochs_are_two_authorities(server: &mut Server, client: &str) {
        let old = RedisBackend::connect(&url(server, client, "epoch=1")).await.unwrap();
        let new = RedisBackend::connect(&url(server, client, "epoch=2")).await.unwrap();
        let (old, new) = (acquire(&old, &attempt("a", 1_000)).await, acquire(&new, &attempt("b", 1_000)).await);
        let text = |lease: &lease_core::Lease| lease.token().unwrap().authority().as_str().to_owned();
        assert!(text(&old).ends_with(":1") && text(&new).ends_with(":2"));
        assert_eq!(text(&old).trim_end_matches('1'), text(&new).trim_end_matches('2'));
        assert_eq!(Authority::parse(text(&old)).unwrap(), *old.token().unwrap().authority());
    }
}

async fn connect_not_set_up(server: &Server, client: &str) -> LeaseError {
    RedisBackend::connect(&url(server, client, "")).await.unwrap_err()
}
