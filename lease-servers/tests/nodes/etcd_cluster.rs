//! An etcd of three members.

use lease_servers::{EtcdCluster, EtcdSetup, Server, etcd_call, etcd_status};
use std::time::Duration;

/// With a long time-out, so that a slow machine seldom makes them elect.
fn start() -> EtcdCluster {
    EtcdCluster::start(&EtcdSetup { heartbeat_ms: 100, election_ms: 1_500, ..EtcdSetup::default() }).unwrap()
}

/// Puts a value once, of which nothing is asked but that it makes a revision.
fn put(server: &Server) -> Result<String, lease_servers::ServerError> {
    etcd_call(server, "/v3/kv/put", r#"{"key":"aw==","value":"dg=="}"#)
}

/// Puts a value, as soon as there is a leader.
fn write(server: &Server) {
    until(|| put(server).is_ok());
}

fn revision(server: &Server) -> u64 {
    etcd_status(server).unwrap().revision
}

/// Waits until it is so; the loop ends, or the test's runner ends it.
fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_leader_is_followed_by_another_and_catches_up() {
    let mut cluster = start();
    let list = etcd_call(&cluster.members()[0], "/v3/cluster/member/list", "{}").unwrap();
    assert_eq!(list.matches("\"ID\"").count(), 3, "{list}");
    assert_eq!(cluster.url().split(',').count(), 3);
    let old = cluster.leader().unwrap();
    cluster.members_mut()[old].kill();
    let new = cluster.leader_instead_of(old).unwrap();
    write(&cluster.members()[new]);
    let written = revision(&cluster.members()[new]);
    cluster.restart(&[old]).unwrap();
    until(|| revision(&cluster.members()[old]) >= written);
}

#[test]
fn the_leader_moves_where_it_is_told_to() {
    let cluster = start();
    for to in [0, 1, 2] {
        // A slow machine may make them elect another one behind it.
        until(|| {
            cluster.move_leader(to).unwrap();
            cluster.leader().unwrap() == to
        });
    }
}

#[test]
fn without_a_majority_there_is_no_leader_until_it_is_back() {
    let mut cluster = start();
    write(&cluster.members()[2]);
    let written = revision(&cluster.members()[2]);
    for index in [0, 1] {
        cluster.members_mut()[index].kill();
    }
    until(|| etcd_status(&cluster.members()[2]).unwrap().leader == 0);
    assert!(put(&cluster.members()[2]).is_err());
    cluster.restart(&[0, 1]).unwrap();
    cluster.leader().unwrap();
    write(&cluster.members()[0]);
    assert!(revision(&cluster.members()[0]) > written, "what was written is still there");
}

#[test]
fn an_isolated_leader_is_reached_by_clients_only() {
    let mut cluster = start();
    let old = cluster.leader().unwrap();
    write(&cluster.members()[old]);
    let before = revision(&cluster.members()[old]);
    cluster.isolate(old);
    let new = cluster.leader_instead_of(old).unwrap();
    write(&cluster.members()[new]);
    let written = revision(&cluster.members()[new]);
    // It steps down when it has heard from nobody, and has not heard of the write.
    until(|| etcd_status(&cluster.members()[old]).unwrap().leader == 0);
    assert_eq!(revision(&cluster.members()[old]), before);
    assert!(put(&cluster.members()[old]).is_err());
    // Another that is started anew meanwhile belongs to the majority.
    cluster.members_mut()[old].kill();
    let third = (0..3).find(|index| ![old, new].contains(index)).unwrap();
    cluster.restart(&[third]).unwrap();
    write(&cluster.members()[third]);
    cluster.heal();
    cluster.restart(&[old]).unwrap();
    until(|| revision(&cluster.members()[old]) > written);
}

#[test]
fn a_paused_leader_is_followed_by_another_and_follows_then() {
    let cluster = start();
    let old = cluster.leader().unwrap();
    cluster.members()[old].pause();
    let new = cluster.leader_instead_of(old).unwrap();
    write(&cluster.members()[new]);
    let written = revision(&cluster.members()[new]);
    cluster.members()[old].resume();
    until(|| revision(&cluster.members()[old]) >= written);
}
