//! An own scheme: `timed+URL` is any other URL, with the time of each call printed.
//!
//! A wrapper forwards *all* operations; the trait has no default methods, so the compiler finds a forgotten one.

#![expect(clippy::print_stdout, reason = "this program prints the calls")]

use leasehold::{
    Acquisition, Attempt, Claims, CleanUp, Description, Fence, ForceRelease, Forced, Inspection, Lease, LeaseBackend,
    LeaseError, LeaseExt, Limits, NamePage, Registry, Release, Renewal, ResourceName, SharedClock,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LeaseError> {
    let inner = Registry::new();
    let mut registry = inner.clone();
    registry.register("timed+memory", move |url| {
        let inner = inner.clone();
        async move {
            // The registry has found `timed+memory` at the beginning of this URL, in whatever case.
            let rest = url.split_once('+').map_or("", |(_, rest)| rest);
            let timed: Arc<dyn LeaseBackend> = Arc::new(Timed(inner.connect(rest).await?));
            Ok(timed)
        }
    })?;

    println!("schemes: {}", registry.schemes().collect::<Vec<_>>().join(", "));
    let backend = registry.connect("timed+memory:example").await?;
    if let Some(lease) = backend.try_acquire("accounts/42", Duration::from_secs(10)).await? {
        let released = backend.release(&lease).await?;
        println!("{released:?}");
    }
    // Its own refusals are as good as the built-in ones.
    if let Err(error) = registry.connect("tmied+memory:example").await {
        println!("{error}");
    }
    Ok(())
}

/// Prints how long each call takes.
#[derive(Debug)]
struct Timed(Arc<dyn LeaseBackend>);

async fn timed<T>(call: &str, future: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = future.await;
    println!("{call}: {:?}", begun.elapsed());
    answer
}

#[leasehold::async_trait]
impl LeaseBackend for Timed {
    fn description(&self) -> Description {
        self.0.description()
    }

    fn claims(&self) -> Claims {
        self.0.claims()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn clock(&self) -> SharedClock {
        self.0.clock()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        timed("acquire", self.0.acquire(attempt)).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        timed("renew", self.0.renew(lease)).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        timed("release", self.0.release(lease)).await
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        timed("abandon", self.0.abandon(attempt)).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        timed("force_release", self.0.force_release(order)).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        timed("inspect", self.0.inspect(resource)).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        timed("list", self.0.list(prefix, after, limit)).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        timed("clean_up", self.0.clean_up()).await
    }

    fn fence(&self) -> Fence<'_> {
        self.0.fence()
    }
}
