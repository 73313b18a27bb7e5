//! Addresses at which nobody answers: connecting ends within its limit on every backend, with the same kind of error.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end by a panic")]

use lease_core::{Effect, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The schemes of servers that are compiled in.
const SCHEMES: &[&str] = &[
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis-fred")]
    "redis+fred",
    #[cfg(feature = "etcd")]
    "etcd",
    #[cfg(feature = "postgres")]
    "postgres",
];

/// Much longer than the limit in the URL: what takes so long has no limit.
const NEVER: Duration = Duration::from_secs(30);

/// A port whose queue is full: the system drops the packets of whoever tries to connect.
async fn swallowing() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    for _ in 0..64 {
        match tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
            Ok(Ok(stream)) => queued.push(stream),
            Ok(Err(error)) => panic!("refused instead of swallowed: {error}"),
            Err(_) => return (listener, queued, address),
        }
    }
    panic!("the queue has no end")
}

/// A port that takes connections, reads nothing and says nothing.
async fn silent() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, Vec::new(), address)
}

async fn connecting_ends(address: SocketAddr, what: &str) {
    for scheme in SCHEMES {
        let url = format!("{scheme}://{address}/?connect_timeout_ms=300&call_timeout_ms=300");
        let ended = tokio::time::timeout(NEVER, leasehold::connect(&url)).await;
        let error = ended.unwrap_or_else(|_| panic!("{scheme}, {what}: no end")).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Transport, Effect::None), "{scheme}, {what}: {error}");
    }
}

#[tokio::test]
async fn where_packets_are_swallowed_connecting_ends() {
    let (_listener, _queued, address) = swallowing().await;
    connecting_ends(address, "swallowed").await;
}

#[tokio::test]
async fn where_nobody_answers_connecting_ends() {
    let (_listener, _queued, address) = silent().await;
    connecting_ends(address, "silent").await;
}
