//! The worker's journal, and the wrappers that write it: every operation is noted before it is sent and when it has ended.

use super::note::{Came, Does, Note, Part, tags};
use crate::subject::TestDestination;
use crate::worker::{Outlet, Said, now_ns};
use lease_core::{
    Acquisition, Attempt, Claims, CleanUp, Description, Effect, Fence, FencingToken, ForceRelease, Forced, GuardError,
    Inspection, Lease, LeaseBackend, LeaseError, Limits, NamePage, Refusal, Release, Renewal, ResourceName,
    SharedClock,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Numbers the operations and sends the notes.
#[derive(Debug)]
pub(super) struct Journal {
    outlet: Outlet,
    ops: AtomicU64,
    /// The number of each grant, by its owner token.
    grants: Mutex<HashMap<String, u64>>,
}

impl Journal {
    pub(super) fn new(outlet: Outlet) -> Self {
        Self { outlet, ops: AtomicU64::new(0), grants: Mutex::default() }
    }

    /// Notes that an operation begins, and returns when the note is out of this process: a worker that is killed afterwards has
    /// told of everything that it may have sent.
    async fn begin(&self, resource: &ResourceName, does: Does) -> u64 {
        let op = self.ops.fetch_add(1, Ordering::SeqCst);
        let part = Part::Begins { resource: resource.as_str().to_owned(), does };
        self.outlet.say_and_wait(Said::Noted(Note { op, at_ns: now_ns(), part })).await;
        op
    }

    fn end(&self, op: u64, came: Came) {
        self.outlet.say(Said::Noted(Note { op, at_ns: now_ns(), part: Part::Ends { came } }));
    }

    fn grant(&self, owner: &lease_core::OwnerToken) -> u64 {
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let next = u64::try_from(grants.len()).unwrap_or(u64::MAX);
        *grants.entry(owner.reveal()).or_insert(next)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn failed(error: &LeaseError) -> Came {
    if error.effect() == Effect::None { Came::Nothing } else { Came::Unknown }
}

/// A backend whose operations are noted.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) inner: Arc<dyn LeaseBackend>,
    pub(super) journal: Arc<Journal>,
}

#[async_trait::async_trait]
impl LeaseBackend for Noted {
    fn description(&self) -> Description {
        self.inner.description()
    }

    fn claims(&self) -> Claims {
        self.inner.claims()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn clock(&self) -> SharedClock {
        self.inner.clock()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let grant = self.journal.grant(attempt.owner());
        let op = self.journal.begin(attempt.resource(), Does::Acquire { grant }).await;
        let answer = self.inner.acquire(attempt).await;
        let came = match &answer {
            Ok(Acquisition::Acquired(lease)) => {
                Came::Granted { token: lease.token().cloned(), granted_ttl_ns: nanos(lease.granted_ttl()) }
            }
            Ok(Acquisition::Held(_)) => Came::Nothing,
            Err(error) => failed(error),
        };
        self.journal.end(op, came);
        answer
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let grant = self.journal.grant(lease.owner());
        let does = Does::Renew { grant, granted_ttl_ns: nanos(lease.granted_ttl()) };
        let op = self.journal.begin(lease.resource(), does).await;
        let answer = self.inner.renew(lease).await;
        let came = match &answer {
            Ok(Renewal::Renewed(lease)) => Came::Extended { token: lease.token().cloned() },
            Ok(Renewal::Lost(_)) => Came::Lost,
            Err(error) => failed(error),
        };
        self.journal.end(op, came);
        answer
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let grant = self.journal.grant(lease.owner());
        let op = self.journal.begin(lease.resource(), Does::Ends { grant }).await;
        let answer = self.inner.release(lease).await;
        // Also after a definite refusal its holder counts on the grant no more.
        self.journal.end(op, if answer.is_ok() { Came::Ended } else { Came::Unknown });
        answer
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        let grant = self.journal.grant(attempt.owner());
        let op = self.journal.begin(attempt.resource(), Does::Ends { grant }).await;
        let answer = self.inner.abandon(attempt).await;
        self.journal.end(op, if answer.is_ok() { Came::Ended } else { Came::Unknown });
        answer
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        self.inner.force_release(order).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        self.inner.inspect(resource).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.inner.list(prefix, after, limit).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.inner.clean_up().await
    }

    fn fence(&self) -> Fence<'_> {
        self.inner.fence()
    }
}

/// A destination whose operations are noted.
#[derive(Clone, Debug)]
pub(super) struct NotedDestination {
    pub(super) inner: Arc<dyn TestDestination>,
    pub(super) journal: Arc<Journal>,
}

impl NotedDestination {
    pub(super) async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        let op = self.journal.begin(resource, Does::Seal { token: token.clone() }).await;
        let answer = self.inner.seal(resource, token).await;
        self.journal.end(op, guarded(&answer));
        answer
    }

    /// Writes a value of the form that [`value`](super::note::value) makes.
    pub(super) async fn write(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        let (tag, on) = tags(value);
        let does = Does::Write { token: token.clone(), tag: tag.to_owned(), on: on.map(ToOwned::to_owned) };
        let op = self.journal.begin(resource, does).await;
        let answer = self.inner.write(resource, token, value).await;
        self.journal.end(op, guarded(&answer));
        answer
    }

    /// The tag that is there.
    pub(super) async fn read(&self, resource: &ResourceName) -> Result<Option<String>, GuardError> {
        let op = self.journal.begin(resource, Does::Read).await;
        let answer = self.inner.read(resource).await;
        let answer = answer.map(|stored| stored.value.map(|value| tags(&value).0.to_owned()));
        self.journal.end(op, answer.as_ref().map_or(Came::Unknown, |tag| Came::Found { tag: tag.clone() }));
        answer
    }
}

fn guarded(answer: &Result<(), GuardError>) -> Came {
    match answer {
        Ok(()) => Came::Admitted,
        Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. }) => Came::Stale,
        Err(GuardError::Refused { .. }) => Came::Refused,
        Err(_) => Came::Unknown,
    }
}
