//! A test kit for applications: a backend whose next calls fail as scripted.
//!
//! Together with [`MemoryStore`](crate::memory::MemoryStore) on a [`ManualClock`](crate::ManualClock) it puts a program's own
//! stale-worker path under test, without a server and without waiting. Three things are worth a test in every application.
//!
//! # A stale worker's write is refused
//!
//! Give the code under test a way to wait in the middle. In the test that is where a whole other life takes place: the machine sleeps past
//! the TTL, another worker gets the lease and does the same work.
//!
//! ```
//! use lease_core::hold::{HoldOptions, Keeper, LeaseGuard, StaleBehaviour};
//! use lease_core::memory::{MemoryBackend, MemoryDestination, MemoryStore};
//! use lease_core::{DestinationExt, GuardError, GuardedDestination, ManualClock, Refusal};
//! use std::{error::Error, future::Future, sync::Arc, time::Duration};
//!
//! /// The code under test. In the program, `pause` is whatever takes its time there, such as `async {}`.
//! async fn add_ten(guard: &LeaseGuard, accounts: &MemoryDestination, pause: impl Future<Output = ()>) -> Result<(), GuardError> {
//!     let permit = guard.permit(StaleBehaviour::Fenced).expect("a permit");
//!     let token = permit.token().expect("a token").clone();
//!     accounts.seal(guard.resource(), &token).await?;
//!     let balance = accounts.read(guard.resource()).await?.value.unwrap_or_default();
//!     pause.await;
//!     let answer = accounts.write(guard.resource(), &token, &format!("{balance}+10")).await;
//!     if answer.is_ok() { permit.committed() } else { permit.refused() }
//!     answer
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn Error>> {
//! let clock = ManualClock::new();
//! let store = MemoryStore::on_clock(clock.shared())?;
//! let accounts = MemoryDestination::new();
//! // Two processes: two clients of one store.
//! let a = Keeper::start(Arc::new(MemoryBackend::on(store.clone())))?;
//! let b = Keeper::start(Arc::new(MemoryBackend::on(store)))?;
//! let ttl = Duration::from_secs(10);
//!
//! let old = a.acquire("accounts/42", ttl, HoldOptions::default()).await?.ok_or("held")?;
//! accounts.trust(old.token().ok_or("no token")?.authority()).await?;
//! let another_works = async {
//!     clock.advance(ttl * 2);
//!     let new = b.acquire("accounts/42", ttl, HoldOptions::default()).await.unwrap().expect("the old one has expired");
//!     add_ten(&new, &accounts, async {}).await.unwrap();
//! };
//! let answer = add_ten(&old, &accounts, another_works).await;
//! assert!(matches!(answer, Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. })));
//! assert_eq!(accounts.read(old.resource()).await?.value.as_deref(), Some("+10"), "the new worker's, and that once");
//!
//! // The control: where nothing checks the token, the very same write lands. If it did not, the test would prove nothing.
//! accounts.write_plain(old.resource(), "stale");
//! assert_eq!(accounts.read(old.resource()).await?.value.as_deref(), Some("stale"));
//! # Ok(()) }
//! ```
//!
//! # The work stops when the lease is lost
//!
//! ```
//! use lease_core::hold::{HoldOptions, Keeper, LossCause, RunError};
//! use lease_core::memory::{MemoryBackend, MemoryStore};
//! use lease_core::testing::{Fault, Scripted};
//! use lease_core::{ManualClock, Operation};
//! use std::{sync::Arc, time::Duration};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = ManualClock::new();
//! let store = Arc::new(Scripted::new(Arc::new(MemoryBackend::on(MemoryStore::on_clock(clock.shared())?))));
//! let keeper = Keeper::start(store.clone())?;
//! let guard = keeper.acquire("report", Duration::from_secs(9), HoldOptions::default()).await?.ok_or("held")?;
//! store.always(Operation::Renew, Some(Fault::Silent)); // from now on nothing is heard of the store
//!
//! let mut pages = 0;
//! let result = guard.run(async |_| loop {
//!     pages += 1;
//!     clock.advance(Duration::from_secs(1)); // a page takes a second
//!     tokio::task::yield_now().await; // and others have their turn
//!     if pages == 100 {
//!         break Ok::<_, std::io::Error>(pages);
//!     }
//! });
//! assert!(matches!(result.await, Err(RunError::Lost(loss)) if loss.cause() == LossCause::Unresolved));
//! assert_eq!(pages, 9, "it was stopped at the deadline, a little before the TTL ends");
//! # Ok(()) }
//! ```
//!
//! # A lost answer leaves nothing behind
//!
//! [`Attempt`] has that in full: [`Fault::ReplyLost`] and [`Fault::RequestLost`] for `acquire`, then the same attempt again, or `abandon`.
//!
//! # What else can be scripted
//!
//! Every operation, once ([`Scripted::next`]) or until further notice ([`Scripted::always`]): see [`Fault`]. How often each was called,
//! and how many were under way at one time, is counted; an event `scripted_call` at the level `trace` marks each. A [`ManualClock`](crate::ManualClock) moves only when the test says so, and the
//! keeper's task runs only when the test waits: let it have its turn after each step (`tokio::task::yield_now`, a few times).

use crate::{
    Acquisition, Attempt, Claims, CleanUp, Description, Effect, Fence, ForceRelease, Forced, Inspection, Lease,
    LeaseBackend, LeaseError, Limits, NamePage, Operation, Release, Renewal, ResourceName, SharedClock,
};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::trace;

/// What happens to a call instead of the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The request never reaches the store; the caller cannot know that.
    RequestLost,
    /// The store carries it out, and the reply is lost.
    ReplyLost,
    /// The store refuses it, without effect.
    Refused,
    /// The request never reaches the store, and no answer ever comes: the caller's own limit has to end the call.
    Silent,
    /// The store carries it out, and no answer ever comes.
    SilentAfter,
    /// The request reaches the store so much later, by the backend's clock, and is then carried out and answered. A caller that stops
    /// waiting before that has lost the request. Deadlines count from when the caller sent it, as with a real store.
    Late(Duration),
}

