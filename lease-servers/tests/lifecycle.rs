//! Each server is started, stopped, resumed, killed and restarted for real.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is wrong")]

use lease_servers::{EtcdSetup, PostgresSetup, RedisSetup, Server, process_state};
use std::net::TcpStream;

fn lifecycle(mut server: Server) {
    let pid = server.pid().unwrap();
    assert!(server.version().starts_with(|c: char| c.is_ascii_digit()), "{}", server.version());
    server.pause();
    assert_eq!(process_state(pid), Some('T'));
    server.resume();
    assert_ne!(process_state(pid), Some('T'));
    server.kill();
    assert_eq!((server.pid(), process_state(pid)), (None, None));
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    server.restart().unwrap();
    let (pid, folder) = (server.pid().unwrap(), server.folder().to_owned());
    drop(server);
    assert_eq!(process_state(pid), None);
    assert!(!folder.exists());
}

#[test]
fn redis() {
    lifecycle(lease_servers::redis(&RedisSetup::default()).unwrap());
    lifecycle(lease_servers::redis(&RedisSetup { password: Some("x".into()), ..RedisSetup::default() }).unwrap());
}

#[test]
fn etcd() {
    lifecycle(lease_servers::etcd(&EtcdSetup::default()).unwrap());
}

#[test]
fn postgres() {
    lifecycle(lease_servers::postgres(&PostgresSetup::default()).unwrap());
}
