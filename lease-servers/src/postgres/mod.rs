//! A private PostgreSQL.

mod pair;
mod wire;

pub use pair::{PostgresPair, Replication};
pub use wire::postgres_query;

use crate::server::{Folder, Plan, Server, as_user, ask, free_port, version_text};
use crate::{Kind, ServerError, binaries, program};
use std::path::Path;
use std::process::Command;

/// How to set a private PostgreSQL up.
#[derive(Clone, Debug, Default)]
pub struct PostgresSetup {
    /// Settings for `postgres -c NAME=VALUE`.
    pub settings: Vec<(String, String)>,
}

/// The administrator's password. The server listens on 127.0.0.1 only and lives for one test.
const PASSWORD: &str = "private-test-server";

/// Starts a private PostgreSQL, with the administrator `postgres`, and returns when it takes connections.
///
/// It refuses to run as root; then it runs as the user `postgres`, or as `nobody` where there is none.
///
/// # Errors
/// When `postgres` or `initdb` is not installed or it does not become ready.
pub fn postgres(setup: &PostgresSetup) -> Result<Server, ServerError> {
    let folder = Folder::new(Kind::Postgres)?;
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, PASSWORD).map_err(ServerError::io("write the password file"))?;
    own(folder.path()).map_err(ServerError::io("give the folder to the user"))?;
    own(&password_file).map_err(ServerError::io("give the password file to the user"))?;
    initialise(&password_file, &folder)?;
    launch(setup, folder)
}

/// Starts a server on data that are there.
fn launch(setup: &PostgresSetup, folder: Folder) -> Result<Server, ServerError> {
    let program = binaries::find(Kind::Postgres)?;
    let version = version_text(&program)?;
    let version = version.split_whitespace().nth(2).unwrap_or("unknown").to_owned();
    let port = free_port()?;
    let mut settings = vec![
        ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
        ("unix_socket_directories".to_owned(), String::new()),
        ("max_connections".to_owned(), "200".to_owned()),
    ];
    settings.extend(setup.settings.iter().cloned());
    let mut args = vec!["-D".into(), folder.data().display().to_string(), "-p".into(), port.to_string()];
    args.extend(settings.into_iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]));
    let url = format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres");
    Server::start(Kind::Postgres, version, folder, Plan { program, args, run_as: run_as(), port, url, ready })
}

fn initialise(password_file: &Path, folder: &Folder) -> Result<(), ServerError> {
    let initdb = binaries::find_program("initdb", Kind::Postgres)?;
    let mut command = Command::new(initdb);
    command.arg("-D").arg(folder.data()).arg("--pwfile").arg(password_file).current_dir(folder.path());
    command.args(["--no-sync", "--locale=C", "--encoding=UTF8", "--username=postgres", "--auth=scram-sha-256"]);
    as_user(&mut command, run_as());
    program::run(&mut command, "run initdb").map(drop)
}

/// Copies what a running server has into a new folder `data` (`pg_basebackup`), so that another server can be started on it.
pub(crate) fn copy_of(server: &Server, folder: &Folder, data: &Path) -> Result<(), ServerError> {
    own(folder.path()).map_err(ServerError::io("give the folder to the user"))?;
    let mut command = wire::client("pg_basebackup", server.port())?;
    command.arg("-D").arg(data).args(["--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
    command.current_dir(folder.path());
    as_user(&mut command, run_as());
    program::run(&mut command, "run pg_basebackup").map(drop)
}

/// Puts such a copy in the place of a server's data.
pub(crate) fn restore(from: &Folder, server: &Server) -> Result<(), ServerError> {
    let mut command = Command::new("cp");
    command.arg("-a").arg(from.data().join(".")).arg(server.data());
    program::run(&mut command, "put the base backup in place").map(drop)
}

/// The user to run as, when this is root: PostgreSQL refuses to be that.
fn run_as() -> Option<(u32, u32)> {
    rustix::process::geteuid().is_root().then(unprivileged_user)
}

/// Gives a file to the user that the server runs as.
fn own(path: &Path) -> std::io::Result<()> {
    match run_as() {
        Some((user, group)) => std::os::unix::fs::chown(path, Some(user), Some(group)),
        None => Ok(()),
    }
}

/// User and group of `postgres`, else of `nobody`, else the usual numbers of the latter.
fn unprivileged_user() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["postgres", "nobody"].into_iter().find_map(|name| entry(&users, name)).unwrap_or((65_534, 65_534))
}

fn entry(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// It asks a new connection for a password; while it starts up it answers with an error instead.
fn ready(port: u16) -> std::io::Result<bool> {
    let body = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(body.len().saturating_add(8)).unwrap_or(u32::MAX);
    let mut hello = length.to_be_bytes().to_vec();
    hello.extend(196_608_u32.to_be_bytes());
    hello.extend(body);
    Ok(ask(port, &hello)?.starts_with(b"R"))
}
