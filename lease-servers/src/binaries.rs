//! Where the servers' programs are, and which package has a missing one.

use crate::ServerError;
use std::fmt;
use std::path::{Path, PathBuf};

/// The servers that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Redis.
    Redis,
    /// etcd.
    Etcd,
    /// PostgreSQL.
    Postgres,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Etcd => "etcd",
            Self::Postgres => "postgres",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Etcd => "etcd-server",
            Self::Postgres => "postgresql",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::Postgres => "postgres",
        })
    }
}

/// The Debian package to install before servers of this kind can be started; `None` when nothing is missing.
#[must_use]
pub fn missing_package(kind: Kind) -> Option<&'static str> {
    find(kind).is_err().then(|| kind.package())
}

/// The server's own program.
pub(crate) fn find(kind: Kind) -> Result<PathBuf, ServerError> {
    find_program(kind.program(), kind)
}

/// A program that comes with the server, on `PATH` or in Debian's versioned PostgreSQL folders (the newest first).
pub(crate) fn find_program(program: &'static str, kind: Kind) -> Result<PathBuf, ServerError> {
    let more = if kind == Kind::Postgres { postgres_folders() } else { Vec::new() };
    find_in(path_folders().chain(more), program, kind.package())
}

/// A client of PostgreSQL from beside the server, so that it has the server's version. What Debian has on `PATH` by these names looks for
/// the system's own server.
pub(crate) fn find_postgres_client(program: &'static str) -> Result<PathBuf, ServerError> {
    // `postgres` itself may be on `PATH` as a link.
    let server = find(Kind::Postgres)?.canonicalize().map_err(ServerError::io("look for PostgreSQL's clients"))?;
    let beside = server.parent().map(Path::to_owned);
    find_in(beside.into_iter().chain(path_folders()), program, "postgresql-client")
}

/// A program that comes in a package of its own.
pub(crate) fn find_tool(program: &'static str, package: &'static str) -> Result<PathBuf, ServerError> {
    find_in(path_folders(), program, package)
}

fn find_in(
    folders: impl IntoIterator<Item = PathBuf>,
    program: &'static str,
    package: &'static str,
) -> Result<PathBuf, ServerError> {
    folders
        .into_iter()
        .chain(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or(ServerError::MissingBinary { binary: program, package })
}

fn path_folders() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect::<Vec<_>>().into_iter()
}

fn postgres_folders() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/usr/lib/postgresql") else {
        return Vec::new();
    };
    let mut versions: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter_map(|path| Some((version_of(&path)?, path.join("bin"))))
        .collect();
    versions.sort_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, path)| path).collect()
}

fn version_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.parse().ok()
}
