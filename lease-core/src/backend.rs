//! The core trait: what a lock store must do.

use crate::{Attempt, Claims, Fence, ForceRelease, Forced, Lease, LeaseError, Limits, ResourceName, SharedClock};
use std::time::Duration;

/// A store that grants leases.
///
/// # Contract
///
/// Every implementation keeps these rules; the conformance suite checks each one on the real store.
///
/// * **One holder.** At one moment of the store's time at most one unexpired grant of a resource exists. Making a grant,
///   with its finite expiry and its fencing token, is one atomic step.
/// * **Not re-entrant.** A second attempt is `Held`, whoever makes it: the same process, connection, session or task.
/// * **One grant per attempt.** Repeating an attempt finds its grant, with the same token, and never extends it; after
///   its release or abandonment it makes none.
/// * **Above the floor.** The fencing value of a grant is larger than the attempt's [floor](Attempt::floor), in the step that makes the
///   grant, or there is no grant.
/// * **Own grant only.** `renew` and `release` act on the grant of the lease's owner token, compared in the same atomic step.
/// * **Every call ends.** Connect and call limits always apply, against a peer that accepts and never answers too.
/// * **Nothing is sent twice.** A command that may have run is never repeated by the client library, unless its
///   repetition has the same result.
///
/// # Errors
///
/// Every operation fails with a [`LeaseError`] that knows its [effect](LeaseError::effect). Time-outs and connections that were cut
/// after sending are *unknown*, never *refused*.
///
/// # Cancel safety
///
/// Dropping a future of this trait may leave its request under way. Nothing of it outlives one TTL: a grant that nobody
/// knows of expires, since nothing renews it. Keep the [`Attempt`] to find out, or abandon it.
///
/// # Wrappers
///
/// There are no default methods, so that a wrapper cannot lose one: forward all of them.
#[async_trait::async_trait]
pub trait LeaseBackend: std::fmt::Debug + Send + Sync {
    /// What this backend is and what it is connected to.
    fn description(&self) -> Description;

    /// The guarantees that this instance declares, given the server's settings as they were read at the latest connect.
    fn claims(&self) -> Claims;

    /// The numbers that bound this instance.
    fn limits(&self) -> Limits;

    /// The clock that this instance's deadlines count on.
    fn clock(&self) -> SharedClock;

    /// Tries once to get the lease; never waits for another holder.
    ///
    /// After an error whose [effect](LeaseError::effect) is unknown, the *same* attempt is repeated, and at last abandoned:
    ///
    /// ```
    /// # use lease_core::{testing::*, *};
    /// # use std::{sync::Arc, time::Duration};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LeaseError> {
    /// # let store = Scripted::new(Arc::new(memory::MemoryBackend::new()?));
    /// # store.next(Operation::Acquire, Fault::RequestLost);
    /// let attempt = Attempt::new(ResourceName::parse("accounts/42")?, Ttl::parse(Duration::from_secs(10))?)?;
    /// let mut answer = store.acquire(&attempt).await;
    /// if answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown) {
    ///     answer = store.acquire(&attempt).await; // finds what the first one made, or makes it now
    /// }
    /// if answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown) {
    ///     store.abandon(&attempt).await?; // what is still on its way makes nothing any more
    /// }
    /// match answer? {
    ///     Acquisition::Acquired(lease) => assert!(!lease.is_past_deadline()),
    ///     Acquisition::Held(held) => println!("look again in {:?}", held.remaining),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// A [`Keeper`](crate::hold::Keeper) does so by itself; [`LeaseExt`](crate::LeaseExt) abandons at once.
    ///
    /// # Cancel safety
    /// As the trait says: repeat the same attempt to find out what became of it, or abandon it.
    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError>;

    /// Extends the same grant by its granted TTL, counted from when the store sees it. Never shortens, creates, steals, or changes the token.
    ///
    /// # Cancel safety
    /// The old deadline stands. The store may or may not have extended the grant.
    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError>;

    /// Ends the same grant. Idempotent.
    ///
    /// # Cancel safety
    /// The release is in doubt: repeat it, or let the TTL end the grant.
    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError>;

    /// Gives an attempt up: ends its grant if it has made one, and keeps whatever is still on its way from making one later.
    ///
    /// # Cancel safety
    /// Repeat it, or let the TTL end whatever the attempt made.
    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError>;

    /// Ends the grant that the order names, whoever holds it, and no other one: resource and fencing value are compared in the same
    /// atomic step. Whatever the broken grant's attempt still has on its way makes no grant, its native fence refuses from now on,
    /// and the next grant's token is higher. Data at other destinations are protected once the next holder has sealed there.
    /// Goes through [`ForceRelease::carry_out`], which logs who and why.
    ///
    /// # Errors
    /// [`LeaseError::Unsupported`] on a backend that mints no fencing values.
    ///
    /// # Cancel safety
    /// The order may have been carried out. Repeat it: it can only end the grant that it names.
    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError>;

    /// Looks at a resource. An observation that may be stale on arrival, never an ownership check.
    ///
    /// # Cancel safety
    /// No effect.
    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError>;

