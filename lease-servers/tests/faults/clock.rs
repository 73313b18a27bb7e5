//! A server's wall clock that jumps.

use lease_servers::{EtcdSetup, PostgresSetup, RedisSetup, ServerError, postgres_query, redis_command};

const HOUR_S: i64 = 3_600;

#[test]
fn a_redis_whose_clock_jumps_ends_keys_early_or_late() {
    let mut server = lease_servers::redis(&RedisSetup::default()).unwrap();
    let pid = server.pid();
    server.put_on_clock().unwrap();
    assert_ne!(server.pid(), pid, "it was started again");
    let ask = |words: &[&str]| redis_command(&server, words).unwrap();
    ask(&["SET", "k", "v", "PX", "600000"]);
    server.set_clock(HOUR_S).unwrap();
    assert_eq!(ask(&["EXISTS", "k"]), "0", "ten minutes are over in an hour");
    ask(&["SET", "k", "v", "PX", "600000"]);
    server.set_clock(-HOUR_S).unwrap();
    let left_ms: i64 = ask(&["PTTL", "k"]).parse().unwrap();
    assert!((HOUR_S * 2_000..=HOUR_S * 2_000 + 600_000).contains(&left_ms), "{left_ms}");
    // It goes on over a restart.
    server.restart().unwrap();
    server.set_clock(-HOUR_S).unwrap();
    server.set_clock(0).unwrap();
}

#[test]
fn a_postgres_whose_clock_jumps_tells_so_in_each_session() {
    let mut server = lease_servers::postgres(&PostgresSetup::default()).unwrap();
    server.put_on_clock().unwrap();
    postgres_query(&server, "CREATE TABLE t AS SELECT clock_timestamp() AS begun").unwrap();
    for (ahead, holds) in [(HOUR_S, "> interval '1 h'"), (-HOUR_S, "< interval '0'"), (0, "> interval '0'")] {
        server.set_clock(ahead).unwrap();
        let shows = format!("SELECT clock_timestamp() - begun {holds} FROM t");
        assert_eq!(postgres_query(&server, &shows).unwrap(), "t", "{ahead}");
    }
}

#[test]
fn a_server_has_a_clock_of_its_own_or_says_why_not() {
    let server = lease_servers::redis(&RedisSetup::default()).unwrap();
    assert!(server.set_clock(1).unwrap_err().to_string().contains("no clock of its own"));
}

/// What its time is, it tells; whether it has a clock of its own depends on how it was built.
#[test]
fn an_etcd_whose_clock_jumps_tells_so() {
    let mut server = lease_servers::etcd(&EtcdSetup::default()).unwrap();
    match server.put_on_clock() {
        Err(ServerError::CannotHere { .. }) => return,
        other => other.unwrap(),
    }
    for ahead in [HOUR_S, -HOUR_S, 0] {
        server.set_clock(ahead).unwrap();
    }
    // It goes on over a restart.
    server.set_clock(HOUR_S).unwrap();
    let before = server.time().unwrap();
    server.restart().unwrap();
    assert!(server.time().unwrap() >= before);
}