/// A backend around another one, whose next calls fail as scripted. Operations without a scripted fault go through.
#[derive(Debug)]
pub struct Scripted {
    inner: Arc<dyn LeaseBackend>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: HashMap<Operation, VecDeque<Fault>>,
    always: HashMap<Operation, Fault>,
    calls: HashMap<Operation, u64>,
    at_once: HashMap<Operation, AtOnce>,
}

/// How many calls are under way, and how many there were at most.
#[derive(Clone, Copy, Debug, Default)]
struct AtOnce {
    now: u64,
    most: u64,
}

/// A call that is under way until this is dropped.
struct UnderWay<'a>(&'a Scripted, Operation);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        let at_once = state.at_once.entry(self.1).or_default();
        at_once.now = at_once.now.saturating_sub(1);
    }
}

/// Runs when it is dropped, unless it was disarmed.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

impl Scripted {
    /// Wraps a backend; nothing fails yet.
    #[must_use]
    pub fn new(inner: Arc<dyn LeaseBackend>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Lets the next call of `operation` that has no fault yet fail.
    pub fn next(&self, operation: Operation, fault: Fault) {
        self.state().next.entry(operation).or_default().push_back(fault);
    }

    /// Lets all further calls of `operation` fail, or with `None` go through again.
    pub fn always(&self, operation: Operation, fault: Option<Fault>) {
        let mut state = self.state();
        match fault {
            Some(fault) => state.always.insert(operation, fault),
            None => state.always.remove(&operation),
        };
    }

    /// How often `operation` was called.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> u64 {
        self.state().calls.get(&operation).copied().unwrap_or(0)
    }

