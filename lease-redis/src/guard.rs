//! The guarded destination: data in this Redis, protected by tokens of any lease backend.

use crate::config::RedisConfig;
use crate::error::{CallError, foreign, unexpected};
use crate::keys::Keys;
use crate::link::{Link, Script};
use crate::purge::remove_all;
use crate::wire::{self, GuardScripts};
use lease_core::{
    Authority, Claims, FencingToken, GrantId, GuardError, GuardedDestination, LeaseError, Operation, Refusal,
    ResourceName, Stored,
};
use std::sync::Arc;

/// A guarded destination in one Redis server: a register per resource, and [`RedisGuard`] for the caller's own scripts. Clones share its connection.
///
/// Marks never expire. What makes them durable is the server's append-only file; see [`claims`](GuardedDestination::claims).
#[derive(Clone)]
pub struct RedisDestination {
    link: Link,
    keys: Keys,
    scripts: Arc<GuardScripts>,
}

impl std::fmt::Debug for RedisDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisDestination").field("link", &self.link).finish_non_exhaustive()
    }
}

impl RedisDestination {
    /// Connects to the server that `url` names, as [`RedisBackend::connect`](crate::RedisBackend::connect) does.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Nothing is left.
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        Self::connect_with(RedisConfig::parse(url)?).await
    }

    /// Connects as `config` says.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Nothing is left.
    pub async fn connect_with(config: RedisConfig) -> Result<Self, LeaseError> {
        Self::open(config, &[]).await
    }

    /// Like [`connect`](Self::connect), with each `(from, to)` replaced in the text of the scripts.
    ///
    /// # Errors
    /// Also when a `from` occurs nowhere.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn connect_edited(url: &str, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        Self::open(RedisConfig::parse(url)?, edits).await
    }

    async fn open(config: RedisConfig, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        if config.wait_replicas > 0 {
            let reason =
                "`wait_replicas` is for leases; a destination does not wait for replicas, so leave it out here";
            return Err(LeaseError::InvalidConfig { reason: reason.into() });
        }
        let destination = Self {
            link: Link::new(&config)?,
            keys: Keys::new(config.options.namespace.clone()),
            scripts: Arc::new(GuardScripts::new(edits)?),
        };
        destination.link.connect().await?;
        Ok(destination)
    }

    /// The guard of `token` for the caller's own script on `resource`'s data.
    #[must_use]
    pub fn guard_for(&self, resource: &ResourceName, token: &FencingToken) -> RedisGuard {
        RedisGuard {
            prelude: self.scripts.guard.clone(),
            keys: [self.keys.trusted(), self.keys.marks(resource)],
            token: token.clone(),
        }
    }

    /// Removes all marks, guarded registers and the trusted authority of this namespace: for tests and for decommissioning. Afterwards stale
    /// writers are no longer known. Needs the commands `SCAN` and `UNLINK`, which the least-privileged account lacks.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses; a part may be removed already.
    ///
    /// # Cancel safety
    /// A part may have been removed.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        for pattern in self.keys.guard_patterns() {
            remove_all(&self.link, &pattern).await?;
        }
        Ok(())
    }

    async fn guarded(
        &self,
        operation: Operation,
        script: &Script,
        resource: &ResourceName,
        token: &FencingToken,
        own: Option<(&str, &str)>,
    ) -> Result<(), GuardError> {
        let call = self.link.begin(operation);
        let guard = self.guard_for(resource, token);
        let (key, arg) = own.unzip();
        let (keys, args) = (guard.keys(key.as_slice()), guard.args(arg.as_slice()));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        match call.eval(script, &keys, &args).await {
            Ok(_) => Ok(()),
            Err(CallError::Server(reply)) if reply.code() == REFUSED => {
                Err(refused(&guard, &reply.to_string(), resource))
            }
            Err(error) => Err(error.into_lease(&call, Some(resource)).into()),
        }
    }
}

fn refused(guard: &RedisGuard, text: &str, resource: &ResourceName) -> GuardError {
    match guard.refusal(text) {
        Some(refusal) => GuardError::Refused { resource: resource.clone(), refusal },
        None => foreign(resource, "its mark cannot be read").into(),
    }
}

