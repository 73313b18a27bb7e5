//! Leases in Redis: each operation is one script, so one request.

use crate::claims;
use crate::config::RedisConfig;
use crate::error::{CallError, foreign, unexpected};
use crate::keys::Keys;
use crate::link::{Call, Link, Script};
use crate::purge::remove_all;
use crate::replicas::Replicas;
use crate::wire::{LeaseScripts, Seen};
use lease_core::{
    Acquisition, Attempt, BootInstant, Claims, CleanUp, ConnectOptions, Description, Effect, Fence, ForceRelease,
    Forced, GrantId, Inspection, Lease, LeaseBackend, LeaseError, Limits, Listed, LossReason, NamePage, Operation,
    Release, Renewal, ResourceName, SharedClock, accept_grant,
};
use std::sync::Arc;
use std::time::Duration;

/// A lease backend on one Redis server. Clones share its connection.
///
/// Dropping the last clone closes the connection; leases that are held stay until their TTL ends.
#[derive(Clone)]
pub struct RedisBackend {
    pub(crate) link: Link,
    pub(crate) keys: Keys,
    pub(crate) scripts: Arc<LeaseScripts>,
    pub(crate) replicas: Option<Arc<Replicas>>,
    pub(crate) options: ConnectOptions,
    name: &'static str,
    address: String,
}

impl std::fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisBackend")
            .field("name", &self.name)
            .field("link", &self.link)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl RedisBackend {
    /// Connects to the server that `url` names, such as `redis://USER:PASSWORD@HOST:6379/0`; see the crate's documentation for the rest.
    ///
    /// # Errors
    /// When the URL is wrong, the server is unreachable, refuses the login, is a replica or a cluster node, or when the account
    /// lacks a privilege. Each error says what to do.
    ///
    /// # Cancel safety
    /// Nothing is left but an unused connection, which is closed.
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        Self::connect_with(RedisConfig::parse(url)?).await
    }

    /// Connects as `config` says.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
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
        let backend = Self {
            link: Link::new(&config)?,
            keys: Keys::new(config.options.namespace.clone()),
            scripts: Arc::new(LeaseScripts::new(edits)?),
            replicas: Replicas::new(&config).map(Arc::new),
            name: config.client.backend_name(),
            address: config.address,
            options: config.options,
        };
        backend.link.connect().await?;
        let call = backend.link.begin(Operation::Connect);
        backend.make_incarnation(&call).await?;
        if let Some(replicas) = &backend.replicas {
            replicas.check_privilege(&call).await?;
        }
        Ok(backend)
    }

    /// Removes all lease records, tombstones, fenced registers and the authority of this namespace: for tests and for decommissioning. Tokens that
    /// are minted later have a new authority. Needs the commands `SCAN` and `UNLINK`, which the least-privileged account lacks.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses; a part may be removed already.
    ///
    /// # Cancel safety
    /// A part may have been removed.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        for pattern in self.keys.lease_patterns() {
            remove_all(&self.link, &pattern).await?;
        }
        Ok(())
    }

    fn now(&self) -> BootInstant {
        self.options.clock.now()
    }

    /// How long a record is kept after its last use, in milliseconds.
    pub(crate) fn keep_ms(&self) -> String {
        let most = lease_core::Ttl::MAX;
        millis(self.options.idle_retention.clamp(Duration::from_millis(1), most))
    }

    /// Begins the history of this namespace, if it has none. Each try draws a new candidate, so that a history which was wiped out never comes
    /// back under its old name.
    pub(crate) async fn make_incarnation(&self, call: &Call<'_>) -> Result<(), LeaseError> {
        let candidate = GrantId::random()?.to_hex();
        let key = self.keys.incarnation();
        let reply =
            call.eval(&self.scripts.incarnation, &[&key], &[&candidate]).await.map_err(|e| e.into_lease(call, None))?;
        match reply.into_texts().as_slice() {
            [found] if GrantId::from_hex(found).is_some() => Ok(()),
            _ => Err(bad_incarnation(&key)),
        }
    }

    /// Runs a script on a lease record that answers with one word.
    async fn change(
        &self,
        operation: Operation,
        resource: &ResourceName,
        script: &Script,
        keys: &[&str],
        args: &[&str],
    ) -> Result<String, LeaseError> {
        let texts = self.answer(operation, resource, script, keys, args).await?;
        texts.into_iter().next().ok_or_else(|| unexpected(operation))
    }

    /// Runs a script on a lease record.
    pub(crate) async fn answer(
        &self,
        operation: Operation,
        resource: &ResourceName,
        script: &Script,
        keys: &[&str],
        args: &[&str],
    ) -> Result<Vec<String>, LeaseError> {
        let call = self.link.begin(operation);
        let reply = call.eval(script, keys, args).await;
        let texts = reply.map_err(|e| e.into_lease(&call, Some(resource)))?.into_texts();
        if texts.first().is_some_and(|word| word == "foreign") {
            return Err(foreign(resource, NO_RECORD));
        }
        Ok(texts)
    }
}

pub(crate) const NO_RECORD: &str = "it is no lease record of this version";

pub(crate) fn bad_incarnation(key: &str) -> LeaseError {
    LeaseError::NotSetUp {
        reason: format!("the key {key} does not hold an incarnation of this namespace"),
        advice: "choose another namespace, or remove the key".into(),
        source: None,
    }
}

