//! The seam between this backend and a client crate: one connection, one request, and what became of it.
//!
//! Connections are opened anew here, not by the client crate, so that both clients behave alike: nothing is ever sent twice, the
//! server's settings are read again with each new connection, and a connection that let a request time out, or its caller give up after a
//! while, is not used again.

#[cfg(feature = "client-fred")]
mod fred;
#[cfg(feature = "client-redis")]
mod redis_rs;
mod reply;
mod script;
#[cfg(feature = "tls-rustls")]
mod tls;

pub(crate) use reply::{LinkError, Reply, ServerReply};
pub(crate) use script::Script;

use crate::claims::Settings;
use crate::config::RedisConfig;
use crate::error::{CallError, lost, no_database, share};
use lease_core::{LeaseError, Operation};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// One connection of a client crate.
#[async_trait::async_trait]
pub(crate) trait Wire: std::fmt::Debug + Send + Sync {
    /// Sends one command and waits for its answer until `limit` has passed. Never sends it twice.
    async fn request(&self, words: &[&str], limit: Duration) -> Result<Reply, LinkError>;

    /// Whether the connection is known to be of no use any more.
    fn is_closed(&self) -> bool;
}

/// Makes connections.
#[async_trait::async_trait]
pub(crate) trait Opener: std::fmt::Debug + Send + Sync {
    async fn open(&self) -> Result<Arc<dyn Wire>, LeaseError>;
}

/// The way to one server: one connection, opened when it is needed.
#[derive(Clone, Debug)]
pub(crate) struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    opener: Box<dyn Opener>,
    address: String,
    database: u8,
    call_timeout: Duration,
    connect_timeout: Duration,
    present: RwLock<Present>,
    /// What calls wait for: a thousand of them open one connection, and share its failure.
    opening: Mutex<Option<Opening>>,
}

/// A connection that is being opened.
#[derive(Debug)]
struct Opening {
    since: Instant,
    outcome: watch::Receiver<Option<Outcome>>,
}

type Outcome = Result<Arc<dyn Wire>, Arc<LeaseError>>;

#[derive(Debug, Default)]
struct Present {
    wire: Option<Arc<dyn Wire>>,
    settings: Settings,
}

impl Link {
    /// A link for `config`; nothing is sent yet.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, LeaseError> {
        #[cfg(feature = "tls-rustls")]
        tls::ensure_provider(config);
        Ok(Self(Arc::new(Shared {
            opener: opener(config)?,
            address: config.address.clone(),
            database: config.database,
            call_timeout: config.options.call_timeout,
            connect_timeout: config.options.connect_timeout,
            present: RwLock::default(),
            opening: Mutex::default(),
        })))
    }

    /// Opens the connection, if there is none.
    pub(crate) async fn connect(&self) -> Result<(), LeaseError> {
        self.wire().await.map(drop)
    }

    /// The server's settings, as they were read with the latest connection.
    pub(crate) fn settings(&self) -> Settings {
        self.0.present().settings.clone()
    }

    /// Begins an operation: its requests share one time limit.
    pub(crate) fn begin(&self, operation: Operation) -> Call<'_> {
        Call { link: self, operation, end: Instant::now().checked_add(self.0.call_timeout), pinned: None }
    }

    async fn wire(&self) -> Result<Arc<dyn Wire>, LeaseError> {
        let mut outcome = match self.0.usable() {
            Some(wire) => return Ok(wire),
            None => self.outcome(),
        };
        // A task that ends without an outcome has panicked, or ended with its runtime.
        let outcome = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        match outcome {
            Some(Ok(wire)) => Ok(wire),
            Some(Err(error)) => Err(share(&error)),
            None => Err(unreachable(&self.0.address, "the task that opened a connection has ended".into(), None)),
        }
    }

    /// What comes of the connection that is being opened; if there is none, or if it hangs, of a new one.
    fn outcome(&self) -> watch::Receiver<Option<Outcome>> {
        let mut opening = self.0.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wire) = self.0.usable() {
            return watch::channel(Some(Ok(wire))).1;
        }
        // Beside one that hangs: the path may work again. A quarter of its time, so that they do not pile up either.
        let hangs = self.0.connect_timeout.checked_div(4).unwrap_or_default();
        if let Some(Opening { since, outcome }) = &*opening
            && since.elapsed() < hangs
            && outcome.has_changed().is_ok()
        {
            return outcome.clone();
        }
        let (sender, outcome) = watch::channel(None);
        *opening = Some(Opening { since: Instant::now(), outcome: outcome.clone() });
        // A task of its own: a caller whose time is up must not undo a connection that is nearly there.
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            let outcome = shared.open().await.map_err(Arc::new);
            shared.opened(&sender);
            sender.send_replace(Some(outcome));
        });
        outcome
    }
}

