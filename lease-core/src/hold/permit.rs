//! Permission to begin protected work.

use super::events;
use crate::{BootInstant, FencingToken, ResourceName, SharedClock};
use std::time::Duration;

/// What happens when the work goes on although its lease has ended, as the caller declares it. Seen in events and metrics.
///
/// The permit checks nothing of it: the declaration says what the code *after* the permit does, and each one asks something else of that
/// code. Only the first two refuse a write because it is stale; the others know it by something else, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StaleBehaviour {
    /// The destination checks the fencing token in the same atomic step as the write.
    ///
    /// So the code seals before its first read, sends the token with *every* write, and takes a refusal for the end of its work:
    ///
    /// ```
    /// # use lease_core::{DestinationExt, GuardError, GuardedDestination, hold::*, memory::*};
    /// # use std::{error::Error, sync::Arc, time::Duration};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn Error>> {
    /// # let keeper = Keeper::start(Arc::new(MemoryBackend::new()?))?;
    /// # let guard = keeper.acquire("accounts/42", Duration::from_secs(10), HoldOptions::default()).await?.ok_or("held")?;
    /// # let accounts = MemoryDestination::new();
    /// # accounts.trust(guard.token().ok_or("no token")?.authority()).await?;
    /// let permit = guard.permit(StaleBehaviour::Fenced)?;
    /// let token = permit.token().ok_or("this backend mints no tokens")?;
    /// accounts.seal(guard.resource(), token).await?; // from here on no older write can land
    /// let balance = accounts.read(guard.resource()).await?.value.unwrap_or_default();
    /// match accounts.write(guard.resource(), token, &format!("{balance}+10")).await {
    ///     Ok(()) => permit.committed(),
    ///     Err(GuardError::Refused { refusal, .. }) => {
    ///         permit.refused();
    ///         return Err(refusal.into()); // a newer worker has been here
    ///     }
    ///     Err(error) => return Err(error.into()), // perhaps it was written: read before the next try
    /// }
    /// # assert_eq!(accounts.read(guard.resource()).await?.value.as_deref(), Some("+10"));
    /// # Ok(()) }
    /// ```
    Fenced,
    /// The write and a check of the lease are one transaction of the store that holds the lease.
    ///
    /// So the data live in the lease's own store, and the code writes them through its fence: here the small register that every such
    /// backend has; each backend's module has the same check for your own transaction or script.
    ///
    /// ```
    /// # use lease_core::{FenceError, LeaseBackend, hold::*, memory::*};
    /// # use std::{error::Error, sync::Arc, time::Duration};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn Error>> {
    /// # let keeper = Keeper::start(Arc::new(MemoryBackend::new()?))?;
    /// # let guard = keeper.acquire("accounts/42", Duration::from_secs(10), HoldOptions::default()).await?.ok_or("held")?;
    /// let permit = guard.permit(StaleBehaviour::Transactional)?;
    /// let fence = keeper.backend().fence().register().ok_or("this store has no fence of its own")?;
    /// match fence.write(&guard.lease(), "110 euros").await {
    ///     Ok(()) => permit.committed(),
    ///     Err(refused @ FenceError::Refused { .. }) => {
    ///         permit.refused();
    ///         return Err(refused.into()); // the grant has ended, and nothing was written
    ///     }
    ///     Err(error) => return Err(error.into()), // perhaps it was written, while the lease was good
    /// }
    /// # assert_eq!(fence.read(guard.resource()).await?.as_deref(), Some("110 euros"));
    /// # Ok(()) }
    /// ```
    Transactional,
    /// The write is conditional on a version that the work has read.
    ///
    /// So the code reads the version *before* it computes, and looks at the number of rows that its update has changed. It protects what has
    /// that version, and nothing beside it: a stale worker that read late enough writes.
    ///
    /// ```
    /// # use lease_core::{hold::*, memory::*};
    /// # use std::{error::Error, sync::Arc, time::Duration};
    /// # struct Table { version: u64, text: String }
    /// # impl Table {
    /// #     fn read(&self) -> (u64, String) { (self.version, self.text.clone()) }
    /// #     fn update(&mut self, text: &str, read: u64) -> u64 {
    /// #         if self.version != read { return 0; }
    /// #         *self = Self { version: read + 1, text: text.to_owned() };
    /// #         1
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn Error>> {
    /// # let keeper = Keeper::start(Arc::new(MemoryBackend::new()?))?;
    /// # let guard = keeper.acquire("accounts/42", Duration::from_secs(10), HoldOptions::default()).await?.ok_or("held")?;
    /// # let mut accounts = Table { version: 7, text: "100".into() };
    /// let permit = guard.permit(StaleBehaviour::VersionChecked)?;
    /// let (version, balance) = accounts.read(); // SELECT version, balance …
    /// let rows = accounts.update(&format!("{balance}+10"), version); // UPDATE … version = version + 1 … WHERE … AND version = $2
    /// if rows == 0 {
    ///     permit.refused();
    ///     return Err("somebody else has written since: begin again from a new read".into());
    /// }
    /// permit.committed();
    /// # assert_eq!(accounts.text, "100+10");
    /// # assert_eq!(accounts.update("stale", version), 0);
    /// # Ok(()) }
    /// ```
    VersionChecked,
    /// A repeated effect is recognised by its idempotency key.
    ///
    /// So the code makes an [`IdempotencyKey`](crate::IdempotencyKey) of the resource and the operation, *without* token or grant, so that
    /// the next worker's is the same. The first one wins, and that may be the stale worker: the effect happens once, which is not fencing.
    ///
    /// ```
    /// # use lease_core::{IdempotencyKey, hold::*, memory::*};
    /// # use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn Error>> {
    /// # let keeper = Keeper::start(Arc::new(MemoryBackend::new()?))?;
    /// # let guard = keeper.acquire("accounts/42", Duration::from_secs(10), HoldOptions::default()).await?.ok_or("held")?;
    /// # let mut bank: HashMap<IdempotencyKey, u32> = HashMap::new();
    /// let permit = guard.permit(StaleBehaviour::Idempotent)?;
    /// let key = IdempotencyKey::new(guard.resource(), "rent/2026-12")?;
    /// let paid = *bank.entry(key.clone()).or_insert(850); // the other side keeps the key, and answers a repeat with the first one's result
    /// if paid == 850 {
    ///     permit.committed();
    /// } else {
    ///     permit.refused(); // the same key with another payload is a conflict
    /// }
    /// # assert_eq!(bank[&key], 850);
    /// # Ok(()) }
    /// ```
    Idempotent,
    /// Nothing protects the effect; the reason says why that is acceptable.
    ///
    /// So the code has to be right also when two workers run it at the same time, in any order. The reason is in the log with each permit.
    ///
    /// ```
    /// # use lease_core::{hold::*, memory::*};
    /// # use std::{error::Error, sync::Arc, time::Duration};
    /// # fn warm_up_the_cache() {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn Error>> {
    /// # let keeper = Keeper::start(Arc::new(MemoryBackend::new()?))?;
    /// # let guard = keeper.acquire("cache", Duration::from_secs(10), HoldOptions::default()).await?.ok_or("held")?;
    /// let reason = "the cache is filled twice at worst, and both fill in the same";
    /// let permit = guard.permit(StaleBehaviour::Unprotected { reason })?;
    /// warm_up_the_cache();
    /// permit.committed();
    /// # Ok(()) }
    /// ```
    Unprotected {
        /// Why, for whoever reads the logs.
        reason: &'static str,
    },
}

