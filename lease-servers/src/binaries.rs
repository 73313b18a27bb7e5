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
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if kind == Kind::Postgres {
        folders.extend(postgres_folders());
    }
    folders.extend(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from));
    folders
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or(ServerError::MissingBinary { binary: program, package: kind.package() })
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