fn opener(config: &RedisConfig) -> Result<Box<dyn Opener>, LeaseError> {
    match config.client {
        #[cfg(feature = "client-redis")]
        crate::config::Client::RedisRs => Ok(Box::new(redis_rs::RedisRs::new(config)?)),
        #[cfg(feature = "client-fred")]
        crate::config::Client::Fred => Ok(Box::new(fred::Fred::new(config)?)),
        // `RedisConfig::parse` has named the feature already.
        #[cfg(not(all(feature = "client-redis", feature = "client-fred")))]
        other => Err(LeaseError::InvalidConfig { reason: format!("the client {other:?} is compiled out") }),
    }
}

impl Shared {
    fn present(&self) -> std::sync::RwLockReadGuard<'_, Present> {
        self.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn usable(&self) -> Option<Arc<dyn Wire>> {
        self.present().wire.clone().filter(|wire| !wire.is_closed())
    }

    /// Forgets an opening: what comes of it is for those who wait for it already.
    fn opened(&self, sender: &watch::Sender<Option<Outcome>>) {
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if opening.as_ref().is_some_and(|o| o.outcome.same_channel(&sender.subscribe())) {
            *opening = None;
        }
    }

    /// Keeps `wire` from being used for further requests; those under way end by themselves.
    fn retire(&self, wire: &Arc<dyn Wire>) {
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        if present.wire.as_ref().is_some_and(|w| Arc::ptr_eq(w, wire)) {
            present.wire = None;
        }
    }

    async fn open(&self) -> Result<Arc<dyn Wire>, LeaseError> {
        let opening = async {
            let wire = self.opener.open().await?;
            let settings = self.read_settings(&*wire).await?;
            settings.check_usable()?;
            self.select(&*wire).await?;
            let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
            // One that was opened beside this one may be in use already.
            if let Some(wire) = present.wire.as_ref().filter(|wire| !wire.is_closed()) {
                return Ok(Arc::clone(wire));
            }
            *present = Present { wire: Some(Arc::clone(&wire)), settings };
            Ok(wire)
        };
        let late = || {
            let reason = format!("no connection within {:?}", self.connect_timeout);
            unreachable(&self.address, reason, None)
        };
        timeout(self.connect_timeout, opening).await.unwrap_or_else(|_| Err(late()))
    }

    /// An account that may not ask gets no answer, and the claims that depend on it are not made.
    async fn read_settings(&self, wire: &dyn Wire) -> Result<Settings, LeaseError> {
        let info = self.ask(wire, &["INFO"]).await?.ok();
        let fsync = self.ask(wire, &["CONFIG", "GET", "*appendfsync*"]).await?.ok();
        let info = info.and_then(|reply| reply.into_texts().into_iter().next());
        Ok(Settings::read(info.as_deref(), &fsync.map(Reply::into_texts).unwrap_or_default()))
    }

    /// A new connection has database 0.
    async fn select(&self, wire: &dyn Wire) -> Result<(), LeaseError> {
        if self.database == 0 {
            return Ok(());
        }
        let number = self.database.to_string();
        self.ask(wire, &["SELECT", &number]).await?.map(drop).map_err(|reply| no_database(&number, reply))
    }

