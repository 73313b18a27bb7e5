//! A client whose calls are disturbed.

use super::OnceFault;
use super::path::{CallPath, Way};
use crate::subject::BoxFuture;
use lease_core::{
    Acquisition, Attempt, Claims, CleanUp, Description, Effect, Fence, ForceRelease, Forced, Inspection, Lease,
    LeaseBackend, LeaseError, Limits, NamePage, Operation, Release, Renewal, ResourceName, SharedClock, bounded,
};
use std::sync::Arc;
use std::time::Duration;

/// A client whose calls are disturbed.
#[derive(Debug)]
pub(super) struct Disturbed {
    pub(super) inner: Arc<dyn LeaseBackend>,
    pub(super) path: Arc<CallPath>,
    pub(super) call_timeout: Duration,
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
        let mut hole_ends = self.path.hole_ends.subscribe();
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
                Way::Swallowed => {
                    // The sender lives in the path, as long as this call does.
                    drop(hole_ends.changed().await);
                    Err(broke("a black hole swallowed it, and the connection is gone"))
                }
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
        let (inner, late) = (Arc::clone(&self.inner), order.clone());
        let held: BoxFuture<'static, ()> = Box::pin(async move { drop(inner.force_release(&late).await) });
        self.call(Operation::ForceRelease, Some(held), self.inner.force_release(order)).await
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
