//! A TCP proxy between a client and a server, which can lose, hold and cut what passes, and counts it.

mod carry;

use crate::ServerError;
use crate::process::owns_connection;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// The processes whose connections are taken; `None` for all.
    admitted: Option<Vec<u32>>,
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
        std::thread::spawn(move || carry::accept(&listener, target, &accepting));
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

    /// Whether it swallows anything now.
    #[must_use]
    pub fn swallows(&self) -> bool {
        let state = self.shared.state();
        [state.requests, state.replies].contains(&Mode::Hole)
    }

    /// Takes an armed fault back, passes everything again, takes new connections again, and delivers what was kept.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.once = None;
        (state.refuse, state.admitted) = (false, None);
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

    /// Takes connections from these processes of this machine only, and cuts those of others.
    pub fn only_from(&self, processes: Vec<u32>) {
        let mut state = self.shared.state();
        state.admitted = Some(processes);
        let all = std::mem::take(&mut state.connections);
        let (kept, other) = all.into_iter().partition(|(client, _)| admits(state.admitted.as_ref(), client));
        state.connections = kept;
        cut_all(other);
    }

    /// Cuts every connection. After [`refuse`](Self::refuse) there is none left and none comes.
    pub fn cut(&self) {
        cut_all(std::mem::take(&mut self.shared.state().connections));
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
        cut_all(std::mem::take(&mut state.connections));
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the thread that accepts, so that it sees the end; a failure means that it has seen it.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn cut_all(connections: Vec<(TcpStream, TcpStream)>) {
    for (client, server) in connections {
        cut(&client);
        cut(&server);
    }
}

fn admits(processes: Option<&Vec<u32>>, client: &TcpStream) -> bool {
    let Some(processes) = processes else { return true };
    let (Ok(from), Ok(to)) = (client.peer_addr(), client.local_addr()) else { return false };
    processes.iter().any(|pid| owns_connection(*pid, from.port(), to.port()))
}

/// A socket that is closed already is cut.
fn cut(socket: &TcpStream) {
    drop(socket.shutdown(Shutdown::Both));
}

impl Shared {
    /// Takes a connection up, unless it is one that is not taken.
    fn admit(&self, client: TcpStream, server: TcpStream) -> bool {
        let mut state = self.state();
        // All under one lock: whoever cuts after refusing must not be left with a connection that came meanwhile.
        let admitted = !state.closed && !state.refuse && admits(state.admitted.as_ref(), &client);
        if admitted {
            state.connections.push((client, server));
        }
        admitted
    }

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