/// The guard for the caller's own script, on the caller's own connection to the same server and database.
///
/// The script admits the token, or answers with an error before the caller's part runs; check, mark and the caller's writes are one atomic step.
/// Redis does not roll back: when the caller's part fails half-way, its earlier writes and the mark stay.
///
/// ```no_run
/// # fn example(destination: &lease_redis::RedisDestination, resource: &lease_core::ResourceName, token: &lease_core::FencingToken) {
/// let guard = destination.guard_for(resource, token);
/// let script = guard.script("return redis.call('RPUSH', KEYS[1], ARGV[1])");
/// let (keys, args) = (guard.keys(&["invoices"]), guard.args(&["2026-12"]));
/// // EVAL script keys.len() keys… args… with any client; then:
/// # let error_text = "";
/// if let Some(refusal) = guard.refusal(error_text) {
///     // stop the work
/// # drop(refusal);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedisGuard {
    prelude: String,
    keys: [String; 2],
    token: FencingToken,
}

impl RedisGuard {
    /// `body` behind the guard. It finds its own keys from `KEYS[1]` on and its own arguments from `ARGV[1]` on.
    #[must_use]
    pub fn script(&self, body: &str) -> String {
        format!("{}{body}", self.prelude)
    }

    /// The keys to send, given the body's own. (In a cluster all of them would have to share a slot; clusters are not supported.)
    #[must_use]
    pub fn keys(&self, own: &[&str]) -> Vec<String> {
        self.keys.iter().map(String::as_str).chain(own.iter().copied()).map(str::to_owned).collect()
    }

    /// The arguments to send, given the body's own.
    #[must_use]
    pub fn args(&self, own: &[&str]) -> Vec<String> {
        let token =
            [self.token.authority().as_str().to_owned(), self.token.padded_value(), self.token.grant().to_hex()];
        token.into_iter().chain(own.iter().map(|arg| (*arg).to_owned())).collect()
    }

    /// The refusal that the text of an error from the server tells of; `None` when it is another error.
    #[must_use]
    pub fn refusal(&self, error_text: &str) -> Option<Refusal> {
        let (_, what) = error_text.split_once(REFUSED)?;
        let mut words =
            what.split(|c: char| !is_word(c)).filter(|word| word.contains(|c: char| c.is_ascii_alphanumeric()));
        match (words.next()?, words.next()) {
            ("stale", Some(mark)) => Some(Refusal::Stale { presented: self.token.value(), mark: mark.parse().ok()? }),
            ("conflict", _) => Some(Refusal::Conflict { value: self.token.value() }),
            ("authority", trusted) => Some(Refusal::UnknownAuthority {
                presented: self.token.authority().clone(),
                trusted: trusted.and_then(|text| Authority::parse(text).ok()),
            }),
            _ => None,
        }
    }
}

const REFUSED: &str = "LEASEHOLD_GUARD";

/// The characters of an authority and of the other words of a refusal; clients put their own punctuation around an error's text.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, ':' | '_' | '/' | '-')
}

#[async_trait::async_trait]
impl GuardedDestination for RedisDestination {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn claims(&self) -> Claims {
        self.link.settings().destination_claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        let call = self.link.begin(Operation::Adopt);
        let expected = expected_old.map_or("", Authority::as_str);
        let reply = call.eval(&self.scripts.adopt, &[&self.keys.trusted()], &[expected, new.as_str()]).await;
        let texts = reply.map_err(|e| e.into_lease(&call, None))?.into_texts();
        match texts.first().map(String::as_str) {
            Some("done") => Ok(()),
            Some("conflict") => {
                Err(GuardError::AdoptConflict { found: wire::authority(texts.get(1).map_or("", String::as_str))? })
            }
            _ => Err(unexpected(Operation::Adopt).into()),
        }
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.guarded(Operation::Seal, &self.scripts.seal, resource, token, None).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let key = self.keys.guarded(resource);
        self.guarded(Operation::GuardedWrite, &self.scripts.write, resource, token, Some((&key, value))).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        let call = self.link.begin(Operation::Read);
        let keys = [&*self.keys.trusted(), &self.keys.marks(resource), &self.keys.guarded(resource)];
        let reply = call.eval(&self.scripts.read, &keys, &[]).await;
        let texts = reply.map_err(|e| e.into_lease(&call, Some(resource)))?.into_texts();
        let (Some(kind), Some(mark)) = (texts.first(), texts.get(1)) else {
            return Err(unexpected(Operation::Read).into());
        };
        let value = (kind == "value").then(|| texts.get(2).cloned().unwrap_or_default());
        if mark.is_empty() {
            return Ok(Stored::new(value, None));
        }
        let mark = mark
            .split_once(' ')
            .and_then(|(value, grant)| Some((value.parse().ok()?, GrantId::from_hex(grant)?)))
            .ok_or_else(|| foreign(resource, "its mark cannot be read"))?;
        Ok(Stored::new(value, Some(mark)))
    }
}