    /// Lists the resources that are held now and whose name begins with `prefix` (which may be empty), in byte order
    /// of the name, from after `after`, at most `limit` of them. Stores that would have to scan their whole key space answer
    /// [`LeaseError::Unsupported`] and do not claim it.
    ///
    /// # Cancel safety
    /// No effect.
    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError>;

    /// Removes what idle resources left behind, where the store doesn't do so by itself. Excludes concurrent acquires and
    /// never lets a token go back. Backends also call it by themselves from time to time.
    ///
    /// # Cancel safety
    /// A part may have been removed; each part is complete in itself.
    async fn clean_up(&self) -> Result<CleanUp, LeaseError>;

    /// What this store itself can do against a stale worker.
    fn fence(&self) -> Fence<'_>;
}

/// What a backend is and what it is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// Its name, such as `redis`, `redis-fred`, `postgres`.
    pub name: &'static str,
    /// The server's version, or the embedded library's.
    pub server_version: String,
    /// Where it is, without credentials.
    pub address: String,
}

impl Description {
    /// Describes a backend.
    #[must_use]
    pub fn new(name: &'static str, server_version: String, address: String) -> Self {
        Self { name, server_version, address }
    }
}

/// The answer to `acquire`. Exhaustive on purpose: a caller must not take an answer that it does not know for one that it does.
#[derive(Clone, Debug)]
#[must_use = "a grant that is dropped unseen blocks the resource until its TTL ends"]
pub enum Acquisition {
    /// A grant was made, or the same attempt's grant was found.
    Acquired(Lease),
    /// Another grant is live.
    Held(Held),
}

/// Why there was no grant, and when to look again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The remaining time of the present grant by the store's clock, where it said so.
    pub remaining: Option<Duration>,
}

impl Held {
    /// Held, with the remaining time of the present grant.
    #[must_use]
    pub fn for_another(remaining: Option<Duration>) -> Self {
        Self { remaining }
    }
}

/// The answer to `renew`. Exhaustive on purpose, as [`Acquisition`].
#[derive(Clone, Debug)]
#[must_use = "a lost lease must stop the work"]
pub enum Renewal {
    /// The grant was extended; use this lease from now on.
    Renewed(Lease),
    /// The grant has ended, for good.
    Lost(LossReason),
}

/// Why a grant has ended, as far as the store can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// Its time ran out.
    Expired,
    /// Another grant was made.
    Superseded,
    /// It was released.
    Released,
    /// It was ended by force.
    Forced,
    /// The record is gone; the store does not know more.
    Gone,
}

/// The answer to `release`. Exhaustive on purpose, as [`Acquisition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "`NotHeld` says that the lease was lost before, so the work may have overlapped"]
pub enum Release {
    /// The grant was live until this release, or an earlier one of the same grant, ended it.
    Released,
    /// The grant had ended before: the lease was lost, and another worker may have begun.
    NotHeld,
    /// An earlier release had no answer; the grant has ended now, by that release or otherwise.
    EndedCauseUnknown,
}

/// The answer to `inspect`: an observation, stale on arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The present holder's grant; `None` when the resource is free.
    pub held: Option<Listed>,
    /// The fencing value of the present grant, or the latest one that the store still remembers.
    pub last_value: Option<u64>,
}

impl Inspection {
    /// The resource is held.
    #[must_use]
    pub fn held(grant: Listed) -> Self {
        Self { last_value: grant.value, held: Some(grant) }
    }

    /// The resource is free; `last_value` is the latest fencing value that the store remembers.
    #[must_use]
    pub fn free(last_value: Option<u64>) -> Self {
        Self { held: None, last_value }
    }
}

/// A grant as others see it. No owner token in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The resource.
    pub resource: ResourceName,
    /// The holder's label.
    pub holder: String,
    /// The fencing value of the grant, where the backend mints any.
    pub value: Option<u64>,
    /// Time left by the store's clock.
    pub remaining: Duration,
    /// How long ago the grant was made, by the store's clock, where the store keeps that.
    pub granted_ago: Option<Duration>,
    /// How long ago it was made or last renewed, by the store's clock, where the store keeps that.
    pub renewed_ago: Option<Duration>,
}

impl Listed {
    /// A grant as others see it.
    #[must_use]
    pub fn new(resource: ResourceName, holder: String, value: Option<u64>, remaining: Duration) -> Self {
        Self { resource, holder, value, remaining, granted_ago: None, renewed_ago: None }
    }

    /// The same with its times.
    #[must_use]
    pub fn with_times(mut self, granted_ago: Option<Duration>, renewed_ago: Option<Duration>) -> Self {
        self.granted_ago = granted_ago;
        self.renewed_ago = renewed_ago;
        self
    }
}

/// One page of `list`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamePage {
    /// The grants, in byte order of the resource's name.
    pub grants: Vec<Listed>,
    /// Where the next page begins; `None` after the last one.
    pub next_after: Option<ResourceName>,
}

/// What `clean_up` did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanUp {
    /// Idle records removed.
    pub removed: u64,
}

impl CleanUp {
    /// So many idle records were removed.
    #[must_use]
    pub fn removed(removed: u64) -> Self {
        Self { removed }
    }
}
