//! A third party tests its own adapter: the suite's part is the ten lines of `main` up to the report.
//!
//! The adapter is a toy lock in this process, with one broken promise (its release ends whatever grant is there) and one
//! guarantee that it keeps and does not claim (it can list what is held). Both are found by name.
//!
//! Run it with `cargo run -p conformance-tests --no-default-features --example third_party`.

#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use lease_conformance::{Suite, Verdict, subject};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::{
    Acquisition, Attempt, Claim, Claims, CleanUp, Description, Fence, ForceRelease, Forced, Inspection, Lease,
    LeaseBackend, LeaseError, Limits, NamePage, Release, Renewal, ResourceName, SharedClock,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

#[tokio::main]
async fn main() -> Result<(), LeaseError> {
    let server = Toy::new()?;
    let toy = subject("toy", move || std::future::ready(Ok(server.clone())));
    let report = Suite::new(toy).run().await;

    for cell in &report.cells {
        let finding = cell.finding.as_deref().unwrap_or_default();
        println!("{:<10} {:<50} {finding}", cell.verdict.name(), cell.case);
    }
    let found = |verdict| {
        let cells = report.cells.iter().filter(move |cell| cell.verdict == verdict);
        cells.map(|cell| cell.case.as_str()).collect::<Vec<_>>()
    };
    let broken = [
        "fencing/pause-past-ttl/release-leaves-holder-alone",
        "release/superseded-leaves-holder-alone",
        "release/old-repeat-leaves-own-new-grant-alone",
        "unknown/release-in-doubt-superseded",
    ];
    // Whatever else a broken release breaks, these are about it.
    let seen = found(Verdict::Broken);
    assert!(
        broken.iter().all(|case| seen.contains(case)),
        "one promise is broken, and the cases about it see it: {seen:?}"
    );
    assert_eq!(found(Verdict::Unclaimed), ["list/by-prefix"], "one guarantee is not claimed");
    assert_eq!(report.exit_status(), 1, "a broken promise fails the run");
    Ok(())
}

/// A toy lock: clones are clients of one server.
#[derive(Clone, Debug)]
struct Toy {
    locks: MemoryBackend,
    latest: Arc<Mutex<HashMap<ResourceName, Lease>>>,
}

impl Toy {
    fn new() -> Result<Self, LeaseError> {
        let locks = MemoryBackend::on(MemoryStore::new()?);
        Ok(Self { locks, latest: Arc::default() })
    }
}

#[async_trait::async_trait]
impl LeaseBackend for Toy {
    fn description(&self) -> Description {
        Description::new("toy", "1".into(), "toy:".into())
    }

    /// It can list, and doesn't say so.
    fn claims(&self) -> Claims {
        Claims::of(&[Claim::FencingToken, Claim::MintsAboveFloor, Claim::IdleNamesForgotten])
    }

    fn limits(&self) -> Limits {
        self.locks.limits()
    }

    fn clock(&self) -> SharedClock {
        self.locks.clock()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let answer = self.locks.acquire(attempt).await?;
        if let Acquisition::Acquired(lease) = &answer {
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            latest.insert(lease.resource().clone(), lease.clone());
        }
        Ok(answer)
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        self.locks.renew(lease).await
    }

    /// The bug: like `DEL key`, it ends the grant that is there, whoever's it is.
    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).get(lease.resource()).cloned();
        self.locks.release(latest.as_ref().unwrap_or(lease)).await
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        self.locks.abandon(attempt).await
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        self.locks.force_release(order).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        self.locks.inspect(resource).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.locks.list(prefix, after, limit).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.locks.clean_up().await
    }

    fn fence(&self) -> Fence<'_> {
        Fence::TokenOnly
    }
}
