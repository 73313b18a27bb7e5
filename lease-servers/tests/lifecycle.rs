//! Each server is started, stopped, resumed, killed and restarted for real.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is wrong")]

use lease_servers::{EtcdSetup, PostgresSetup, RedisSetup, Server, process_state};
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

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

/// The process that the next test kills. By itself it does nothing.
#[test]
fn starts_a_server_and_stays() {
    if std::env::var_os("STAY_WITH_A_SERVER").is_some() {
        let server = lease_servers::postgres(&PostgresSetup::default()).unwrap();
        println!("server {} {}", server.pid().unwrap(), server.folder().display());
        std::thread::park();
    }
}

#[test]
fn a_server_and_its_folder_go_with_a_killed_process() {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "starts_a_server_and_stays", "--nocapture"])
        .env("STAY_WITH_A_SERVER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let told = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .find_map(|line| Some(line.unwrap().split_once("server ")?.1.to_owned()))
        .unwrap();
    let (pid, folder) = told.split_once(' ').unwrap();
    assert!(Path::new(folder).exists());
    owner.kill().unwrap();
    owner.wait().unwrap();
    // The loop ends, or the test's runner ends it.
    while !matches!(process_state(pid.parse().unwrap()), None | Some('Z' | 'X')) || Path::new(folder).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