impl StaleBehaviour {
    /// The stable name in events and metrics.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Fenced => "fenced",
            Self::Transactional => "transactional",
            Self::VersionChecked => "version_checked",
            Self::Idempotent => "idempotent",
            Self::Unprotected { .. } => "unprotected",
        }
    }
}

/// Permission to *begin* protected work. **Not a proof of exclusivity**: the process can be paused right after it was
/// given. What keeps a stale write out is what was declared: the token at the destination, a transaction, a version, a key.
#[derive(Debug)]
#[must_use = "a permit that is not used begins nothing"]
pub struct Permit {
    pub(super) resource: ResourceName,
    pub(super) token: Option<FencingToken>,
    pub(super) behaviour: StaleBehaviour,
    pub(super) given_at: BootInstant,
    pub(super) deadline: BootInstant,
    pub(super) clock: SharedClock,
}

impl Permit {
    /// The token to send with the write; `None` on a backend that mints none.
    #[must_use]
    pub fn token(&self) -> Option<&FencingToken> {
        self.token.as_ref()
    }

    /// What was declared.
    #[must_use]
    pub fn behaviour(&self) -> StaleBehaviour {
        self.behaviour
    }

    /// When it was given.
    #[must_use]
    pub fn given_at(&self) -> BootInstant {
        self.given_at
    }

    /// Time left until the deadline that held when the permit was given; zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_since(self.clock.now())
    }

    /// Notes that the effect was committed.
    pub fn committed(self) {
        events::effect(&self, true);
    }

    /// Notes that the destination refused the effect as stale.
    pub fn refused(self) {
        events::effect(&self, false);
    }
}
