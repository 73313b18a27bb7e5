//! What people do to an etcd by hand: deleted keys, and backups that are restored.

use super::kill;
use super::one::{One, SINGLE, TTL, others_write};
use super::wire::{call, cluster_id, delete, get, left_s, put, record};
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing};
use crate::survival::{CONTESTED, KEPT, NAMESPACE};
use lease_servers::{Backup, Server, etcd_status};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

pub(super) static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "record-deleted",
        means: "somebody deletes the keys of the two leases that A holds; the etcd leases live on",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: delete_records,
    },
    Fault {
        id: "all-deleted",
        means: "somebody deletes all keys of the namespace",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: delete_all,
    },
    Fault {
        id: "restore",
        means: "a snapshot from before the grants is restored with the same cluster token and addresses",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: back_up,
        make: restore,
    },
    Fault {
        id: "restore-new-token",
        means: "a snapshot from before the grants is restored with another cluster token",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: save_snapshot,
        make: restore_as_another,
    },
];

/// The etcd lease is asked for after its key is gone.
fn delete_records(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let mut witness = Witness::default();
    for resource in [CONTESTED, KEPT] {
        let key = record(resource);
        let found = get(&one.server, &key, false)?.ok_or_else(|| Trouble::Failed(format!("there is no {key}")))?;
        let deleted = delete(&one.server, &key, false)?;
        let left = left_s(&one.server, &found.lease)?;
        let (1, Some(left)) = (deleted, left) else {
            let seen = format!("{deleted} keys {key} were deleted, and the etcd lease has {left:?} s left");
            return Err(Trouble::NotShown(seen));
        };
        witness = witness
            .and(&format!("{resource}_deleted_keys"), deleted)
            .and(&format!("{resource}_etcd_lease_left_s"), left);
    }
    Ok(witness)
}

fn delete_all(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    // The incarnation and the two records at least.
    const LEAST: u64 = 3;
    let prefix = format!("{NAMESPACE}/");
    match delete(&one.server, &prefix, true)? {
        few if few < LEAST => Err(Trouble::NotShown(format!("{few} keys were deleted"))),
        deleted => Ok(Witness::of("deleted_prefix", prefix).and("deleted_keys", deleted)),
    }
}

/// What is written after the snapshot and is not there once it is restored.
const LATER: &str = "written-after-the-snapshot";

fn back_up(one: &mut One) -> Result<(), Trouble> {
    one.backup = Some(Backup::of(&one.server)?);
    put(&one.server, LATER, b"1")?;
    others_write(one)
}

fn restore(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let backup = one.backup.take().ok_or_else(|| Trouble::Failed("there is no backup".to_owned()))?;
    let (cluster, revision) = (cluster_id(&one.server)?, etcd_status(&one.server)?.revision);
    backup.restore_to(&mut one.server)?;
    let witness = went_back(&one.server, revision)?;
    let after = cluster_id(&one.server)?;
    if after != cluster {
        return Err(Trouble::NotShown(format!("the cluster's id changed from {cluster} to {after}")));
    }
    Ok(witness.and("cluster_id_before_and_after", cluster))
}

/// Shows that a server has the snapshot's data.
fn went_back(server: &Server, before: u64) -> Result<Witness, Trouble> {
    let after = etcd_status(server)?.revision;
    let later = get(server, LATER, false)?;
    if after >= before || later.is_some() {
        return Err(Trouble::NotShown(format!("revision {before} before and {after} after; {LATER} is {later:?}")));
    }
    Ok(Witness::of("revision_before", before)
        .and("revision_after", after)
        .and("key_written_after_the_snapshot", "gone"))
}

fn save_snapshot(one: &mut One) -> Result<(), Trouble> {
    let file = one.server.folder().join("snapshot.db");
    let endpoint = format!("--endpoints=127.0.0.1:{}", one.server.port());
    run("etcdctl", &["snapshot", "save", &text(&file), &endpoint])?;
    one.snapshot = Some(file);
    put(&one.server, LATER, b"1")?;
    others_write(one)
}

/// The same place, the same addresses, the same data: only the token is another one.
fn restore_as_another(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let snapshot = one.snapshot.take().ok_or_else(|| Trouble::Failed("there is no snapshot".to_owned()))?;
    let (cluster, revision) = (cluster_id(&one.server)?, etcd_status(&one.server)?.revision);
    let (name, peer) = itself(&one.server)?;
    let old = kill(&mut one.server)?;
    let (made, data) = (one.server.folder().join("made"), one.server.folder().join("data"));
    let member = format!("{name}={peer}");
    let arguments = [
        ["--data-dir", &text(&made)],
        ["--name", &name],
        ["--initial-cluster", &member],
        ["--initial-advertise-peer-urls", &peer],
        ["--initial-cluster-token", "restored"],
    ];
    let snapshot = text(&snapshot);
    let arguments = ["snapshot", "restore", &snapshot].into_iter().chain(arguments.into_iter().flatten());
    let arguments: Vec<&str> = arguments.collect();
    // Newer versions have a program of its own for it.
    run("etcdutl", &arguments).or_else(|_| run("etcdctl", &arguments))?;
    let exchanged = std::fs::remove_dir_all(data.join("member"))
        .and_then(|()| std::fs::rename(made.join("member"), data.join("member")));
    exchanged.map_err(|error| Trouble::Failed(format!("cannot put the restored data in place: {error}")))?;
    one.server.restart()?;
    let witness = went_back(&one.server, revision)?;
    let after = cluster_id(&one.server)?;
    if after == cluster {
        return Err(Trouble::NotShown(format!("the cluster's id is {cluster} as before")));
    }
    Ok(witness.and("killed_pid", old).and("cluster_id_before", cluster).and("cluster_id_after", after))
}

/// The name and the address for peers of the only member.
fn itself(server: &Server) -> Result<(String, String), Trouble> {
    let list = call(server, "/v3/cluster/member/list", &json!({}))?;
    let of = |path: &str| list.pointer(path).and_then(Value::as_str).map(str::to_owned);
    match (of("/members/0/name"), of("/members/0/peerURLs/0")) {
        (Some(name), Some(peer)) => Ok((name, peer)),
        _ => Err(Trouble::Failed(format!("the list of members is {list}"))),
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), Trouble> {
    let output = Command::new(program).args(arguments).env("ETCDCTL_API", "3").output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Trouble::Missing(format!("{program} is not installed (package etcd-client)")),
        _ => Trouble::Failed(format!("cannot run {program}: {error}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Trouble::Failed(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr))))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
