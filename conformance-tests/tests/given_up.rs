//! A case that ends in the middle of a fault, by a panic or because its run is given up, takes the fault back.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_conformance::faults::{FaultBench, FaultyPath, HandEdit, OnceFault, at_calls};
use lease_conformance::subject::{PlainWriter, ServerControl, Subject};
use lease_conformance::{Suite, Verdict};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::{LeaseBackend, LeaseError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const CASE: &str = "unknown/silent-peer-every-call-ends";

/// A store in memory, and one path to it for the whole run.
#[derive(Debug)]
struct OnePath {
    store: MemoryStore,
    path: Arc<Noted>,
}

/// Notes what is done to the path. Calls behind it have no limit.
#[derive(Debug)]
struct Noted {
    bench: Arc<dyn FaultBench>,
    panics: bool,
    is_hole: AtomicBool,
    heals: AtomicU32,
}

fn subject(panics: bool) -> (Arc<OnePath>, Arc<Noted>) {
    let store = MemoryStore::new().unwrap();
    let client = Arc::new(MemoryBackend::on(store.clone()));
    let bench = at_calls(client, Duration::from_hours(1));
    let path = Arc::new(Noted { bench, panics, is_hole: AtomicBool::new(false), heals: AtomicU32::new(0) });
    (Arc::new(OnePath { store, path: Arc::clone(&path) }), path)
}

#[async_trait::async_trait]
impl Subject for OnePath {
    fn name(&self) -> &'static str {
        "one path"
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        Ok(Arc::new(MemoryBackend::on(self.store.clone())))
    }

    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>> {
        None
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn own_store_url(&self) -> Option<String> {
        None
    }

    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    async fn fault_bench(&self, _call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        Some(Ok(Arc::new(Shared(Arc::clone(&self.path)))))
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Shared(Arc<Noted>);

#[async_trait::async_trait]
impl FaultBench for Shared {
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        self.0.bench.client().await
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn path(&self) -> &dyn FaultyPath {
        self.0.as_ref()
    }
}

impl FaultyPath for Noted {
    fn kind(&self) -> &'static str {
        self.bench.path().kind()
    }

    fn once_after(&self, passed: u32, fault: OnceFault) {
        self.bench.path().once_after(passed, fault);
    }

    fn happened(&self) -> bool {
        self.bench.path().happened()
    }

    fn black_hole(&self, on: bool) {
        self.bench.path().black_hole(on);
        self.is_hole.store(on, Ordering::SeqCst);
        assert!(!self.panics, "in the middle of a fault");
    }

    fn cut(&self) {
        self.bench.path().cut();
    }

    fn refuse(&self, on: bool) {
        self.bench.path().refuse(on);
    }

    fn deliver(&self) {
        self.bench.path().deliver();
    }

    fn heal(&self) {
        self.bench.path().heal();
        self.heals.fetch_add(1, Ordering::SeqCst);
    }

    fn counts(&self) -> (u64, u64) {
        self.bench.path().counts()
    }
}

#[tokio::test]
async fn a_case_that_panics_takes_its_fault_back() {
    let (subject, path) = subject(true);
    let report = Suite::new(subject).only(CASE).run().await;
    assert_eq!(report.cells_of(CASE).next().unwrap().verdict, Verdict::Broken);
    assert_eq!(path.heals.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_run_that_is_given_up_takes_its_fault_back() {
    let (subject, path) = subject(false);
    let run = tokio::spawn(async move { Suite::new(subject).only(CASE).run().await });
    while !path.is_hole.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    // By itself the case would wait for seconds: nobody answers, and the calls have no limit.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(path.heals.load(Ordering::SeqCst), 1);
}
