//! Copies of a server's data, to go back to.

use crate::server::Folder;
use crate::{EtcdCluster, Kind, Server, ServerError, etcd, postgres, redis};
use std::path::Path;

/// What a server had at one moment, made by the server's own means while it runs: a snapshot of Redis (`SAVE`), a snapshot of etcd
/// (`etcdctl snapshot save`), a base backup of PostgreSQL (`pg_basebackup`).
///
/// To restore it is what an operator does after a loss: everything since then is gone, and the server does not know.
#[derive(Debug)]
pub struct Backup {
    kind: Kind,
    folder: Folder,
}

impl Backup {
    /// Makes a backup of a running server: of the primary of a pair, of any member of a cluster.
    ///
    /// # Errors
    /// When the server refuses, or a program that makes the backup is not installed.
    pub fn of(server: &Server) -> Result<Self, ServerError> {
        let folder = Folder::new(server.kind())?;
        match server.kind() {
            Kind::Redis => redis::save(server, &folder)?,
            Kind::Etcd => etcd::save(server, &folder)?,
            Kind::Postgres => postgres::copy_of(server, &folder, &folder.data())?,
        }
        Ok(Self { kind: server.kind(), folder })
    }

    /// Kills a server, puts the backup in the place of its data, and starts it again: the server that the backup was made of, which goes
    /// back; or one that was set up anew, which becomes a second one.
    ///
    /// # Errors
    /// When the server is of another kind, or does not become ready on these data.
    pub fn restore_to(&self, server: &mut Server) -> Result<(), ServerError> {
        self.put_into(server)?;
        server.restart()
    }

    /// Restores a backup of one member to a whole cluster, which is a new one afterwards: each member begins with the same data.
    ///
    /// # Errors
    /// When the backup is not one of etcd, or the cluster does not become ready.
    pub fn restore_to_cluster(&self, cluster: &mut EtcdCluster) -> Result<(), ServerError> {
        let mut all = Vec::new();
        for (index, member) in cluster.members_mut().iter_mut().enumerate() {
            // All of them first: one that lives on would tell the others what it knows.
            member.kill();
            all.push(index);
        }
        cluster.members_mut().iter_mut().try_for_each(|member| self.put_into(member))?;
        cluster.restart(&all)
    }

    fn put_into(&self, server: &mut Server) -> Result<(), ServerError> {
        if server.kind() != self.kind {
            let what = format!("restore a backup of {} to the {} on port {}", self.kind, server.kind(), server.port());
            return Err(ServerError::Refused { what, answer: "it is of another kind".into() });
        }
        server.kill();
        empty(&server.data()).map_err(ServerError::io("remove the old data"))?;
        match self.kind {
            Kind::Redis => redis::restore(&self.folder, server),
            Kind::Etcd => etcd::restore(&self.folder, server),
            Kind::Postgres => postgres::restore(&self.folder, server),
        }
    }
}

/// Removes what is in a folder, and not the folder, which may be a disk.
pub(crate) fn empty(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
    }
    Ok(())
}
