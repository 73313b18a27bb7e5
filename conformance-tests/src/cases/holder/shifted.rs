//! A client whose holder lives on a clock that can be moved, so that renewals are due when a case wants them.

use lease_core::{
    Acquisition, Attempt, BootId, BootInstant, Claims, CleanUp, Clock, Description, Fence, ForceRelease, Forced,
    Inspection, Lease, LeaseBackend, LeaseError, Limits, NamePage, Release, Renewal, ResourceName, SharedClock,
    SystemClock,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The real store, and a clock that is ahead of the machine's. Clones share both.
#[derive(Clone, Debug)]
pub(super) struct Shifted {
    inner: Arc<dyn LeaseBackend>,
    clock: Ahead,
    pub(super) counts: Arc<Counts>,
}

/// What was called.
#[derive(Debug, Default)]
pub(super) struct Counts {
    begun: watch::Sender<u64>,
    renewed: AtomicU64,
    ended: AtomicU64,
    releases: watch::Sender<u64>,
}

impl Counts {
    /// How many renewals have begun.
    pub(super) fn begun(&self) -> u64 {
        *self.begun.borrow()
    }

    /// How many were answered by `Renewed`.
    pub(super) fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::SeqCst)
    }

    /// How many are under way.
    pub(super) fn under_way(&self) -> u64 {
        self.begun().saturating_sub(self.ended.load(Ordering::SeqCst))
    }

    /// How many releases have ended.
    pub(super) fn releases(&self) -> u64 {
        *self.releases.borrow()
    }

    /// Waits until a renewal has begun.
    pub(super) async fn first(&self) {
        // The sender lives in `self`.
        drop(self.begun.subscribe().wait_for(|begun| *begun > 0).await);
    }
}

impl Shifted {
    pub(super) fn new(inner: Arc<dyn LeaseBackend>) -> Self {
        Self { inner, clock: Ahead(Arc::default()), counts: Arc::default() }
    }

    /// Moves the holder's clock forward.
    pub(super) fn advance(&self, by: Duration) {
        self.clock.0.send_modify(|ahead| *ahead = ahead.saturating_add(by));
    }
}

#[derive(Clone, Debug)]
struct Ahead(Arc<watch::Sender<Duration>>);

#[async_trait::async_trait]
impl Clock for Ahead {
    fn now(&self) -> BootInstant {
        SystemClock.now().saturating_add(*self.0.borrow())
    }

    fn boot_id(&self) -> BootId {
        SystemClock.boot_id()
    }

    async fn sleep_until(&self, at: BootInstant) {
        let mut ahead = self.0.subscribe();
        loop {
            ahead.mark_unchanged();
            let left = at.saturating_since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(Duration::from_secs(1))) => {}
                _ = ahead.changed() => {}
            }
        }
    }
}

/// A way to the store and back that others can come between, also where the store is in this process.
async fn travel() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

/// A renewal that ends, also when it is dropped.
struct UnderWay<'a>(&'a Counts);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl LeaseBackend for Shifted {
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
        Arc::new(self.clock.clone())
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let sent = self.clock.now();
        Ok(match self.inner.acquire(attempt).await? {
            Acquisition::Acquired(lease) => Acquisition::Acquired(Lease::granted(
                attempt,
                lease.token().cloned(),
                lease.granted_ttl(),
                sent,
                self.clock(),
            )),
            held @ Acquisition::Held(_) => held,
        })
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        self.counts.begun.send_modify(|begun| *begun = begun.saturating_add(1));
        let _under_way = UnderWay(&self.counts);
        let sent = self.clock.now();
        travel().await;
        let answer = self.inner.renew(lease).await;
        travel().await;
        Ok(match answer? {
            // The adapter has counted on the machine's clock, which is behind: the deadline never moves back, so this one counts.
            Renewal::Renewed(lease) => {
                self.counts.renewed.fetch_add(1, Ordering::SeqCst);
                Renewal::Renewed(lease.renewed(sent))
            }
            lost @ Renewal::Lost(_) => lost,
        })
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let answer = self.inner.release(lease).await;
        self.counts.releases.send_modify(|releases| *releases = releases.saturating_add(1));
        answer
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        self.inner.abandon(attempt).await
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
