//! The threads of a proxy: they take connections, and carry what passes.

use super::{Mode, Once, Shared, State, cut};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(super) fn accept(listener: &TcpListener, target: u16, shared: &Arc<Shared>) {
    for client in listener.incoming().map_while(Result::ok) {
        if shared.state().closed {
            return;
        }
        if shared.state().refuse {
            continue;
        }
        // A server that is down looks to the client like a connection that closes at once.
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
        drop(start(client, server, shared));
    }
}

fn start(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    if !shared.admit(client.try_clone()?, server.try_clone()?) {
        return Ok(());
    }
    let replies = Arc::new(Replies::default());
    let (from, to, state, own) = (client.try_clone()?, server.try_clone()?, Arc::clone(shared), Arc::clone(&replies));
    std::thread::spawn(move || carry_requests(from, to, &state, &own));
    let state = Arc::clone(shared);
    std::thread::spawn(move || carry_replies(server, client, &state, &replies));
    Ok(())
}

/// The replies of one connection.
#[derive(Debug, Default)]
struct Replies {
    /// What happens to the next ones.
    way: AtomicU64,
    /// The number of deliveries before the one that kept replies wait for.
    deliveries: AtomicU64,
    /// How many have arrived.
    arrived: AtomicU64,
    /// The server has gone.
    ended: AtomicBool,
}

/// The next replies of the connection are swallowed.
const SWALLOW: u64 = 1;
/// The next reply of the connection cuts it.
const CUT: u64 = 2;
/// The next reply of the connection is kept.
const KEEP: u64 = 3;

fn carry_requests(mut client: TcpStream, mut server: TcpStream, shared: &Shared, replies: &Replies) {
    let mut piece = vec![0; 65_536];
    while let Ok(length @ 1..) = client.read(&mut piece) {
        shared.requests.fetch_add(1, Ordering::SeqCst);
        let mut data = piece.get(..length).unwrap_or_default().to_vec();
        let fault = shared.fault();
        match fault {
            Some(Once::CutBeforeRequest) => return cut_both(&client, &server),
            Some(Once::CutAfterRequest) => cut(&client),
            Some(Once::CutBeforeReply) => replies.way.store(CUT, Ordering::SeqCst),
            Some(Once::SwallowReply) => replies.way.store(SWALLOW, Ordering::SeqCst),
            Some(Once::HoldReply) => {
                replies.deliveries.store(shared.state().deliveries, Ordering::SeqCst);
                replies.way.store(KEEP, Ordering::SeqCst);
            }
            Some(Once::HoldRequest) => {
                replies.way.store(SWALLOW, Ordering::SeqCst);
                read_rest(&mut client, &mut data, shared);
                let before = shared.state().deliveries;
                shared.wait_for_delivery(before);
            }
            None => {}
        }
        let arrived = replies.arrived.load(Ordering::SeqCst);
        if !pass(&data, &mut server, shared, |state| state.requests) {
            break;
        }
        if fault == Some(Once::HoldRequest) {
            wait_for_reply(shared, replies, arrived);
        }
    }
    // The client has gone; a server that is still working on its last request sees an orderly end.
    drop(server.shutdown(Shutdown::Write));
}

/// How soon the rest of a request follows its beginning.
const REST: Duration = Duration::from_millis(50);

/// A client may write one request in several pieces: reads on until nothing follows.
fn read_rest(client: &mut TcpStream, data: &mut Vec<u8>, shared: &Shared) {
    // Without the limit it would wait for the next request.
    if client.set_read_timeout(Some(REST)).is_err() {
        return;
    }
    let mut piece = vec![0; 65_536];
    while let Ok(length @ 1..) = client.read(&mut piece) {
        shared.requests.fetch_add(1, Ordering::SeqCst);
        data.extend_from_slice(piece.get(..length).unwrap_or_default());
    }
    // It worked a moment ago; if it does not now, the next read ends the connection.
    drop(client.set_read_timeout(None));
}

/// How long a server may take to answer a request that was held up, before what came behind it is passed on too. Nothing fails when it is
/// over.
const ANSWER: Duration = Duration::from_secs(5);

fn wait_for_reply(shared: &Shared, replies: &Replies, before: u64) {
    let begin = Instant::now();
    let waits = || replies.arrived.load(Ordering::SeqCst) == before && !replies.ended.load(Ordering::SeqCst);
    while waits() && begin.elapsed() < ANSWER && !shared.state().closed {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn carry_replies(mut server: TcpStream, mut client: TcpStream, shared: &Shared, replies: &Replies) {
    let mut piece = vec![0; 65_536];
    while let Ok(length @ 1..) = server.read(&mut piece) {
        replies.arrived.fetch_add(1, Ordering::SeqCst);
        shared.replies.fetch_add(1, Ordering::SeqCst);
        match replies.way.load(Ordering::SeqCst) {
            CUT => break,
            SWALLOW => continue,
            KEEP => {
                shared.wait_for_delivery(replies.deliveries.load(Ordering::SeqCst));
                replies.way.store(0, Ordering::SeqCst);
            }
            _ => {}
        }
        let data = piece.get(..length).unwrap_or_default();
        if !pass(data, &mut client, shared, |state| state.replies) {
            break;
        }
    }
    replies.ended.store(true, Ordering::SeqCst);
    cut_both(&client, &server);
}

fn cut_both(client: &TcpStream, server: &TcpStream) {
    cut(client);
    cut(server);
}

/// Passes a piece on as the mode says; false when the other end is gone.
fn pass(data: &[u8], to: &mut TcpStream, shared: &Shared, mode: fn(&State) -> Mode) -> bool {
    let now = mode(&shared.state());
    match now {
        Mode::Hole => return true,
        Mode::Hold => shared.wait_while(|state| mode(state) == Mode::Hold),
        Mode::Delay(time) => std::thread::sleep(time),
        Mode::Pass => {}
    }
    to.write_all(data).is_ok()
}
