//! A Redis and its replica.

use lease_servers::{RedisPair, RedisSetup, Server, redis_command};
use std::time::Duration;

fn ask(server: &Server, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    redis_command(server, &words).unwrap()
}

fn role(server: &Server) -> String {
    ask(server, "ROLE").lines().next().unwrap().to_owned()
}

fn offset(server: &Server, field: &str) -> u64 {
    let text = ask(server, "INFO replication");
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap().trim().parse().unwrap()
}

#[test]
fn what_the_replica_was_not_sent_is_lost_by_a_promotion() {
    let mut pair = RedisPair::start(&RedisSetup::default()).unwrap();
    assert_eq!((role(pair.primary()), role(pair.replica())), ("master".into(), "slave".into()));
    ask(pair.primary(), "SET sent 1");
    pair.wait_in_step().unwrap();
    assert_eq!(ask(pair.replica(), "GET sent"), "1");

    pair.cut_link().unwrap();
    assert!(ask(pair.primary(), "INFO replication").contains("connected_slaves:0"), "the witness");
    assert_eq!(ask(pair.primary(), "SET unsent 1"), "OK", "it answers without its replica");
    assert!(pair.lag_bytes().unwrap() > 0);
    pair.promote().unwrap();
    assert_eq!((ask(pair.replica(), "GET sent"), ask(pair.replica(), "GET unsent")), ("1".into(), String::new()));
    assert_eq!(ask(pair.replica(), "SET own 1"), "OK", "it takes writes");
    assert_eq!(ask(pair.primary(), "GET unsent"), "1", "the old one is kept");

    // The roles outlive a restart of both.
    pair.primary_mut().restart().unwrap();
    pair.replica_mut().restart().unwrap();
    assert_eq!((role(pair.primary()), role(pair.replica())), ("master".into(), "master".into()));
    assert_eq!((ask(pair.primary(), "GET own"), ask(pair.replica(), "GET own")), (String::new(), "1".into()));
}

#[test]
fn a_link_that_comes_back_brings_what_was_missing() {
    let setup = RedisSetup { password: Some("secret".into()), ..RedisSetup::default() };
    let mut pair = RedisPair::start(&setup).unwrap();
    pair.cut_link().unwrap();
    assert!(ask(pair.replica(), "INFO replication").contains("master_link_status:down"), "the witness");
    ask(pair.primary(), "SET late 1");
    assert_eq!(ask(pair.replica(), "GET late"), "");
    pair.restore_link().unwrap();
    assert_eq!(ask(pair.replica(), "GET late"), "1");
    // A replica that was away stays one.
    pair.replica_mut().kill();
    ask(pair.primary(), "SET later 1");
    pair.replica_mut().restart().unwrap();
    pair.wait_in_step().unwrap();
    assert_eq!((role(pair.replica()), ask(pair.replica(), "GET later")), ("slave".into(), "1".into()));
}

/// A stopped replica is no replica that lags: the kernel keeps for it what it was sent.
#[test]
fn a_stopped_replica_loses_nothing() {
    let mut pair = RedisPair::start(&RedisSetup::default()).unwrap();
    pair.replica().pause();
    ask(pair.primary(), "SET sent 1");
    // Another round of its loop, so that the replica's part has left it too.
    let written = offset(pair.primary(), "master_repl_offset");
    pair.primary_mut().kill();
    pair.replica().resume();
    while offset(pair.replica(), "slave_repl_offset") < written {
        std::thread::sleep(Duration::from_millis(1));
    }
    pair.promote().unwrap();
    assert_eq!(ask(pair.replica(), "GET sent"), "1");
}

/// A primary without persistence that comes back empty makes its replica as empty.
#[test]
fn an_unpersisted_primary_that_comes_back_empties_its_replica() {
    let setup = RedisSetup { append_only: false, ..RedisSetup::default() };
    let mut pair = RedisPair::start(&setup).unwrap();
    ask(pair.primary(), "SET n 1");
    pair.wait_in_step().unwrap();
    pair.primary_mut().restart().unwrap();
    pair.wait_in_step().unwrap();
    assert_eq!(ask(pair.replica(), "GET n"), "");
}

/// What a killed Redis still has when it comes back: everything that the kernel had, or its last snapshot, or nothing.
#[test]
fn persistence_is_what_the_setup_says() {
    let durable = RedisSetup::default;
    let nothing = || RedisSetup { append_only: false, ..durable() };
    for (setup, kept) in [
        (durable(), "1"),
        (RedisSetup { append_fsync: "everysec", ..durable() }, "1"),
        (RedisSetup { append_fsync: "no", ..durable() }, "1"),
        (RedisSetup { snapshots: Some("1 1"), ..nothing() }, "1"),
        (nothing(), ""),
    ] {
        let mut server = lease_servers::redis(&setup).unwrap();
        ask(&server, "SET n 1");
        while setup.snapshots.is_some() && !ask(&server, "INFO persistence").contains("rdb_changes_since_last_save:0") {
            std::thread::sleep(Duration::from_millis(10));
        }
        server.restart().unwrap();
        assert_eq!(ask(&server, "GET n"), kept, "{setup:?}");
    }
}
