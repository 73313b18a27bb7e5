//! A PostgreSQL and its standby.

use lease_servers::{PostgresPair, PostgresSetup, Replication, Server, postgres_query, stop_process};
use std::time::Duration;

fn ask(server: &Server, sql: &str) -> String {
    postgres_query(server, sql).unwrap()
}

const COUNT: &str = "SELECT count(*) FROM t";

#[test]
fn what_the_standby_was_not_sent_is_lost_by_a_promotion() {
    let mut pair = PostgresPair::start(&PostgresSetup::default(), Replication::Asynchronous).unwrap();
    ask(pair.primary(), "CREATE TABLE t (n int)");
    ask(pair.primary(), "INSERT INTO t VALUES (1)");
    pair.wait_in_step().unwrap();
    assert_eq!(ask(pair.standby(), COUNT), "1");
    assert_eq!(ask(pair.standby(), "SELECT pg_is_in_recovery()"), "t");
    assert!(postgres_query(pair.standby(), "INSERT INTO t VALUES (9)").unwrap_err().to_string().contains("read-only"));

    pair.cut_link().unwrap();
    ask(pair.primary(), "INSERT INTO t VALUES (2)");
    assert!(pair.lag_bytes().unwrap() > 0);
    pair.promote().unwrap();
    assert_eq!((ask(pair.primary(), COUNT), ask(pair.standby(), COUNT)), ("2".into(), "1".into()));
    ask(pair.standby(), "INSERT INTO t VALUES (3)");
    // It is another history from here on, which the server itself numbers.
    assert_eq!(ask(pair.standby(), "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"), "00000002");

    pair.primary_mut().restart().unwrap();
    pair.standby_mut().restart().unwrap();
    assert_eq!((ask(pair.primary(), COUNT), ask(pair.standby(), COUNT)), ("2".into(), "2".into()));
    assert_eq!(ask(pair.standby(), "SELECT pg_is_in_recovery()"), "f", "it stays promoted");
}

#[test]
fn a_synchronous_commit_waits_for_the_standby() {
    let pair = PostgresPair::start(&PostgresSetup::default(), Replication::Synchronous).unwrap();
    ask(pair.primary(), "CREATE TABLE t (n int)");
    pair.cut_link().unwrap();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| ask(pair.primary(), "INSERT INTO t VALUES (1)"));
        // The server says itself what the commit waits for; the loop ends, or the test's runner ends it.
        while ask(pair.primary(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") != "1" {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(ask(pair.primary(), COUNT), "0", "nobody sees it yet");
        pair.restore_link().unwrap();
        commit.join().unwrap();
    });
    assert_eq!(ask(pair.primary(), COUNT), "1");
    pair.wait_in_step().unwrap();
    pair.promote().unwrap();
    assert_eq!(ask(pair.standby(), COUNT), "1", "what was answered is there");
    ask(pair.standby(), "INSERT INTO t VALUES (2)");
}

#[test]
fn settings_reach_both() {
    let settings = vec![("synchronous_commit".to_owned(), "off".to_owned())];
    let mut pair = PostgresPair::start(&PostgresSetup { settings }, Replication::Asynchronous).unwrap();
    for server in [pair.primary(), pair.standby()] {
        assert_eq!(ask(server, "SHOW synchronous_commit"), "off");
    }
    // A standby that was away catches up.
    pair.standby_mut().kill();
    ask(pair.primary(), "CREATE TABLE t (n int)");
    pair.standby_mut().restart().unwrap();
    pair.wait_in_step().unwrap();
    assert_eq!(ask(pair.standby(), COUNT), "0");
}

/// What a killed PostgreSQL still has when it comes back. With `synchronous_commit = off` a commit is answered before it is written; a process
/// that writes it soon afterwards is stopped here.
#[test]
fn persistence_is_what_the_settings_say() {
    for (commit, kept) in [("on", "1"), ("off", "0")] {
        let settings = [("synchronous_commit", commit), ("autovacuum", "off")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut server = lease_servers::postgres(&PostgresSetup { settings }).unwrap();
        ask(&server, "CREATE TABLE t (n int)");
        ask(&server, "CHECKPOINT");
        let writer = ask(&server, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
        assert!(stop_process(writer.parse().unwrap()));
        ask(&server, "INSERT INTO t VALUES (1)");
        server.restart().unwrap();
        assert_eq!(ask(&server, COUNT), kept, "{commit}");
    }
}
