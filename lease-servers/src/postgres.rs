//! A private PostgreSQL.

use crate::server::{Plan, Server, ask, folder, free_port, version_text};
use crate::{Kind, ServerError, binaries};
use std::path::Path;
use std::process::{Command, Stdio};

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
    let program = binaries::find(Kind::Postgres)?;
    let initdb = binaries::find_program("initdb", Kind::Postgres)?;
    let version = version_text(&program)?;
    let version = version.split_whitespace().nth(2).unwrap_or("unknown").to_owned();
    let (folder, port) = (folder(Kind::Postgres)?, free_port()?);
    let run_as = rustix::process::geteuid().is_root().then(unprivileged_user);
    let data = folder.path().join("data");
    let own = |path: &Path| match run_as {
        Some((user, group)) => std::os::unix::fs::chown(path, Some(user), Some(group)),
        None => Ok(()),
    };
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, PASSWORD).map_err(ServerError::io("write the password file"))?;
    own(folder.path()).and_then(|()| own(&password_file)).map_err(ServerError::io("give the folder to the user"))?;
    initialise(&initdb, &data, &password_file, folder.path(), run_as)?;

    let mut settings = vec![
        ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
        ("unix_socket_directories".to_owned(), String::new()),
        ("max_connections".to_owned(), "200".to_owned()),
    ];
    settings.extend(setup.settings.iter().cloned());
    let mut args = vec!["-D".into(), data.display().to_string(), "-p".into(), port.to_string()];
    args.extend(settings.into_iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]));
    let url = format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres");
    Server::start(Kind::Postgres, version, folder, Plan { program, args, run_as, port, url, ready })
}

fn initialise(
    initdb: &Path,
    data: &Path,
    password_file: &Path,
    folder: &Path,
    run_as: Option<(u32, u32)>,
) -> Result<(), ServerError> {
    let mut command = Command::new(initdb);
    command.arg("-D").arg(data).arg("--pwfile").arg(password_file).current_dir(folder).stdin(Stdio::null());
    command.args(["--no-sync", "--locale=C", "--encoding=UTF8", "--username=postgres", "--auth=scram-sha-256"]);
    if let Some((user, group)) = run_as {
        std::os::unix::process::CommandExt::uid(&mut command, user);
        std::os::unix::process::CommandExt::gid(&mut command, group);
    }
    let output = command.output().map_err(ServerError::io(format!("run {}", initdb.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(ServerError::NotReady { kind: Kind::Postgres, reason: "initdb failed".into(), log })
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
