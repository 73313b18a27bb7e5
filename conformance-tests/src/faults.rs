//! Faults between a client and its store: what a [`Subject`](crate::subject::Subject) gives the suite to disturb the path with.
//!
//! The program puts a TCP proxy before each server. Everything else gets [`at_calls`]: faults at the backend's own calls, which
//! lose a request or an answer between the caller and the adapter. They show what the values of `lease-core` and the store make of it,
//! not what a client crate does.

use crate::subject::BoxFuture;
use lease_core::{
    Acquisition, Attempt, Claims, CleanUp, Description, Effect, Fence, ForceRelease, Forced, Inspection, Lease,
    LeaseBackend, LeaseError, Limits, NamePage, Operation, Release, Renewal, ResourceName, SharedClock, bounded,
};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnceFault {
    /// It never reaches the store, and the connection breaks.
    RequestLost,
    /// The store carries it out; the connection breaks before the client sees the reply.
    ReplyLost,
    /// The store carries it out; the connection stays, and silent for good.
    ReplySwallowed,
    /// It is kept until [`FaultyPath::deliver`]; the client gets no reply, also afterwards.
    RequestHeld,
    /// The store carries it out; the reply is kept until [`FaultyPath::deliver`].
    ReplyHeld,
}

/// The way between a client and its store.
pub trait FaultyPath: fmt::Debug + Send + Sync {
    /// What it is, for the evidence: `tcp proxy`, `calls`.
    fn kind(&self) -> &'static str;

    /// Arms a fault for the next request, instead of one that was armed before.
    fn once(&self, fault: OnceFault) {
        self.once_after(0, fault);
    }

    /// Arms a fault for the request after the next `passed` ones, instead of one that was armed before. An operation may send
    /// several requests, and a client some of its own, so sweep `passed` from 0 on.
    fn once_after(&self, passed: u32, fault: OnceFault);

    /// Whether the fault that was armed last has happened: the witness.
    fn happened(&self) -> bool;

    /// Swallows everything in both directions, or passes it again. Connections from which something was swallowed are cut at the end of
    /// it: no real path goes on with a hole in its stream.
    fn black_hole(&self, on: bool);

    /// Cuts every connection.
    fn cut(&self);

    /// Refuses new connections, or takes them again.
    fn refuse(&self, on: bool);

    /// Delivers what was held.
    fn deliver(&self);

    /// Takes an armed fault back, ends a black hole and refusals, and delivers what was held.
    fn heal(&self);

    /// How many requests and replies have arrived at the path: the witness that something was on its way.
    fn counts(&self) -> (u64, u64);
}

/// Clients of the subject's store behind one path that can be disturbed.
#[async_trait::async_trait]
pub trait FaultBench: fmt::Debug + Send + Sync {
    /// A new client behind the path.
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError>;

    /// The URL for workers in processes of their own, behind the path; `None`: the path cannot be used from there.
    fn worker_url(&self) -> Option<String>;

    /// The path.
    fn path(&self) -> &dyn FaultyPath;
}

/// An administrator's hands on the store's records.
#[async_trait::async_trait]
pub trait HandEdit: fmt::Debug + Send + Sync {
    /// Deletes the record of a resource's lease behind the backend's back. What else the store keeps stays.
    async fn delete_record(&self, resource: &ResourceName) -> Result<(), LeaseError>;
}

/// A bench whose faults are at the calls of `client`: for a store in this process, in a file, or behind a path that cannot be reached.
/// Every call ends after `call_timeout` at the latest. Writes through the backend's fence are not disturbed.
#[must_use]
pub fn at_calls(client: Arc<dyn LeaseBackend>, call_timeout: Duration) -> Arc<dyn FaultBench> {
    Arc::new(Calls { client, call_timeout, path: Arc::default() })
}

#[derive(Debug)]
struct Calls {
    client: Arc<dyn LeaseBackend>,
    call_timeout: Duration,
    path: Arc<CallPath>,
}

#[async_trait::async_trait]
impl FaultBench for Calls {
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        let (inner, path) = (Arc::clone(&self.client), Arc::clone(&self.path));
        Ok(Arc::new(Disturbed { inner, path, call_timeout: self.call_timeout }))
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn path(&self) -> &dyn FaultyPath {
        self.path.as_ref()
    }
}

