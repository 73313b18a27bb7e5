//! A TCP proxy between a client and a server, which can lose, hold and cut what passes, and counts it.

use crate::ServerError;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A proxy on 127.0.0.1. Dropping it cuts what passes through it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// Which way something passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// What happens to everything that passes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It passes.
    #[default]
    Pass,
    /// It is swallowed; connections stay open.
    Hole,
    /// It is kept, and delivered in order once the mode is another one, also when the other end has gone away meanwhile.
    Hold,
    /// It passes after this long.
    Delay(Duration),
}

/// What happens once, at the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// The connection is cut before the request reaches the server.
    CutBeforeRequest,
    /// The request reaches the server, and the connection is cut at the client's end at once.
    CutAfterRequest,
    /// The connection is cut when the server's reply arrives; the client sees none of it.
    CutBeforeReply,
    /// The client gets no reply on this connection any more; the server's is swallowed.
    SwallowReply,
    /// The request, with what follows it at once, is kept until [`Proxy::deliver`]; the client gets no reply on this connection any more, and may go away. What it
    /// sends behind the request, such as a cancellation, waits until the server has answered the request.
    HoldRequest,
    /// The server's reply is kept until [`Proxy::deliver`].
    HoldReply,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    requests: AtomicU64,
    replies: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    requests: Mode,
    replies: Mode,
    /// How many requests pass before the armed fault, and the fault.
    once: Option<(u32, Once)>,
    happened: bool,
    /// Counts the deliveries, so that a held request knows its own.
    deliveries: u64,
    refuse: bool,
    closed: bool,
    connections: Vec<(TcpStream, TcpStream)>,
}

impl Proxy {
    /// Starts a proxy in front of a port on 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be opened.
    pub fn to(target: u16) -> Result<Self, ServerError> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(ServerError::io("open the proxy's port"))?;
        let port = listener.local_addr().map_err(ServerError::io("read the proxy's port"))?.port();
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, target, &accepting));
        Ok(Self { port, shared })
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets what happens in one direction, from now on.
    pub fn set(&self, direction: Direction, mode: Mode) {
        let mut state = self.shared.state();
        match direction {
            Direction::Requests => state.requests = mode,
            Direction::Replies => state.replies = mode,
        }
        self.shared.changed.notify_all();
    }

    /// Sets both directions.
    pub fn set_both(&self, mode: Mode) {
        self.set(Direction::Requests, mode);
        self.set(Direction::Replies, mode);
    }

    /// Arms a fault for the next request, instead of one that was armed before.
    pub fn once(&self, fault: Once) {
        self.once_after(0, fault);
    }

    /// Arms a fault for the request after the next `passed` ones, instead of one that was armed before. Requests are counted as they
    /// arrive here, in pieces, on all connections together; what a client sends by itself (to keep a connection alive, say) counts too.
    pub fn once_after(&self, passed: u32, fault: Once) {
        let mut state = self.shared.state();
        state.once = Some((passed, fault));
        state.happened = false;
    }

    /// Whether the fault that was armed last has happened: the witness.
    #[must_use]
    pub fn happened(&self) -> bool {
        self.shared.state().happened
    }

    /// Takes an armed fault back, passes everything again, takes new connections again, and delivers what was kept.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.once = None;
        state.refuse = false;
        (state.requests, state.replies) = (Mode::Pass, Mode::Pass);
        drop(state);
        self.deliver();
    }

    /// Delivers what [`Once::HoldRequest`] and [`Once::HoldReply`] kept.
    pub fn deliver(&self) {
        let mut state = self.shared.state();
        state.deliveries = state.deliveries.saturating_add(1);
        self.shared.changed.notify_all();
    }

    /// Refuses new connections, or takes them again.
    pub fn refuse(&self, refuse: bool) {
        self.shared.state().refuse = refuse;
    }

    /// Cuts every connection. After [`refuse`](Self::refuse) there is none left and none comes.
    pub fn cut(&self) {
        cut_all(&mut self.shared.state());
        self.shared.changed.notify_all();
    }

    /// How many pieces of requests and replies have arrived at the proxy: the witness that something was on its way.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.requests.load(Ordering::SeqCst), self.shared.replies.load(Ordering::SeqCst))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        cut_all(&mut state);
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the thread that accepts, so that it sees the end; a failure means that it has seen it.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn cut_all(state: &mut State) {
    for (client, server) in state.connections.drain(..) {
        cut(&client);
        cut(&server);
    }
}

/// A socket that is closed already is cut.
fn cut(socket: &TcpStream) {
    drop(socket.shutdown(Shutdown::Both));
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The armed fault, if it is this request's turn.
    fn fault(&self) -> Option<Once> {
        let mut state = self.state();
        match state.once.as_mut() {
            None => None,
            Some((0, fault)) => {
                let fault = *fault;
                state.once = None;
                state.happened = true;
                Some(fault)
            }
            Some((passed, _)) => {
                *passed = passed.saturating_sub(1);
                None
            }
        }
    }

    fn wait_for_delivery(&self, before: u64) {
        self.wait_while(|state| state.deliveries == before);
    }

    fn wait_while(&self, keep: impl Fn(&State) -> bool) {
        let state = self.state();
        drop(self.changed.wait_while(state, |state| !state.closed && keep(state)));
    }
}

fn accept(listener: &TcpListener, target: u16, shared: &Arc<Shared>) {
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
    let ends = (client.try_clone()?, server.try_clone()?);
    let mut state = shared.state();
    // It may have come meanwhile, and whoever cuts after refusing must not be left with a connection.
    if state.closed || state.refuse {
        return Ok(());
    }
    state.connections.push(ends);
    drop(state);
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
