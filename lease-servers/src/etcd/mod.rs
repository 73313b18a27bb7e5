//! A private etcd.

mod backup;
mod cluster;
mod wire;

pub(crate) use backup::{restore, save};
pub use cluster::EtcdCluster;
pub use wire::{EtcdStatus, etcd_call, etcd_status};

use crate::server::{Folder, Plan, Server, ask, free_port, version_text};
use crate::{Kind, ServerError, binaries};

/// How to set a private etcd up.
#[derive(Clone, Debug)]
pub struct EtcdSetup {
    /// Heartbeat interval in milliseconds.
    pub heartbeat_ms: u32,
    /// Election time-out in milliseconds. The shortest lease TTL is 1.5 times this, rounded up to whole seconds.
    pub election_ms: u32,
    /// More arguments for `etcd`.
    pub extra_args: Vec<String>,
}

impl Default for EtcdSetup {
    /// Short timers, so that leases of one second are possible.
    fn default() -> Self {
        Self { heartbeat_ms: 50, election_ms: 500, extra_args: Vec::new() }
    }
}

/// Starts a private etcd of one member and returns when it takes writes.
///
/// # Errors
/// When `etcd` is not installed or does not become ready.
pub fn etcd(setup: &EtcdSetup) -> Result<Server, ServerError> {
    let port = free_port()?;
    let cluster = format!("m1=http://127.0.0.1:{port}");
    let mut server = member(setup, &Member { name: "m1", peer_port: port, advertised_port: port, cluster: &cluster })?;
    server.wait_until_ready()?;
    Ok(server)
}

/// The place of a member in its cluster.
struct Member<'a> {
    name: &'a str,
    /// Where it listens for the others.
    peer_port: u16,
    /// Where the others look for it.
    advertised_port: u16,
    /// All members, in the words of `--initial-cluster`.
    cluster: &'a str,
}

/// Starts a member. It becomes ready when a majority of its cluster is there.
fn member(setup: &EtcdSetup, place: &Member<'_>) -> Result<Server, ServerError> {
    let program = binaries::find(Kind::Etcd)?;
    let version = version_text(&program)?;
    let version = version.lines().next().and_then(|l| l.rsplit(' ').next()).unwrap_or("unknown").to_owned();
    let (folder, port) = (Folder::new(Kind::Etcd)?, free_port()?);
    let local = |port: u16| format!("http://127.0.0.1:{port}");
    let mut args: Vec<String> = [
        ("name", place.name),
        ("data-dir", &folder.data().display().to_string()),
        ("listen-client-urls", &local(port)),
        ("advertise-client-urls", &local(port)),
        ("listen-peer-urls", &local(place.peer_port)),
        ("initial-advertise-peer-urls", &local(place.advertised_port)),
        ("initial-cluster", place.cluster),
        ("heartbeat-interval", &setup.heartbeat_ms.to_string()),
        ("election-timeout", &setup.election_ms.to_string()),
        ("log-level", "warn"),
        ("logger", "zap"),
    ]
    .into_iter()
    .flat_map(|(name, value)| [format!("--{name}"), value.to_owned()])
    .collect();
    args.extend(setup.extra_args.iter().cloned());
    let url = format!("etcd://127.0.0.1:{port}");
    Server::launch_new(Kind::Etcd, version, folder, Plan { program, args, run_as: None, port, url, ready })
}

/// Its health check makes a linearizable read, so a good answer means that there is a leader.
fn ready(port: u16) -> std::io::Result<bool> {
    let answer = ask(port, b"GET /health HTTP/1.0\r\n\r\n")?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Ok(answer.contains("200 OK") && answer.contains("\"true\""))
}