    /// How many calls of `operation` were under way at one time, at most.
    #[must_use]
    pub fn most_at_once(&self, operation: Operation) -> u64 {
        self.state().at_once.get(&operation).copied().unwrap_or_default().most
    }

    fn begin(&self, operation: Operation) -> UnderWay<'_> {
        let mut state = self.state();
        let at_once = state.at_once.entry(operation).or_default();
        at_once.now = at_once.now.saturating_add(1);
        at_once.most = at_once.most.max(at_once.now);
        UnderWay(self, operation)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, operation: Operation) -> Option<Fault> {
        let mut state = self.state();
        let calls = state.calls.entry(operation).or_default();
        *calls = calls.saturating_add(1);
        let next = state.next.get_mut(&operation).and_then(VecDeque::pop_front);
        next.or_else(|| state.always.get(&operation).copied())
    }

    async fn call<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, LeaseError>> + Send,
    ) -> Result<T, LeaseError> {
        self.call_in_doubt(operation, call, || ()).await
    }

    /// `doubt` runs when the caller can not know what became of the request, before it can stop waiting.
    async fn call_in_doubt<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, LeaseError>> + Send,
        doubt: impl FnOnce() + Send,
    ) -> Result<T, LeaseError> {
        let lost =
            || LeaseError::Connection { operation, reason: "scripted".into(), effect: Effect::Unknown, source: None };
        let _under_way = self.begin(operation);
        trace!(target: "leasehold", event = "scripted_call", %operation);
        match self.fault(operation) {
            None => call.await,
            Some(Fault::RequestLost) => {
                doubt();
                Err(lost())
            }
            Some(Fault::ReplyLost) => {
                drop(call.await);
                doubt();
                Err(lost())
            }
            Some(Fault::Refused) => Err(LeaseError::Store {
                operation,
                reason: "scripted".into(),
                effect: Effect::None,
                advice: crate::Advice::TryAgain,
                source: None,
            }),
            Some(Fault::Silent) => {
                doubt();
                std::future::pending().await
            }
            Some(Fault::SilentAfter) => {
                drop(call.await);
                doubt();
                std::future::pending().await
            }
            Some(Fault::Late(after)) => {
                let mut given_up = OnDrop(Some(doubt));
                let clock = self.inner.clock();
                clock.sleep_until(clock.now().saturating_add(after)).await;
                given_up.0 = None;
                call.await
            }
        }
    }
}

#[async_trait::async_trait]
impl LeaseBackend for Scripted {
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
        // A lost request of this attempt may still be on its way, as with a real store.
        let granted_ttl = self.inner.limits().granted_ttl(attempt.ttl())?;
        let on_its_way = attempt.begin_send(self.inner.clock().now(), granted_ttl)?;
        let answer = self.call(Operation::Acquire, self.inner.acquire(attempt)).await;
        if !answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown) {
            on_its_way.answered();
        }
        answer
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        // The inner backend sees a late request only when it arrives. The caller sent it now, and a deadline counts from there.
        let sent = self.inner.clock().now();
        Ok(match self.call(Operation::Renew, self.inner.renew(lease)).await? {
            Renewal::Renewed(_) => Renewal::Renewed(lease.renewed(sent)),
            lost @ Renewal::Lost(_) => lost,
        })
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        // When the reply, or the request, was lost, what the store may have said settles nothing.
        self.call_in_doubt(Operation::Release, self.inner.release(lease), || drop(lease.begin_release())).await
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        self.call(Operation::Abandon, self.inner.abandon(attempt)).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        self.call(Operation::ForceRelease, self.inner.force_release(order)).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        self.call(Operation::Inspect, self.inner.inspect(resource)).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.call(Operation::List, self.inner.list(prefix, after, limit)).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.call(Operation::CleanUp, self.inner.clean_up()).await
    }

    fn fence(&self) -> Fence<'_> {
        self.inner.fence()
    }
}
