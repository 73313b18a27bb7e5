//! A snapshot of Redis, and how it is put in the place of what there is.

use super::wire::redis_command;
use crate::server::Folder;
use crate::{Server, ServerError};

/// The name that Redis gives its snapshot.
const SNAPSHOT: &str = "dump.rdb";

pub(crate) fn save(server: &Server, to: &Folder) -> Result<(), ServerError> {
    redis_command(server, &["SAVE"])?;
    std::fs::create_dir(to.data())
        .and_then(|()| std::fs::copy(server.data().join(SNAPSHOT), to.data().join(SNAPSHOT)))
        .map(drop)
        .map_err(ServerError::io("copy the snapshot"))
}

/// A server with an append-only file does not look at a snapshot beside it, but begins with the one that the file's list names as its base.
pub(crate) fn restore(from: &Folder, server: &Server) -> Result<(), ServerError> {
    let (snapshot, data) = (from.data().join(SNAPSHOT), server.data());
    let append_only = data.join("appendonlydir");
    std::fs::copy(&snapshot, data.join(SNAPSHOT))
        .and_then(|_| std::fs::create_dir(&append_only))
        .and_then(|()| std::fs::copy(&snapshot, append_only.join("appendonly.aof.1.base.rdb")))
        .and_then(|_| {
            let list = "file appendonly.aof.1.base.rdb seq 1 type b\n";
            std::fs::write(append_only.join("appendonly.aof.manifest"), list)
        })
        .map_err(ServerError::io("put the snapshot in place"))
}
