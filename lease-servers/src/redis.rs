//! A private Redis.

use crate::server::{Plan, Server, ask, folder, free_port, version_text};
use crate::{Kind, ServerError, binaries};

/// How to set a private Redis up.
#[derive(Clone, Debug)]
pub struct RedisSetup {
    /// Whether it writes an append-only file.
    pub append_only: bool,
    /// When the append-only file is synced: `always`, `everysec`, `no`.
    pub append_fsync: &'static str,
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
    let program = binaries::find(Kind::Redis)?;
    let version = version_text(&program)?;
    let version = version.split_whitespace().find_map(|w| w.strip_prefix("v=")).unwrap_or("unknown").to_owned();
    let (folder, port) = (folder(Kind::Redis)?, free_port()?);
    let mut args: Vec<String> = Vec::new();
    let mut set = |name: &str, value: &str| args.extend([format!("--{name}"), value.to_owned()]);
    set("port", &port.to_string());
    set("bind", "127.0.0.1");
    set("dir", &folder.path().display().to_string());
    set("save", "");
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
    Server::start(Kind::Redis, version, folder, Plan { program, args, run_as: None, port, url, ready })
}

/// It answers, and has loaded its data; asking for a password is an answer too.
fn ready(port: u16) -> std::io::Result<bool> {
    let answer = ask(port, b"PING\r\n")?;
    Ok(answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
}
