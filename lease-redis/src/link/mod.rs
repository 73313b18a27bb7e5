//! The seam between this backend and a client crate: one connection, one request, and what became of it.
//!
//! Connections are opened anew here, not by the client crate, so that both clients behave alike: nothing is ever sent twice, the
//! server's settings are read again with each new connection, and a connection that let a request time out is not used again.

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
use crate::error::{CallError, lost};
use lease_core::{LeaseError, Operation};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Mutex;
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

/// The way to one server: at most one connection at a time, opened when it is needed.
#[derive(Clone, Debug)]
pub(crate) struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    opener: Box<dyn Opener>,
    address: String,
    call_timeout: Duration,
    connect_timeout: Duration,
    present: RwLock<Present>,
    /// Held by whoever opens a connection, so that a thousand waiting calls open one.
    opening: RwLock<Arc<Mutex<()>>>,
}

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
            call_timeout: config.options.call_timeout,
            connect_timeout: config.options.connect_timeout,
            present: RwLock::default(),
            opening: RwLock::default(),
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
        Call { link: self, operation, end: Instant::now().checked_add(self.0.call_timeout) }
    }

    async fn wire(&self) -> Result<Arc<dyn Wire>, LeaseError> {
        if let Some(wire) = self.0.usable() {
            return Ok(wire);
        }
        let turn = self.0.opening().lock_owned().await;
        if let Some(wire) = self.0.usable() {
            return Ok(wire);
        }
        // A task of its own: a caller whose time is up must not undo a connection that is nearly there.
        let shared = Arc::clone(&self.0);
        let opened = tokio::spawn(async move {
            let opened = shared.open().await;
            drop(turn);
            opened
        });
        opened.await.unwrap_or_else(|e| Err(unreachable(&self.0.address, e.to_string(), None)))
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

    fn opening(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.opening.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets the next call open a connection beside one that was too slow for a whole call: it may hang in a path that works again.
    fn overtake(&self, slow: &Arc<Mutex<()>>) {
        let mut opening = self.opening.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&opening, slow) {
            *opening = Arc::default();
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
            let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
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
        let info = self.ask(wire, &["INFO"]).await?;
        let fsync = self.ask(wire, &["CONFIG", "GET", "appendfsync"]).await?;
        let fsync = fsync.and_then(|reply| reply.into_texts().into_iter().nth(1));
        let info = info.and_then(|reply| reply.into_texts().into_iter().next());
        Ok(Settings::read(info.as_deref(), fsync))
    }

    async fn ask(&self, wire: &dyn Wire, words: &[&str]) -> Result<Option<Reply>, LeaseError> {
        match wire.request(words, self.connect_timeout).await {
            Ok(reply) => Ok(Some(reply)),
            Err(LinkError::Server(reply)) if reply.is_login() => {
                Err(login_refused(&self.address, reply.to_string(), None))
            }
            Err(LinkError::Server(_)) => Ok(None),
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
}

impl Call<'_> {
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
        let opening = shared.opening();
        let Ok(wire) = timeout_at(end, self.link.wire()).await else {
            shared.overtake(&opening);
            return Err(CallError::Failed(LeaseError::Timeout {
                operation: self.operation,
                limit: shared.call_timeout,
                effect: lease_core::Effect::None,
            }));
        };
        let wire = wire.map_err(CallError::Failed)?;
        let left = end.saturating_duration_since(Instant::now());
        match wire.request(words, left).await {
            Ok(reply) => Ok(reply),
            Err(LinkError::Server(reply)) => {
                // A primary that became a replica: a new connection may lead to the new primary.
                if reply.code() == "READONLY" {
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
