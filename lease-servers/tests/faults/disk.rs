//! A disk that fails.

use crate::common::{add, begin, count};
use lease_servers::{
    EtcdCluster, EtcdSetup, PostgresSetup, RedisSetup, Server, ServerError, etcd_status, postgres_query, process_state,
};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Puts a server on a disk; false where that is not possible, of which the error has to say why.
fn on_disk(server: &mut Server, mib: u32) -> bool {
    let Err(error) = server.put_on_disk(mib) else { return true };
    assert!(matches!(error, ServerError::CannotHere { .. }), "{error}");
    let because = error.to_string();
    assert!(because.contains("only root") != rustix::process::geteuid().is_root(), "{because}");
    false
}

fn redis(append_fsync: &'static str) -> Server {
    lease_servers::redis(&RedisSetup { append_fsync, ..RedisSetup::default() }).unwrap()
}

fn loses_nothing(mut server: Server, mib: u32) {
    if !on_disk(&mut server, mib) {
        return;
    }
    begin(&server);
    for cut in 1..=2 {
        add(&server).unwrap();
        server.power_cut().unwrap();
        assert_eq!(count(&server), cut);
    }
}

#[test]
fn what_was_synced_outlives_a_power_cut_redis() {
    loses_nothing(redis("always"), 32);
}

#[test]
fn what_was_synced_outlives_a_power_cut_etcd() {
    loses_nothing(lease_servers::etcd(&EtcdSetup::default()).unwrap(), 256);
}

#[test]
fn what_was_synced_outlives_a_power_cut_postgres() {
    loses_nothing(lease_servers::postgres(&PostgresSetup::default()).unwrap(), 128);
}

/// Killed, it would have lost nothing: the kernel had it.
#[test]
fn what_was_not_synced_is_lost_by_a_power_cut() {
    let mut server = redis("no");
    if !on_disk(&mut server, 32) {
        return;
    }
    add(&server).unwrap();
    server.restart().unwrap();
    assert_eq!(count(&server), 1);
    // The kernel writes what is half a minute old by itself.
    add(&server).unwrap();
    server.power_cut().unwrap();
    assert!(count(&server) < 2);
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let mut server = lease_servers::postgres(&PostgresSetup::default()).unwrap();
    if !on_disk(&mut server, 128) {
        return;
    }
    begin(&server);
    server.fill_disk().unwrap();
    let grow = "INSERT INTO t SELECT generate_series(1, 100000)";
    let error = postgres_query(&server, grow).unwrap_err().to_string();
    assert!(error.contains("No space left on device"), "{error}");
    server.clear_disk().unwrap();
    postgres_query(&server, grow).unwrap();
    assert_eq!(count(&server), 100_000);
}

#[test]
fn a_stalled_disk_holds_writes_up() {
    let mut server = redis("always");
    if !on_disk(&mut server, 32) {
        return;
    }
    server.stall_disk().unwrap();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| add(&server));
        // It waits for its disk; the loop ends, or the test's runner ends it.
        while process_state(server.pid().unwrap()) != Some('D') {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!write.is_finished());
        server.resume_disk().unwrap();
        write.join().unwrap().unwrap();
    });
    assert_eq!(count(&server), 1);
    assert!(server.resume_disk().is_err(), "it was not stalled");
    // The end of the server ends the stall.
    server.stall_disk().unwrap();
    server.restart().unwrap();
    assert_eq!(count(&server), 1);
}

#[test]
fn a_leader_whose_disk_stalls_is_followed_by_another() {
    let mut cluster =
        EtcdCluster::start(&EtcdSetup { heartbeat_ms: 100, election_ms: 1_500, ..EtcdSetup::default() }).unwrap();
    if !on_disk(&mut cluster.members_mut()[0], 256) {
        return;
    }
    cluster.move_leader(0).unwrap();
    cluster.members()[0].stall_disk().unwrap();
    std::thread::scope(|scope| {
        // What it has to write itself first: then it stands still.
        scope.spawn(|| add(&cluster.members()[0]));
        let new = cluster.leader_instead_of(0).unwrap();
        while add(&cluster.members()[new]).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let written = etcd_status(&cluster.members()[new]).unwrap().revision;
        cluster.members()[0].resume_disk().unwrap();
        while etcd_status(&cluster.members()[0]).unwrap().revision < written {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn a_server_has_a_disk_of_its_own_or_says_that_it_has_none() {
    let mut server = redis("always");
    for refused in
        [server.power_cut(), server.fill_disk(), server.clear_disk(), server.stall_disk(), server.resume_disk()]
    {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("no disk of its own"), "{error}");
    }
    if on_disk(&mut server, 32) {
        assert!(server.put_on_disk(32).is_err());
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let folder = server.folder().display().to_string();
        assert!(mounts().contains(&folder));
        drop(server);
        assert!(!mounts().contains(&folder));
        assert!(!Path::new(&folder).exists());
    }
}

/// The process that the next test kills. By itself it does nothing.
#[test]
fn starts_a_server_on_a_disk_and_stays() {
    if std::env::var_os("STAY_WITH_A_DISK").is_some() {
        let mut server = redis("always");
        let there = on_disk(&mut server, 32);
        if there {
            server.stall_disk().unwrap();
        }
        println!("server {there} {} {}", server.pid().unwrap(), server.folder().display());
        std::thread::park();
    }
}

#[test]
fn a_stalled_disk_goes_with_a_killed_process() {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "disk::starts_a_server_on_a_disk_and_stays", "--nocapture"])
        .env("STAY_WITH_A_DISK", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let told = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .find_map(|line| Some(line.unwrap().split_once("server ")?.1.to_owned()))
        .unwrap();
    let [there, pid, folder] = told.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mounted = || std::fs::read_to_string("/proc/self/mounts").unwrap().contains(folder);
    assert_eq!(mounted().to_string(), there);
    owner.kill().unwrap();
    owner.wait().unwrap();
    // The loop ends, or the test's runner ends it.
    let ended = || matches!(process_state(pid.parse().unwrap()), None | Some('Z' | 'X'));
    while !ended() || mounted() || Path::new(folder).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
