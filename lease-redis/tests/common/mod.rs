//! What the tests share: a private server, both clients on it, and a way to look at the server past them.
#![allow(dead_code, reason = "each test file uses a part")]

use lease_core::{Acquisition, Attempt, Effect, ForceRelease, HolderLabel, Lease, LeaseBackend, ResourceName, Ttl};
use lease_redis::RedisBackend;
use lease_servers::{Once, Proxy, RedisSetup, Server};
use std::time::Duration;

/// The URL of `server` for one client, with parameters.
pub(crate) fn url(server: &Server, client: &str, parameters: &str) -> String {
    format!("{}?{parameters}", server.url().replace("redis://", &format!("{client}://")))
}

/// The same through `proxy`.
pub(crate) fn proxied(server: &Server, client: &str, proxy: &Proxy, parameters: &str) -> String {
    url(server, client, parameters).replace(&server.port().to_string(), &proxy.port().to_string())
}

pub(crate) fn server() -> Server {
    lease_servers::redis(&RedisSetup::default()).unwrap()
}

pub(crate) async fn backend(server: &Server, client: &str) -> RedisBackend {
    RedisBackend::connect(&url(server, client, "")).await.unwrap()
}

pub(crate) fn name(text: &str) -> ResourceName {
    ResourceName::parse(text).unwrap()
}

pub(crate) fn attempt(resource: &str, ttl_ms: u64) -> Attempt {
    Attempt::new(name(resource), Ttl::parse(Duration::from_millis(ttl_ms)).unwrap()).unwrap()
}

pub(crate) async fn acquire(backend: &RedisBackend, attempt: &Attempt) -> Lease {
    match backend.acquire(attempt).await.unwrap() {
        Acquisition::Acquired(lease) => lease,
        Acquisition::Held(held) => panic!("{held:?}"),
    }
}

pub(crate) async fn is_held(backend: &RedisBackend, resource: &str) -> bool {
    matches!(backend.acquire(&attempt(resource, 60_000)).await.unwrap(), Acquisition::Held(_))
}

pub(crate) fn value(lease: &Lease) -> u64 {
    lease.token().unwrap().value()
}

/// An operator's order to end a grant by force.
pub(crate) fn order(resource: &str, value: u64) -> ForceRelease {
    ForceRelease::new(name(resource), value, HolderLabel::parse("ops").unwrap(), "a test").unwrap()
}

/// The fields of a lease record; field 1 is the last value, field 5 the expiry in microseconds.
pub(crate) fn edit_record(server: &Server, resource: &str, field: usize, edit: impl FnOnce(u64) -> u64) {
    let key = format!("leasehold:{{{resource}}}:lease");
    let raw = cli(server, &["GET", &key]);
    let mut fields: Vec<String> = raw.split(' ').map(str::to_owned).collect();
    let value = fields.get_mut(field).unwrap();
    *value = edit(value.parse().unwrap()).to_string();
    assert_eq!(cli(server, &["SET", &key, &fields.join(" "), "KEEPTTL"]), "OK");
}

/// Ends a grant as if its time had passed, so that a test need not race with a short one.
pub(crate) fn expire(server: &Server, resource: &str) {
    edit_record(server, resource, 5, |expires| expires.saturating_sub(3_600_000_000));
}

/// Sleeps by the machine's clock, for as long as a TTL needs.
pub(crate) async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Asks the server with its own program.
pub(crate) fn cli(server: &Server, args: &[&str]) -> String {
    let output =
        std::process::Command::new("redis-cli").args(["-p", &server.port().to_string()]).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// An acquire that was sent, timed out for its sender, and is still on its way.
pub(crate) struct LateRequest {
    proxy: Proxy,
    pub(crate) attempt: Attempt,
    /// Another way to the same store, with a retention so short that only tombstones remember.
    pub(crate) direct: RedisBackend,
}

impl LateRequest {
    pub(crate) async fn held(server: &Server, client: &str, ttl_ms: u64) -> Self {
        let direct = RedisBackend::connect(&url(server, client, "idle_retention_ms=1")).await.unwrap();
        // The server knows the script, so that the late request runs.
        drop(acquire(&direct, &attempt("other", 30_000)).await);
        let proxy = Proxy::to(server.port()).unwrap();
        let through = proxied(server, client, &proxy, "call_timeout_ms=500&idle_retention_ms=1");
        let through = RedisBackend::connect(&through).await.unwrap();
        let attempt = attempt("r", ttl_ms);
        proxy.once(Once::HoldRequest);
        let error = through.acquire(&attempt).await.unwrap_err();
        assert!(proxy.happened());
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        Self { proxy, attempt, direct }
    }

    /// Lets it arrive, and waits until the server has run it.
    pub(crate) async fn arrives(&self, server: &Server) {
        let runs = || {
            let stats = cli(server, &["INFO", "commandstats"]);
            let line = stats.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
            line.split(',').next().unwrap().parse::<u64>().unwrap()
        };
        let before = runs();
        self.proxy.deliver();
        while runs() == before {
            sleep_ms(5).await;
        }
    }
}

pub(crate) fn spent_key(resource: &str, attempt: &Attempt) -> String {
    format!("leasehold:{{{resource}}}:spent:{}", attempt.owner().reveal())
}

/// One test for each client: `both!(name, |server, client| async { … })`.
#[macro_export]
macro_rules! both {
    ($($(#[$meta:meta])* async fn $name:ident($server:ident: &mut Server, $client:ident: &str) $body:block)+) => {$(
        mod $name {
            use super::*;
            $(#[$meta])*
            async fn case($server: &mut Server, $client: &str) $body

            #[cfg(feature = "client-redis")]
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis() {
                case(&mut common::server(), "redis").await;
            }

            #[cfg(feature = "client-fred")]
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn fred() {
                case(&mut common::server(), "redis+fred").await;
            }
        }
    )+};
}