pub(crate) fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// The value that the lease's record has; no record has that of a lease without a token, which this backend never makes.
pub(crate) fn value_of(lease: &Lease) -> String {
    lease.token().map(|token| token.value().to_string()).unwrap_or_default()
}

/// How long a spent attempt is remembered: as long as a request of it could still be on its way and count.
fn tombstone_ms(granted_ttl: Duration) -> String {
    millis(granted_ttl.saturating_mul(2).max(LEAST_TOMBSTONE))
}

/// A tombstone is kept for as long as this, where twice the TTL is less.
pub(crate) const LEAST_TOMBSTONE: Duration = Duration::from_secs(10);

fn loss(word: &str) -> Option<LossReason> {
    Some(match word {
        "gone" => LossReason::Gone,
        "superseded" => LossReason::Superseded,
        "released" => LossReason::Released,
        "forced" => LossReason::Forced,
        "expired" => LossReason::Expired,
        _ => return None,
    })
}

#[async_trait::async_trait]
impl LeaseBackend for RedisBackend {
    fn description(&self) -> Description {
        let version = self.link.settings().version.unwrap_or_else(|| "unknown".into());
        Description::new(self.name, version, self.address.clone())
    }

    fn claims(&self) -> Claims {
        self.link.settings().backend_claims()
    }

    fn limits(&self) -> Limits {
        claims::limits(self.options.call_timeout)
    }

    fn clock(&self) -> SharedClock {
        self.options.clock.clone()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let granted_ttl = self.limits().granted_ttl(attempt.ttl())?;
        self.limits().check_floor(attempt)?;
        let granted = match &self.replicas {
            None => self.grant(&self.link.begin(Operation::Acquire), attempt, granted_ttl).await?,
            Some(replicas) => replicas.grant(self, attempt, granted_ttl).await?,
        };
        match granted {
            Ok(lease) => accept_grant(self, attempt, lease).await,
            Err(held) => Ok(Acquisition::Held(held)),
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let sent = self.now();
        let (owner, ttl) = (lease.owner().reveal(), millis(lease.granted_ttl()));
        let word = self
            .change(
                Operation::Renew,
                lease.resource(),
                &self.scripts.renew,
                &[&self.keys.lease(lease.resource())],
                &[&owner, &self.keep_ms(), &ttl, &value_of(lease)],
            )
            .await?;
        match (word.as_str(), loss(&word)) {
            ("done", _) => Ok(Renewal::Renewed(lease.renewed(sent))),
            (_, Some(reason)) => Ok(Renewal::Lost(reason)),
            _ => Err(unexpected(Operation::Renew)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let release = lease.begin_release();
        let spent_ms = if release.needs_tombstone() { tombstone_ms(lease.granted_ttl()) } else { "0".into() };
        let resource = lease.resource();
        let answer = self
            .change(
                Operation::Release,
                resource,
                &self.scripts.release,
                &[&self.keys.lease(resource), &self.keys.spent(resource, lease.owner())],
                &[&lease.owner().reveal(), &self.keep_ms(), &spent_ms],
            )
            .await;
        match answer {
            Ok(word) => match (word.as_str(), loss(&word)) {
                ("done", _) | (_, Some(LossReason::Released)) => Ok(release.answered(true)),
                (_, Some(_)) => Ok(release.answered(false)),
                _ => Err(unexpected(Operation::Release)),
            },
            Err(error) => {
                if error.effect() == Effect::None {
                    release.not_sent();
                }
                Err(error)
            }
        }
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        attempt.end();
        let granted_ttl = self.limits().granted_ttl(attempt.ttl())?;
        let resource = attempt.resource();
        self.change(
            Operation::Abandon,
            resource,
            &self.scripts.abandon,
            &[&self.keys.lease(resource), &self.keys.spent(resource, attempt.owner())],
            &[&attempt.owner().reveal(), &self.keep_ms(), &tombstone_ms(granted_ttl)],
        )
        .await
        .map(drop)
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        order.carry_out(self.force(order)).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let call = self.link.begin(Operation::Inspect);
        let reply = call.eval(&self.scripts.inspect, &[&self.keys.lease(resource)], &[]).await;
        let texts = reply.map_err(|e: CallError| e.into_lease(&call, Some(resource)))?.into_texts();
        match Seen::decode(&texts).ok_or_else(|| unexpected(Operation::Inspect))? {
            Seen::Foreign => Err(foreign(resource, NO_RECORD)),
            Seen::Free(last_value) => Ok(Inspection::free(last_value)),
            Seen::Held { value, remaining_us, granted_ago_us, renewed_ago_us, holder } => {
                let ago = |us| Some(Duration::from_micros(us));
                let remaining = Duration::from_micros(remaining_us);
                let listed = Listed::new(resource.clone(), holder, Some(value), remaining);
                Ok(Inspection::held(listed.with_times(ago(granted_ago_us), ago(renewed_ago_us))))
            }
        }
    }

    async fn list(&self, _prefix: &str, _after: Option<&ResourceName>, _limit: u32) -> Result<NamePage, LeaseError> {
        Err(LeaseError::Unsupported {
            operation: Operation::List,
            backend: self.name,
            reason: "Redis would have to scan its whole key space; keep a list of your resources, and inspect each",
        })
    }

    /// Redis removes idle records by itself, so there is nothing to do.
    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        Ok(CleanUp::removed(0))
    }

    fn fence(&self) -> Fence<'_> {
        Fence::LiveOwner(self)
    }
}
