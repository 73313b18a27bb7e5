//! A private Redis.

mod backup;
mod pair;
mod sentinel;
mod wire;

pub(crate) use backup::{restore, save};
pub use pair::RedisPair;
pub use sentinel::RedisSentinel;
pub use wire::redis_command;

use crate::server::{Folder, Plan, Server, ask, free_port, version_text};
use crate::{Kind, ServerError, binaries};

/// How to set a private Redis up.
#[derive(Clone, Debug)]
pub struct RedisSetup {
    /// Whether it writes an append-only file.
    pub append_only: bool,
    /// When the append-only file is synced: `always`, `everysec`, `no`.
    pub append_fsync: &'static str,
    /// When a snapshot is written, in the words of Redis's setting `save`: `1 1` is after a second with a change. `None` is never.
    pub snapshots: Option<&'static str>,
    /// What happens when memory runs out.
    pub maxmemory_policy: &'static str,
    /// The default user's password, if any.
    pub password: Option<String>,
    /// More arguments for `redis-server`.
    pub extra_args: Vec<String>,
}

impl Default for RedisSetup {
    /// Durable: an append-only file synced at each write, and nothing is ever evicted.
    fn default() -> Self {
        Self {
            append_only: true,
            append_fsync: "always",
            snapshots: None,
            maxmemory_policy: "noeviction",
            password: None,
            extra_args: Vec::new(),
        }
    }
}

/// Starts a private Redis and returns when it answers.
///
/// # Errors
/// When `redis-server` is not installed or does not become ready.
pub fn redis(setup: &RedisSetup) -> Result<Server, ServerError> {
    start(setup, "")
}

/// Starts one with these lines in its configuration file. Redis writes the file anew when its role changes, so that the role outlives a
/// restart; the setup is in the arguments, which win over the file.
pub(crate) fn start(setup: &RedisSetup, settings: &str) -> Result<Server, ServerError> {
    let (folder, port) = (Folder::new(Kind::Redis)?, free_port()?);
    let file = configuration(&folder, settings)?;
    let mut args = vec![file, "--port".into(), port.to_string(), "--bind".into(), "127.0.0.1".into()];
    let mut set = |name: &str, value: &str| args.extend([format!("--{name}"), value.to_owned()]);
    set("dir", &folder.data().display().to_string());
    set("save", setup.snapshots.unwrap_or_default());
    set("appendonly", if setup.append_only { "yes" } else { "no" });
    set("appendfsync", setup.append_fsync);
    set("maxmemory-policy", setup.maxmemory_policy);
    set("loglevel", "notice");
    if let Some(password) = &setup.password {
        set("requirepass", password);
    }
    if setup.extra_args.iter().any(|arg| arg == "--cluster-enabled") {
        // Left to itself it takes its port plus 10,000, which some client may have been given.
        set("cluster-port", &free_port()?.to_string());
    }
    args.extend(setup.extra_args.iter().cloned());
    let credentials = setup.password.as_ref().map(|p| format!(":{p}@")).unwrap_or_default();
    let url = format!("redis://{credentials}127.0.0.1:{port}/");
    launch(folder, args, port, url)
}

/// Makes the folder for the data, and the configuration file beside it.
fn configuration(folder: &Folder, settings: &str) -> Result<String, ServerError> {
    std::fs::create_dir(folder.data()).map_err(ServerError::io("make the folder for the data"))?;
    let file = folder.path().join("redis.conf");
    std::fs::write(&file, settings).map_err(ServerError::io("write redis.conf"))?;
    Ok(file.display().to_string())
}

fn launch(folder: Folder, args: Vec<String>, port: u16, url: String) -> Result<Server, ServerError> {
    let program = binaries::find(Kind::Redis)?;
    let version = version_text(&program)?;
    let version = version.split_whitespace().find_map(|w| w.strip_prefix("v=")).unwrap_or("unknown").to_owned();
    Server::start(Kind::Redis, version, folder, Plan { program, args, run_as: None, port, url, ready })
}

/// It answers, and has loaded its data; asking for a password is an answer too.
fn ready(port: u16) -> std::io::Result<bool> {
    let answer = ask(port, b"PING\r\n")?;
    Ok(answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
}