#[derive(Debug, Default)]
struct CallPath {
    state: Mutex<State>,
    cuts: watch::Sender<u64>,
    deliveries: watch::Sender<u64>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "switches that do not depend on each other")]
struct State {
    once: Option<(u32, OnceFault)>,
    happened: bool,
    hole: bool,
    refuse: bool,
    cut: bool,
    held: Vec<BoxFuture<'static, ()>>,
    requests: u64,
    replies: u64,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("once", &self.once).field("held", &self.held.len()).finish_non_exhaustive()
    }
}

/// What becomes of a call.
enum Way {
    Passes,
    Refused,
    Swallowed,
    Fault(OnceFault),
}

impl CallPath {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Way {
        let mut state = self.state();
        if state.cut && state.refuse {
            return Way::Refused;
        }
        state.cut = false;
        state.requests = state.requests.saturating_add(1);
        if state.hole {
            return Way::Swallowed;
        }
        match state.once {
            None => Way::Passes,
            Some((0, fault)) => {
                (state.once, state.happened) = (None, true);
                Way::Fault(fault)
            }
            Some((passed, fault)) => {
                state.once = Some((passed.saturating_sub(1), fault));
                Way::Passes
            }
        }
    }

    fn replied(&self) {
        let mut state = self.state();
        state.replies = state.replies.saturating_add(1);
    }

    /// Keeps a request until it is delivered.
    fn hold(self: &Arc<Self>, request: Option<BoxFuture<'static, ()>>) {
        let Some(request) = request else { return };
        let path = Arc::clone(self);
        let whole = Box::pin(async move {
            request.await;
            path.replied();
        });
        self.state().held.push(whole);
    }
}

impl FaultyPath for CallPath {
    fn kind(&self) -> &'static str {
        "calls"
    }

    fn once_after(&self, passed: u32, fault: OnceFault) {
        let mut state = self.state();
        (state.once, state.happened) = (Some((passed, fault)), false);
    }

    fn happened(&self) -> bool {
        self.state().happened
    }

    fn black_hole(&self, on: bool) {
        self.state().hole = on;
        if !on {
            self.cut();
        }
    }

    fn cut(&self) {
        self.state().cut = true;
        self.cuts.send_modify(|cuts| *cuts = cuts.saturating_add(1));
    }

    fn refuse(&self, on: bool) {
        self.state().refuse = on;
    }

    fn deliver(&self) {
        let held = std::mem::take(&mut self.state().held);
        // The suite runs on a Tokio runtime; without one nothing can be carried out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            for request in held {
                runtime.spawn(request);
            }
        }
        self.deliveries.send_modify(|deliveries| *deliveries = deliveries.saturating_add(1));
    }

    fn heal(&self) {
        let mut state = self.state();
        (state.once, state.hole, state.refuse) = (None, false, false);
        drop(state);
        self.deliver();
    }

    fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.requests, state.replies)
    }
}

/// A client whose calls are disturbed.
#[derive(Debug)]
struct Disturbed {
    inner: Arc<dyn LeaseBackend>,
    path: Arc<CallPath>,
    call_timeout: Duration,
}

impl Disturbed {
    /// One call: `work` is what the store does, `held` the same request when it arrives late, from a caller who does not wait any more.
    async fn call<T>(
        &self,
        operation: Operation,
        held: Option<BoxFuture<'static, ()>>,
        work: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        self.call_telling(operation, held, work, &mut false).await
    }

