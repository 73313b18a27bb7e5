//! A PostgreSQL with a `PgBouncer` before it, which gives each transaction to another session.

use super::one::TTL;
use crate::program::Backend;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage, until};
use lease_servers::{PostgresSetup, Server};
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A PostgreSQL and its pooler. A reaches the server itself.
struct Pooled {
    pooler: Pooler,
    server: Server,
    /// Whether B goes through the pooler.
    is_between: bool,
}

impl Rig for Pooled {
    fn url(&self, who: Worker) -> String {
        let url = self.server.url();
        if self.is_between && who == Worker::B {
            return url.replace(&format!(":{}/", self.server.port()), &format!(":{}/", self.pooler.port));
        }
        url.to_owned()
    }
}

pub(super) fn scenes() -> Vec<Scene> {
    stage(SETUPS, FAULTS)
}

const POOLER: &str = "postgres/pooler-transaction";

static SETUPS: &[SetUp<Pooled>] = &[SetUp {
    id: POOLER,
    means: "a PostgreSQL, and a PgBouncer in transaction mode which drops what a session asks for; A goes to the server itself",
    backends: &[Backend::Postgres],
    start: || {
        let server = lease_servers::postgres(&PostgresSetup::default())?;
        Ok(Pooled { pooler: Pooler::start(&server)?, server, is_between: true })
    },
    settle: nothing,
}];

static FAULTS: &[Fault<Pooled>] = &[Fault {
    id: "pooler-between",
    means: "B goes through the pooler, where it is refused, and later to the server itself",
    on: &[POOLER],
    ttl: TTL,
    outlasts: false,
    prepare: nothing,
    before: nothing,
    make: between,
}];

/// B asks through the pooler all the time. That it comes through to the server is in the pooler's log.
fn between(rig: &mut Pooled, _: &Moment) -> Result<Witness, Trouble> {
    const OPENED: &str = "new connection to server";
    const LOGIN: &str = "login attempt";
    let log = until("B comes to the server through the pooler, twice", || {
        let log = rig.pooler.log().map_err(|error| error.to_string())?;
        if log.contains(OPENED) && log.matches(LOGIN).count() > 1 { Ok(log) } else { Err(log) }
    })?;
    rig.is_between = false;
    Ok(Witness::of("pooler_pid", rig.pooler.child.id())
        .and("logins_at_the_pooler", log.matches(LOGIN).count())
        .and("sessions_of_the_pooler", log.matches(OPENED).count()))
}

/// A private `PgBouncer`, which ends with this value, and with this process.
struct Pooler {
    child: Child,
    port: u16,
    folder: TempDir,
}

/// The pooler ends when the pipe closes.
const RUN: &str = "pgbouncer \"$0\" & read -r _; kill -9 $!; wait";

impl Pooler {
    /// Starts one, and returns when it listens.
    fn start(server: &Server) -> Result<Self, Trouble> {
        if !Command::new("pgbouncer").arg("--version").output().is_ok_and(|output| output.status.success()) {
            return Err(Trouble::Missing("pgbouncer is not installed (package pgbouncer)".to_owned()));
        }
        let failed = |error: std::io::Error| Trouble::Failed(format!("the pooler cannot be started: {error}"));
        let folder = tempfile::Builder::new().prefix("leasehold-pooler-").tempdir().map_err(failed)?;
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.map_err(failed)?.port();
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings(server, port)?).map_err(failed)?;
        let log = File::create(folder.path().join("log")).map_err(failed)?;
        let mut command = Command::new("sh");
        command.args(["-c", RUN]).arg(&file).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        if rustix::process::geteuid().is_root() {
            // It refuses to run as root; `nobody` may read the file.
            let readable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder.path(), readable).map_err(failed)?;
            command.uid(65_534).gid(65_534);
        }
        let pooler = Self { child: command.spawn().map_err(failed)?, port, folder };
        until("the pooler listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string())
        })?;
        Ok(pooler)
    }

    fn log(&self) -> Result<String, Trouble> {
        std::fs::read_to_string(self.folder.path().join("log"))
            .map_err(|error| Trouble::Failed(format!("the pooler's log cannot be read: {error}")))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends by that; a failure means that it is gone already.
        drop(self.child.wait());
    }
}

fn settings(server: &Server, port: u16) -> Result<String, Trouble> {
    let login = server.url().split_once("://").and_then(|(_, rest)| rest.split_once('@')).map(|(login, _)| login);
    let Some((user, password)) = login.and_then(|login| login.split_once(':')) else {
        return Err(Trouble::Failed("the server's URL has no login".to_owned()));
    };
    Ok(format!(
        "[databases]\n\
         postgres = host=127.0.0.1 port={} dbname=postgres user={user} password={password}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
         pool_mode = transaction\nignore_startup_parameters = options,extra_float_digits\n",
        server.port()
    ))
}
