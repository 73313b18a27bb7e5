//! Redis with a replica and three Sentinels.

use lease_servers::{RedisSentinel, RedisSetup, Server, redis_command};

fn ask(server: &Server, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    redis_command(server, &words).unwrap()
}

fn told(sentinel: &Server, name: &str) -> String {
    ask(sentinel, &format!("SENTINEL get-master-addr-by-name {name}"))
}

#[test]
fn a_killed_primary_is_replaced_and_comes_back_as_a_replica() {
    let setup = RedisSetup { password: Some("secret".into()), ..RedisSetup::default() };
    let mut all = RedisSentinel::start(&setup).unwrap();
    let name = all.name();
    for sentinel in all.sentinels() {
        assert_eq!(told(sentinel, name), format!("127.0.0.1\n{}", all.pair().link().port()));
    }
    ask(all.pair().primary(), "SET n 1");
    all.pair().wait_in_step().unwrap();
    all.failover().unwrap();
    for sentinel in all.sentinels() {
        assert_eq!(told(sentinel, name), format!("127.0.0.1\n{}", all.pair().replica().port()));
    }
    assert_eq!((ask(all.pair().replica(), "GET n"), ask(all.pair().replica(), "INCR n")), ("1".into(), "2".into()));
    all.pair_mut().primary_mut().restart().unwrap();
    all.wait_until_demoted().unwrap();
    assert_eq!(ask(all.pair().primary(), "GET n"), "2");
}

#[test]
fn an_isolated_primary_takes_writes_that_are_lost() {
    let all = RedisSentinel::start(&RedisSetup::default()).unwrap();
    all.pair().cut_link().unwrap();
    assert_eq!(ask(all.pair().primary(), "SET unsent 1"), "OK");
    all.wait_until_promoted().unwrap();
    // Two at the same time.
    let roles = [all.pair().primary(), all.pair().replica()].map(|server| ask(server, "ROLE"));
    assert!(roles.iter().all(|role| role.starts_with("master")), "{roles:?}");
    assert_eq!(ask(all.pair().primary(), "GET unsent"), "1");
    assert_eq!(ask(all.pair().replica(), "GET unsent"), "");
    all.pair().link().heal();
    all.wait_until_demoted().unwrap();
    assert_eq!(ask(all.pair().primary(), "GET unsent"), "");
}
