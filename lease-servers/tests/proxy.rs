//! The proxy does to real requests what it says; the server's own counter is the witness.
#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is wrong")]

use lease_servers::{Direction, Mode, Once, Proxy, RedisSetup, Server};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

fn bench() -> (Server, Proxy) {
    let server = lease_servers::redis(&RedisSetup::default()).unwrap();
    let proxy = Proxy::to(server.port()).unwrap();
    (server, proxy)
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// How long an answer that has to come may take.
const LONG: Duration = Duration::from_secs(30);
/// How long to listen for an answer that must not come.
const SHORT: Duration = Duration::from_millis(300);

fn read(stream: &mut TcpStream) -> Option<String> {
    let mut answer = [0; 100];
    match stream.read(&mut answer) {
        Ok(length @ 1..) => Some(String::from_utf8_lossy(answer.get(..length).unwrap()).trim().to_owned()),
        _ => None,
    }
}

fn increment(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"INCR n\r\n").ok()?;
    read(stream)
}

/// An increment whose answer must not come, at least not yet.
fn unanswered(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    let answer = increment(stream);
    stream.set_read_timeout(Some(LONG)).unwrap();
    answer.is_none()
}

/// Waits until the armed fault has happened; the loop ends, or the test's runner ends it.
fn until_happened(proxy: &Proxy) {
    while !proxy.happened() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The counter, asked on a connection of its own.
fn counter(server: &Server) -> i64 {
    let mut stream = connect(server.port());
    stream.write_all(b"INCRBY n 0\r\n").unwrap();
    read(&mut stream).unwrap().trim_start_matches(':').parse().unwrap()
}

/// Waits until the server has seen so many; the loop ends, or the test's runner ends it.
fn until(server: &Server, count: i64) {
    while counter(server) != count {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_fault_does_what_it_says() {
    let (server, proxy) = bench();
    assert_eq!(increment(&mut connect(proxy.port())).unwrap(), ":1");
    for (fault, executed) in
        [(Once::CutBeforeRequest, 0), (Once::CutAfterRequest, 1), (Once::CutBeforeReply, 1), (Once::SwallowReply, 1)]
    {
        let before = counter(&server);
        proxy.once(fault);
        assert!(unanswered(&mut connect(proxy.port())), "{fault:?}");
        until_happened(&proxy);
        until(&server, before.checked_add(executed).unwrap());
        assert!(increment(&mut connect(proxy.port())).is_some(), "only once");
    }
}

#[test]
fn a_held_request_arrives_after_its_sender_has_gone() {
    let (server, proxy) = bench();
    proxy.once(Once::HoldRequest);
    let mut client = connect(proxy.port());
    assert!(unanswered(&mut client));
    drop(client);
    assert_eq!(counter(&server), 0);
    assert_eq!(increment(&mut connect(proxy.port())).unwrap(), ":1", "others pass it");
    proxy.deliver();
    until(&server, 2);
}

/// Waits until the proxy has done with the last request of this connection. Redis gives an empty line no answer, so it does not matter what
/// becomes of that one; but when it has arrived, the request before it is through.
fn until_through(proxy: &Proxy, client: &mut TcpStream, requests: u64) {
    while proxy.counts().0 < requests {
        std::thread::sleep(Duration::from_millis(1));
    }
    client.write_all(b"\r\n").unwrap();
    while proxy.counts().0 == requests {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn modes_per_direction() {
    let (server, proxy) = bench();
    let mut client = connect(proxy.port());
    proxy.set(Direction::Replies, Mode::Hold);
    assert!(unanswered(&mut client));
    until(&server, 1);
    proxy.set(Direction::Replies, Mode::Pass);
    assert_eq!(read(&mut client).unwrap(), ":1");
    proxy.set(Direction::Requests, Mode::Hole);
    assert!(unanswered(&mut client));
    until_through(&proxy, &mut client, 2);
    proxy.set_both(Mode::Delay(Duration::from_millis(20)));
    assert_eq!(increment(&mut client).unwrap(), ":2");
    // The end of a refused connection and of one that was cut comes by itself.
    proxy.refuse(true);
    assert_eq!(increment(&mut connect(proxy.port())), None);
    proxy.refuse(false);
    proxy.cut();
    assert_eq!(increment(&mut client), None);
    assert_eq!((proxy.counts().0, counter(&server)), (4, 2));
}

#[test]
fn a_fault_can_be_at_a_later_request_and_be_taken_back() {
    let (server, proxy) = bench();
    proxy.once_after(2, Once::CutBeforeRequest);
    let mut client = connect(proxy.port());
    assert_eq!(increment(&mut client).unwrap(), ":1");
    assert_eq!(increment(&mut client).unwrap(), ":2");
    assert!(!proxy.happened());
    assert!(unanswered(&mut client));
    until_happened(&proxy);
    proxy.once_after(1, Once::CutBeforeRequest);
    let mut client = connect(proxy.port());
    assert_eq!(increment(&mut client).unwrap(), ":3");
    proxy.heal();
    assert_eq!(increment(&mut client).unwrap(), ":4");
    assert!(!proxy.happened());
    until(&server, 4);
}

#[test]
fn a_held_reply_arrives_late_and_in_order() {
    let (server, proxy) = bench();
    proxy.once(Once::HoldReply);
    let mut client = connect(proxy.port());
    assert!(unanswered(&mut client));
    until(&server, 1);
    until_happened(&proxy);
    proxy.deliver();
    assert_eq!(read(&mut client).unwrap(), ":1");
    assert_eq!(increment(&mut client).unwrap(), ":2", "only once");
}

#[test]
fn a_request_in_pieces_is_held_as_a_whole() {
    let (server, proxy) = bench();
    proxy.once(Once::HoldRequest);
    let mut client = connect(proxy.port());
    client.write_all(b"INCR").unwrap();
    std::thread::sleep(Duration::from_millis(5));
    client.write_all(b" n\r\n").unwrap();
    client.set_read_timeout(Some(SHORT)).unwrap();
    assert_eq!(read(&mut client), None);
    // What is sent after a while is not a part of it.
    client.write_all(b"QUIT\r\n").unwrap();
    drop(client);
    let (_, before) = proxy.counts();
    proxy.deliver();
    until(&server, 1);
    while proxy.counts().1 == before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn connections_of_other_processes_are_cut_and_refused() {
    let (_server, proxy) = bench();
    let mut client = connect(proxy.port());
    assert_eq!(increment(&mut client).unwrap(), ":1");
    proxy.only_from(vec![std::process::id()]);
    assert_eq!(increment(&mut client).unwrap(), ":2", "its own stays");
    assert_eq!(increment(&mut connect(proxy.port())).unwrap(), ":3");
    // The first process of the system is none of the clients.
    proxy.only_from(vec![1]);
    assert_eq!(increment(&mut client), None);
    assert_eq!(increment(&mut connect(proxy.port())), None);
    proxy.heal();
    assert_eq!(increment(&mut connect(proxy.port())).unwrap(), ":4");
}
