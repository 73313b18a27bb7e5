//! Ports for servers, and the shortest way to ask one something.

use crate::ServerError;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{TcpListener, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Below those that systems give to outgoing connections (from 32768 on Linux). One of those could be taken by any client before the
/// server has it, or while the server is down; and a client that connects to such a port of its own machine again and again, while nobody
/// listens there, is in the end connected to itself.
const FIRST_PORT: u16 = 18_000;
const PORTS: u16 = 14_000;

/// A port on 127.0.0.1 that is free at this moment, and that nobody else in this process is given.
pub(crate) fn free_port() -> Result<u16, ServerError> {
    // Processes begin at different places.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        let [one, two, ..] = RandomState::new().hash_one(std::process::id()).to_le_bytes();
        AtomicU16::new(u16::from_le_bytes([one, two]))
    });
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrInUse);
    for _ in 0..PORTS {
        let place = NEXT.fetch_add(1, Ordering::Relaxed).checked_rem(PORTS).unwrap_or_default();
        let port = FIRST_PORT.saturating_add(place);
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(ServerError::io("find a free port")(last))
}

/// Sends `question` to the port and returns the first bytes of the answer.
pub(crate) fn ask(port: u16, question: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(question)?;
    let mut answer = vec![0; 512];
    let length = stream.read(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}
