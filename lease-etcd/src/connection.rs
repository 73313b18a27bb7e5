//! The client in use: made in a task of its own, and given up when it does not answer.

use crate::EtcdConfig;
use crate::error::{self, Place};
use etcd_client::{Client, ConnectOptions};
use lease_core::{LeaseError, Operation};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// The way to a cluster.
pub(crate) struct Connection {
    config: EtcdConfig,
    place: Place,
    present: Mutex<Option<Arc<Connected>>>,
    making: tokio::sync::Mutex<Option<Making>>,
}

/// A client, and whether anything has come back through it.
pub(crate) struct Connected {
    pub(crate) client: Client,
    since: Instant,
    answered: AtomicBool,
}

/// A client that is being made. A task of its own: a caller whose time is up must not undo a log-in that is nearly done, or where
/// logging in takes longer than a call may, no call would ever succeed.
struct Making {
    since: Instant,
    task: JoinHandle<Result<Arc<Connected>, LeaseError>>,
}

impl Connected {
    /// Notes that an answer came.
    pub(crate) fn has_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl Connection {
    pub(crate) fn new(config: EtcdConfig, place: Place) -> Self {
        Self { config, place, present: Mutex::default(), making: tokio::sync::Mutex::default() }
    }

    pub(crate) fn config(&self) -> &EtcdConfig {
        &self.config
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The client in use, if there is one.
    pub(crate) fn present(&self) -> Option<Arc<Connected>> {
        self.lock().clone()
    }

    /// The next call gets another client than this one. Calls that fail together give up one, not each other's new ones.
    pub(crate) fn give_up(&self, client: &Arc<Connected>) {
        let mut present = self.lock();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, client)) {
            *present = None;
        }
    }

    /// Begins to wait for the answer to a call with this limit.
    pub(crate) fn waiting(&self, limit: Duration) -> Waiting<'_> {
        let a_while = limit.checked_div(10).unwrap_or_default();
        Waiting { connection: self, client: self.present(), since: Instant::now(), a_while, is_over: false }
    }

    /// After a time-out: nothing says that the connection still works, and the client would notice only much later. One that is young and
    /// has answered nothing yet may still be connecting, and a new one would have to begin anew.
    fn give_up_late(&self, client: &Arc<Connected>) {
        let is_connecting = !client.answered.load(Ordering::Relaxed) && client.since.elapsed() < self.patience();
        if !is_connecting {
            self.give_up(client);
        }
    }

    /// The client in use, or a new one.
    pub(crate) async fn client(self: &Arc<Self>) -> Result<Arc<Connected>, LeaseError> {
        if let Some(client) = self.present() {
            return Ok(client);
        }
        let mut making = self.making.lock().await;
        if let Some(client) = self.present() {
            return Ok(client);
        }
        // One that hangs is left to its own limit: the path may work again. If it gets there after all, its client is taken.
        let fresh = making.take().filter(|making| making.since.elapsed() < self.patience());
        let outcome = (&mut making.insert(fresh.unwrap_or_else(|| self.make())).task).await;
        *making = None;
        outcome.map_err(|_| error::no_reply(Operation::Connect))?
    }

    fn make(self: &Arc<Self>) -> Making {
        let connection = Arc::clone(self);
        let task = tokio::spawn(async move {
            let (config, place) = (&connection.config, &connection.place);
            let limit = config.options.connect_timeout;
            let connecting = Client::connect(config.urls(), Some(client_options(config)?));
            let late = || LeaseError::Unreachable {
                store: place.address.clone(),
                reason: format!("no connection within {limit:?}"),
                source: None,
            };
            let made = timeout(limit, connecting).await.map_err(|_| late())?;
            let client = made.map_err(|e| error::of_call(Operation::Connect, place, e))?;
            let client = Arc::new(Connected { client, since: Instant::now(), answered: AtomicBool::new(false) });
            // Another one may have been made beside this one, and be in use already.
            Ok(Arc::clone(connection.lock().get_or_insert(client)))
        });
        Making { since: Instant::now(), task }
    }

    /// How long a client that does not answer is waited for, before another one is made.
    fn patience(&self) -> Duration {
        self.config.options.connect_timeout.checked_div(4).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Connected>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits for its answer.
pub(crate) struct Waiting<'a> {
    connection: &'a Connection,
    client: Option<Arc<Connected>>,
    since: Instant,
    a_while: Duration,
    is_over: bool,
}

impl Waiting<'_> {
    /// The call has ended: by its time-out, or by an answer.
    pub(crate) fn ends(mut self, by_time_out: bool) {
        self.is_over = true;
        if by_time_out {
            self.give_up();
        }
    }

    fn give_up(&self) {
        if let Some(client) = self.client.clone().or_else(|| self.connection.present()) {
            self.connection.give_up_late(&client);
        }
    }
}

impl Drop for Waiting<'_> {
    /// Its caller has given up, as a guard does whose TTL is short. After a while that is a reason to try another connection: this one may be dead
    /// without anybody saying so.
    fn drop(&mut self) {
        if !self.is_over && self.since.elapsed() >= self.a_while {
            self.give_up();
        }
    }
}

#[cfg_attr(not(feature = "tls-rustls"), expect(clippy::unnecessary_wraps, reason = "reading TLS files can fail"))]
fn client_options(config: &EtcdConfig) -> Result<ConnectOptions, LeaseError> {
    let options = &config.options;
    // No time limit here: the caller's covers all that a call does.
    let mut client = ConnectOptions::new()
        .with_connect_timeout(options.connect_timeout)
        .with_require_leader(true)
        // Finds a dead peer when it is asked; etcd closes connections that ping more often than each 5 s, or while idle.
        .with_keep_alive(Duration::from_secs(10), options.call_timeout)
        .with_keep_alive_while_idle(false)
        .with_tcp_keepalive(Duration::from_secs(10));
    if let Some((user, password)) = config.login() {
        // A request that was refused for its outdated login is sent again after a new one: it has not run.
        client = client.with_user(user, password).with_auto_token_refresh(true);
    }
    #[cfg(feature = "tls-rustls")]
    if let Some(tls) = config.tls()? {
        client = client.with_tls(tls);
    }
    Ok(client)
}
