//! Waiting for replicas: a grant counts only once as many of them as the URL asks for have it.
//!
//! `WAIT` speaks of what its own connection has written, so it follows the script on the very same one. It also blocks whatever else is sent
//! there, so those connections are apart from the one that renews and releases: each is used by one acquire at a time, and kept for the next one.

use crate::backend::RedisBackend;
use crate::config::RedisConfig;
use crate::error::unexpected;
use crate::link::{Call, Link};
use lease_core::{Attempt, Effect, Held, Lease, LeaseError, Operation};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many acquires wait at the same time, each on a connection of its own; more of them wait for a place.
const AT_ONCE: usize = 16;

/// The way to a grant that replicas confirm.
pub(crate) struct Replicas {
    wanted: u32,
    config: RedisConfig,
    places: Semaphore,
    idle: Mutex<Vec<Link>>,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Replicas {
    /// `None` when nobody is to be waited for.
    pub(crate) fn new(config: &RedisConfig) -> Option<Self> {
        (config.wait_replicas > 0).then(|| Self {
            wanted: config.wait_replicas,
            config: config.clone(),
            places: Semaphore::new(AT_ONCE),
            idle: Mutex::default(),
        })
    }

    /// Makes sure that the account may wait.
    pub(crate) async fn check_privilege(&self, call: &Call<'_>) -> Result<(), LeaseError> {
        // For no replica at all it answers at once.
        call.command(&["WAIT", "0", "1"]).await.map(drop).map_err(|e| e.into_lease(call, None))
    }

    /// As [`RedisBackend::grant`], for a grant that enough replicas have.
    ///
    /// # Errors
    /// [`LeaseError::Unconfirmed`] when they have it not in time: then it is given up.
    ///
    /// # Cancel safety
    /// The grant may have been made. Its connection is closed.
    pub(crate) async fn grant(
        &self,
        backend: &RedisBackend,
        attempt: &Attempt,
        granted_ttl: Duration,
    ) -> Result<Result<Lease, Held>, LeaseError> {
        let (operation, limit) = (Operation::Acquire, self.config.options.call_timeout);
        let place = timeout(limit, self.places.acquire()).await;
        let Ok(Ok(_place)) = place else {
            return Err(LeaseError::Timeout { operation, limit, effect: Effect::None });
        };
        let idle = self.idle().pop();
        let link = match idle {
            Some(link) => link,
            None => Link::new(&self.config)?,
        };
        let answer = self.grant_on(&link, backend, attempt, granted_ttl).await;
        self.idle().push(link);
        answer
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn grant_on(
        &self,
        link: &Link,
        backend: &RedisBackend,
        attempt: &Attempt,
        granted_ttl: Duration,
    ) -> Result<Result<Lease, Held>, LeaseError> {
        let call = link.begin(Operation::Acquire).on_one_connection().await?;
        let lease = match backend.grant(&call, attempt, granted_ttl).await? {
            Ok(lease) => lease,
            held => return Ok(held),
        };
        let error = match self.confirmed(&call, &backend.scripts.wait).await {
            Ok(confirmed) if confirmed >= self.wanted => return Ok(Ok(lease.with_confirmed_by(confirmed))),
            Ok(confirmed) => {
                LeaseError::Unconfirmed { resource: attempt.resource().clone(), confirmed, wanted: self.wanted }
            }
            // Nobody knows how many have it. The same attempt finds the grant, and asks again.
            Err(error) if error.effect() == Effect::Unknown => return Err(error),
            Err(error) => error,
        };
        // One that its caller has already was confirmed then, and is in use.
        if !attempt.is_accepted() {
            // Where the error says that the effect is unknown, a failure to give the grant up adds nothing to it.
            if let Err(left) = lease_core::LeaseBackend::abandon(backend, attempt).await
                && error.effect() == Effect::None
            {
                return Err(left);
            }
        }
        Err(error)
    }

    /// How many replicas have what this call's connection has written: at once when there are enough, else when half of what is left of the
    /// call's time has passed. The other half is for the answer.
    async fn confirmed(&self, call: &Call<'_>, command: &str) -> Result<u32, LeaseError> {
        // Zero would mean for ever.
        let limit = call.remaining().checked_div(2).unwrap_or_default().max(Duration::from_millis(1));
        let command =
            command.replace("{replicas}", &self.wanted.to_string()).replace("{ms}", &crate::backend::millis(limit));
        let words: Vec<&str> = command.split(' ').collect();
        let reply = call.command(&words).await.map_err(|e| e.into_lease(call, None))?;
        let count = reply.into_texts().first().and_then(|text| text.parse().ok());
        count.ok_or_else(|| unexpected(call.operation()))
    }
}
