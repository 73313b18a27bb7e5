//! One holder on virtual time, whose client can be made to fail, and another client of the same store.

use lease_core::hold::{HoldOptions, Keeper, KeeperOptions, LeaseGuard};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::Scripted;
use lease_core::{LeaseBackend as _, ManualClock, ResourceName};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const TTL: Duration = Duration::from_secs(9);

/// How finely virtual time passes.
pub(crate) const STEP: Duration = Duration::from_millis(100);

pub(crate) struct Bench {
    pub(crate) clock: ManualClock,
    /// The holder's client.
    pub(crate) backend: Arc<Scripted>,
    pub(crate) keeper: Keeper,
    /// Another client of the same store.
    pub(crate) rival: MemoryBackend,
}

pub(crate) fn bench() -> Bench {
    bench_with(KeeperOptions::default())
}

pub(crate) fn bench_with(options: KeeperOptions) -> Bench {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock.shared()).unwrap();
    let backend = Arc::new(Scripted::new(Arc::new(MemoryBackend::on(store.clone()))));
    let keeper = Keeper::start_with(backend.clone(), options).unwrap();
    Bench { clock, backend, keeper, rival: MemoryBackend::on(store) }
}

impl Bench {
    pub(crate) async fn acquire(&self) -> LeaseGuard {
        self.acquire_with(HoldOptions::default()).await
    }

    pub(crate) async fn acquire_with(&self, options: HoldOptions) -> LeaseGuard {
        let guard = self.keeper.acquire("r", TTL, options).await.unwrap().unwrap();
        settle().await;
        guard
    }

    /// Lets virtual time pass in small steps, and everybody act in each.
    pub(crate) async fn pass(&self, time: Duration) {
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.clock.advance(STEP);
            settle().await;
        }
    }

    pub(crate) async fn is_free(&self) -> bool {
        self.rival.inspect(&ResourceName::parse("r").unwrap()).await.unwrap().held.is_none()
    }
}

/// Lets all tasks of this single-threaded runtime run until they wait.
pub(crate) async fn settle() {
    for _ in 0..30 {
        tokio::task::yield_now().await;
    }
}