    /// The same; tells whether the reply was held.
    async fn call_telling<T>(
        &self,
        operation: Operation,
        held: Option<BoxFuture<'static, ()>>,
        work: impl Future<Output = Result<T, LeaseError>>,
        reply_held: &mut bool,
    ) -> Result<T, LeaseError> {
        let effect = match operation {
            Operation::Inspect | Operation::List => Effect::None,
            _ => Effect::Unknown,
        };
        let broke =
            |reason: &str| LeaseError::Connection { operation, reason: reason.to_owned(), effect, source: None };
        let mut deliveries = self.path.deliveries.subscribe();
        let mut cuts = self.path.cuts.subscribe();
        let replied = async {
            let answer = work.await;
            self.path.replied();
            answer
        };
        let on_its_way = async {
            match self.path.begin() {
                Way::Passes => replied.await,
                Way::Refused => Err(LeaseError::Unreachable {
                    store: self.inner.description().address,
                    reason: "connections are refused".to_owned(),
                    source: None,
                }),
                Way::Swallowed => std::future::pending().await,
                Way::Fault(OnceFault::RequestLost) => Err(broke("the request was lost")),
                Way::Fault(OnceFault::ReplyLost) => {
                    drop(replied.await);
                    Err(broke("the reply was lost"))
                }
                Way::Fault(OnceFault::ReplySwallowed) => {
                    drop(replied.await);
                    std::future::pending().await
                }
                Way::Fault(OnceFault::RequestHeld) => {
                    self.path.hold(held);
                    std::future::pending().await
                }
                Way::Fault(OnceFault::ReplyHeld) => {
                    let answer = replied.await;
                    *reply_held = true;
                    // The sender lives in the path, as long as this call does.
                    drop(deliveries.changed().await);
                    answer
                }
            }
        };
        tokio::select! {
            biased;
            answer = bounded(self.call_timeout, operation, effect, on_its_way) => answer,
            _ = cuts.changed() => Err(broke("it was cut")),
        }
    }

    /// The same grant, known to a request that is still on its way: what becomes of that does not reach the caller's value.
    fn apart(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        lease.clone().into_hand_over().into_lease(self.inner.clock())
    }
}

/// A release without an answer leaves the grant's end in doubt, also when its future was dropped.
struct InDoubt<'a>(Option<&'a Lease>);

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.0 {
            drop(lease.begin_release());
        }
    }
}

#[async_trait::async_trait]
impl LeaseBackend for Disturbed {
    fn description(&self) -> Description {
        self.inner.description()
    }

    fn claims(&self) -> Claims {
        self.inner.claims()
    }

    fn limits(&self) -> Limits {
        self.inner.limits().with_call_timeout(self.call_timeout)
    }

    fn clock(&self) -> SharedClock {
        self.inner.clock()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        // The time of the send, and that a lost request of this attempt may still be on its way, as with a real store.
        let granted_ttl = self.inner.limits().granted_ttl(attempt.ttl())?;
        let sent = attempt.begin_send(self.inner.clock().now(), granted_ttl)?;
        let (inner, late) = (Arc::clone(&self.inner), attempt.as_held_up());
        let held: BoxFuture<'static, ()> = Box::pin(async move { drop(inner.acquire(&late).await) });
        let mut reply_held = false;
        let work = self.inner.acquire(attempt);
        let answer = self.call_telling(Operation::Acquire, Some(held), work, &mut reply_held).await?;
        sent.answered();
        match answer {
            // What the adapter took for an answer in time has become late on the way from here.
            Acquisition::Acquired(lease) if reply_held && lease.is_past_deadline() => {
                drop(self.inner.abandon(attempt).await);
                Err(LeaseError::LateGrant { resource: attempt.resource().clone() })
            }
            answer => Ok(answer),
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let (inner, late) = (Arc::clone(&self.inner), self.apart(lease)?);
        let held: BoxFuture<'static, ()> = Box::pin(async move { drop(inner.renew(&late).await) });
        self.call(Operation::Renew, Some(held), self.inner.renew(lease)).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let (inner, late) = (Arc::clone(&self.inner), self.apart(lease)?);
        let held: BoxFuture<'static, ()> = Box::pin(async move { drop(inner.release(&late).await) });
        let mut in_doubt = InDoubt(Some(lease));
        let answer = self.call(Operation::Release, Some(held), self.inner.release(lease)).await;
        if answer.as_ref().map_or_else(LeaseError::effect, |_| Effect::None) == Effect::None {
            in_doubt.0 = None;
        }
        answer
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        attempt.end();
        let (inner, late) = (Arc::clone(&self.inner), attempt.clone());
        let held: BoxFuture<'static, ()> = Box::pin(async move { drop(inner.abandon(&late).await) });
        self.call(Operation::Abandon, Some(held), self.inner.abandon(attempt)).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        self.call(Operation::ForceRelease, None, self.inner.force_release(order)).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        self.call(Operation::Inspect, None, self.inner.inspect(resource)).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.call(Operation::List, None, self.inner.list(prefix, after, limit)).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.call(Operation::CleanUp, None, self.inner.clean_up()).await
    }

    fn fence(&self) -> Fence<'_> {
        self.inner.fence()
    }
}
