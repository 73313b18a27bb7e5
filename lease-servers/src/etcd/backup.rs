//! A snapshot of etcd, and how it is put in the place of what there is.

use crate::server::Folder;
use crate::{Server, ServerError, binaries, program};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Debian package with etcd's own clients.
const PACKAGE: &str = "etcd-client";

pub(crate) fn save(server: &Server, to: &Folder) -> Result<(), ServerError> {
    let mut command = Command::new(binaries::find_tool("etcdctl", PACKAGE)?);
    command.env("ETCDCTL_API", "3").args(["snapshot", "save"]).arg(file(to));
    command.arg(format!("--endpoints=127.0.0.1:{}", server.port()));
    program::run(&mut command, "save a snapshot of etcd").map(drop)
}

/// Makes a member's data from a snapshot: the member, and the cluster, that its arguments say. Their ids are made of their addresses; the
/// data keep their revisions.
pub(crate) fn restore(from: &Folder, server: &Server) -> Result<(), ServerError> {
    let made = server.folder().join("restored");
    let mut command = Command::new(restorer()?);
    command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(file(from)).arg("--data-dir").arg(&made);
    for name in ["--name", "--initial-cluster", "--initial-advertise-peer-urls"] {
        command.arg(name).arg(server.argument(name).unwrap_or_default());
    }
    program::run(&mut command, "restore a snapshot of etcd")?;
    // It makes a folder of its own, and the data's may be a disk.
    let mut command = Command::new("cp");
    command.arg("-a").arg(made.join("member")).arg(server.data());
    program::run(&mut command, "put the snapshot in place")?;
    std::fs::remove_dir_all(made).map_err(ServerError::io("remove the restored folder"))
}

fn file(folder: &Folder) -> PathBuf {
    Path::join(folder.path(), "snapshot.db")
}

/// Newer versions have a program of its own for it.
fn restorer() -> Result<PathBuf, ServerError> {
    binaries::find_tool("etcdutl", PACKAGE).or_else(|_| binaries::find_tool("etcdctl", PACKAGE))
}