    async fn ask(&self, wire: &dyn Wire, words: &[&str]) -> Result<Result<Reply, ServerReply>, LeaseError> {
        match wire.request(words, self.connect_timeout).await {
            Ok(reply) => Ok(Ok(reply)),
            Err(LinkError::Server(reply)) if reply.is_login() => {
                Err(login_refused(&self.address, reply.to_string(), None))
            }
            Err(LinkError::Server(reply)) => Ok(Err(reply)),
            Err(LinkError::TimedOut) => Err(unreachable(&self.address, "it accepts, and does not answer".into(), None)),
            Err(LinkError::Broken { reason, source }) => Err(unreachable(&self.address, reason, source)),
        }
    }
}

pub(crate) fn unreachable(store: &str, reason: String, source: Option<lease_core::Source>) -> LeaseError {
    LeaseError::Unreachable { store: store.into(), reason, source }
}

pub(crate) fn login_refused(store: &str, reason: String, source: Option<lease_core::Source>) -> LeaseError {
    LeaseError::LoginRefused { store: store.into(), reason, source }
}

/// One operation on its way.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    link: &'a Link,
    operation: Operation,
    end: Option<Instant>,
    pinned: Option<Arc<dyn Wire>>,
}

impl Call<'_> {
    /// The same with all its requests on one connection: when that breaks, they fail.
    pub(crate) async fn on_one_connection(mut self) -> Result<Self, LeaseError> {
        self.pinned = Some(self.wire().await?);
        Ok(self)
    }

    /// What is left of its time.
    pub(crate) fn remaining(&self) -> Duration {
        self.end.unwrap_or_else(Instant::now).saturating_duration_since(Instant::now())
    }

    async fn wire(&self) -> Result<Arc<dyn Wire>, LeaseError> {
        if let Some(wire) = &self.pinned {
            return Ok(Arc::clone(wire));
        }
        let late = |_| LeaseError::Timeout {
            operation: self.operation,
            limit: self.link.0.call_timeout,
            effect: lease_core::Effect::None,
        };
        timeout_at(self.end.unwrap_or_else(Instant::now), self.link.wire()).await.map_err(late)?
    }

    /// Runs a script by its hash; a server that does not know it (restarted, flushed) has not run it, so its text is sent then.
    pub(crate) async fn eval(&self, script: &Script, keys: &[&str], args: &[&str]) -> Result<Reply, CallError> {
        let count = keys.len().to_string();
        let mut words = Vec::with_capacity(keys.len().saturating_add(args.len()).saturating_add(3));
        words.extend(["EVALSHA", script.sha(), &count]);
        words.extend(keys);
        words.extend(args);
        match self.command(&words).await {
            Err(CallError::Server(reply)) if reply.code() == "NOSCRIPT" => {
                words.splice(..2, ["EVAL", script.text()]);
                self.command(&words).await
            }
            answer => answer,
        }
    }

    /// Sends one command, once.
    pub(crate) async fn command(&self, words: &[&str]) -> Result<Reply, CallError> {
        let shared = &self.link.0;
        let end = self.end.unwrap_or_else(Instant::now);
        let wire = self.wire().await.map_err(CallError::Failed)?;
        let mut waiting = Waiting { shared, wire: &wire, since: Instant::now(), is_over: false };
        let answer = wire.request(words, end.saturating_duration_since(waiting.since)).await;
        waiting.is_over = true;
        match answer {
            Ok(reply) => Ok(reply),
            Err(LinkError::Server(reply)) => {
                // A primary that became a replica: a new connection may lead to the new primary.
                if reply.says("READONLY") {
                    shared.retire(&wire);
                }
                Err(CallError::Server(reply))
            }
            Err(error) => {
                shared.retire(&wire);
                Err(CallError::Failed(lost(error, self.operation, shared.call_timeout)))
            }
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.link.0.address
    }

    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }
}

/// A request that waits for its answer.
struct Waiting<'a> {
    shared: &'a Shared,
    wire: &'a Arc<dyn Wire>,
    since: Instant,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    /// Its caller has given up, as a guard does whose TTL is short. After a while that is a reason to try another connection: this one may be dead
    /// without anybody saying so.
    fn drop(&mut self) {
        let a_while = self.shared.call_timeout.checked_div(10).unwrap_or_default();
        if !self.is_over && self.since.elapsed() >= a_while {
            self.shared.retire(self.wire);
        }
    }
}
