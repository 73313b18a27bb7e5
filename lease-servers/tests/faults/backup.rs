//! Backups that are restored.

use crate::common::{add, begin, count};
use lease_servers::{
    Backup, EtcdCluster, EtcdSetup, PostgresSetup, RedisSetup, Server, ServerError, etcd_call, etcd_status,
};
use std::time::Duration;

fn goes_back(start: impl Fn() -> Result<Server, ServerError>) {
    let mut server = start().unwrap();
    begin(&server);
    add(&server).unwrap();
    let backup = Backup::of(&server).unwrap();
    add(&server).unwrap();
    assert_eq!(count(&server), 2);
    // A second server with what the first one had, which works on by itself.
    let mut second = start().unwrap();
    backup.restore_to(&mut second).unwrap();
    assert_eq!((count(&server), count(&second)), (2, 1));
    for _ in 0..2 {
        add(&second).unwrap();
    }
    second.restart().unwrap();
    assert_eq!((count(&server), count(&second)), (2, 3));
    // The first one goes back, at its own port.
    let port = server.port();
    backup.restore_to(&mut server).unwrap();
    assert_eq!((count(&server), server.port()), (1, port));
    add(&server).unwrap();
    server.restart().unwrap();
    assert_eq!(count(&server), 2);
}

#[test]
fn redis() {
    goes_back(|| lease_servers::redis(&RedisSetup::default()));
    // Without a file of its own a server begins with the snapshot too.
    let mut server = lease_servers::redis(&RedisSetup { append_only: false, ..RedisSetup::default() }).unwrap();
    add(&server).unwrap();
    let backup = Backup::of(&server).unwrap();
    add(&server).unwrap();
    backup.restore_to(&mut server).unwrap();
    assert_eq!(count(&server), 1);
}

#[test]
fn etcd() {
    goes_back(|| lease_servers::etcd(&EtcdSetup::default()));
}

#[test]
fn postgres() {
    goes_back(|| lease_servers::postgres(&PostgresSetup::default()));
}

#[test]
fn a_backup_of_one_member_makes_a_new_cluster() {
    let mut cluster =
        EtcdCluster::start(&EtcdSetup { heartbeat_ms: 100, election_ms: 1_500, ..EtcdSetup::default() }).unwrap();
    add(&cluster.members()[0]).unwrap();
    let written = etcd_status(&cluster.members()[0]).unwrap();
    let backup = Backup::of(&cluster.members()[0]).unwrap();
    add(&cluster.members()[0]).unwrap();
    let id = |cluster: &EtcdCluster| {
        let list = etcd_call(&cluster.members()[0], "/v3/cluster/member/list", "{}").unwrap();
        list.split("\"cluster_id\":").nth(1).unwrap().split(',').next().unwrap().to_owned()
    };
    let before = id(&cluster);
    backup.restore_to_cluster(&mut cluster).unwrap();
    for member in cluster.members() {
        let status = etcd_status(member).unwrap();
        assert_eq!(status.revision, written.revision, "the second write is gone");
    }
    cluster.leader().unwrap();
    while add(&cluster.members()[1]).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(before, id(&cluster), "it is made of the addresses, so it does not show that this is another history");
}

#[test]
fn a_backup_is_for_its_own_kind() {
    let server = lease_servers::redis(&RedisSetup::default()).unwrap();
    let mut other = lease_servers::etcd(&EtcdSetup::default()).unwrap();
    let error = Backup::of(&server).unwrap().restore_to(&mut other).unwrap_err();
    assert!(error.to_string().contains("another kind"), "{error}");
    assert!(other.pid().is_some(), "nothing was done");
}
