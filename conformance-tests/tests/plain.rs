//! The plain alternatives to a guard, each with one thing broken: the case that is for it finds it, by name; the whole one passes.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_conformance::subject::{Place, ServerControl, TestDestination, Unfenced};
use lease_conformance::{MemoryPlace, Report, Suite, Verdict, subject};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::plain::{IdempotencyKey, Once, Version};
use lease_core::{GuardError, LeaseError, ResourceName};
use std::sync::Arc;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Writes whatever the version is.
    IgnoresVersion,
    /// Refuses every condition.
    RefusesAll,
    /// Makes the effect at each call.
    ForgetsKeys,
    /// Does not compare the payload.
    IgnoresPayload,
    /// Lets the last one win.
    LastWins,
    /// Makes an effect once although it has no key.
    AddsOnce,
}

#[derive(Debug)]
struct Flawed(MemoryPlace, Flaw);

#[async_trait::async_trait]
impl Place for Flawed {
    fn kind(&self) -> &'static str {
        "flawed"
    }

    fn store_of(&self) -> Option<&str> {
        None
    }

    fn url(&self, namespace: &str) -> Option<String> {
        self.0.url(namespace)
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        self.0.open(namespace).await
    }

    fn unfenced(&self, namespace: &str) -> Option<Arc<dyn Unfenced>> {
        Some(Arc::new(Data(self.0.unfenced(namespace)?, self.1)))
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Data(Arc<dyn Unfenced>, Flaw);

#[async_trait::async_trait]
impl Unfenced for Data {
    async fn set_up(&self) -> Result<(), LeaseError> {
        self.0.set_up().await
    }

    async fn read(&self, resource: &ResourceName) -> Result<(Version, String), LeaseError> {
        self.0.read(resource).await
    }

    async fn write_at(&self, resource: &ResourceName, read: Version, text: &str) -> Result<bool, LeaseError> {
        let read = match self.1 {
            Flaw::IgnoresVersion => self.read(resource).await?.0,
            Flaw::RefusesAll => return Ok(false),
            _ => read,
        };
        self.0.write_at(resource, read, text).await
    }

    async fn add_once(
        &self,
        resource: &ResourceName,
        key: &IdempotencyKey,
        text: &str,
    ) -> Result<Option<Once>, LeaseError> {
        let answer = self.0.add_once(resource, key, text).await?;
        match (self.1, answer) {
            (Flaw::ForgetsKeys, Some(Once::Before)) => {
                self.0.add(resource, text).await?;
                Ok(Some(Once::First))
            }
            (Flaw::IgnoresPayload, None) => Ok(Some(Once::Before)),
            (Flaw::LastWins, None) => {
                let (version, _) = self.0.read(resource).await?;
                self.0.write_at(resource, version, text).await?;
                Ok(None)
            }
            _ => Ok(answer),
        }
    }

    async fn add(&self, resource: &ResourceName, text: &str) -> Result<(), LeaseError> {
        if self.1 == Flaw::AddsOnce && !self.0.read(resource).await?.1.is_empty() {
            return Ok(());
        }
        self.0.add(resource, text).await
    }
}

async fn report(flaw: Flaw) -> Report {
    let store = MemoryStore::new().unwrap();
    let subject = subject("memory", move || std::future::ready(Ok(MemoryBackend::on(store.clone()))));
    Suite::new(subject).places(vec![Arc::new(Flawed(MemoryPlace::new(), flaw))]).only("fencing/plain/").run().await
}

/// The cases that are red.
async fn found(flaw: Flaw) -> Vec<String> {
    let report = report(flaw).await;
    assert_eq!(report.cells.len(), 6, "{:?}", report.missing);
    let green = [Verdict::Kept, Verdict::ControlLanded];
    let red = report.cells.into_iter().filter(|cell| !green.contains(&cell.verdict));
    red.map(|cell| cell.case.strip_prefix("fencing/plain/").unwrap().to_owned()).collect()
}

#[tokio::test]
async fn each_flaw_is_found_by_its_case() {
    for (flaw, cases) in [
        (Flaw::None, [].as_slice()),
        (Flaw::IgnoresVersion, &["version-condition"]),
        (Flaw::RefusesAll, &["version-condition", "version-read-late"]),
        (Flaw::ForgetsKeys, &["idempotency-b-first", "idempotency-a-first"]),
        (Flaw::IgnoresPayload, &["idempotency-other-payload"]),
        (Flaw::LastWins, &["idempotency-other-payload"]),
        (Flaw::AddsOnce, &["effect-without-key"]),
    ] {
        assert_eq!(found(flaw).await, cases, "{flaw:?}");
    }
}

/// A place that has no such data, as most have none: no cell, and nothing that would be red.
#[tokio::test]
async fn a_place_without_such_data_has_no_cell() {
    #[derive(Debug)]
    struct Guarded(MemoryPlace);

    #[async_trait::async_trait]
    impl Place for Guarded {
        fn kind(&self) -> &'static str {
            "guarded"
        }

        fn store_of(&self) -> Option<&str> {
            None
        }

        fn url(&self, namespace: &str) -> Option<String> {
            self.0.url(namespace)
        }

        async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
            self.0.open(namespace).await
        }

        fn unfenced(&self, _namespace: &str) -> Option<Arc<dyn Unfenced>> {
            None
        }

        fn server(&self) -> Option<Arc<dyn ServerControl>> {
            None
        }

        fn lives_in_process(&self) -> bool {
            true
        }
    }

    let store = MemoryStore::new().unwrap();
    let subject = subject("memory", move || std::future::ready(Ok(MemoryBackend::on(store.clone()))));
    let suite = Suite::new(subject).places(vec![Arc::new(Guarded(MemoryPlace::new()))]);
    let report = suite.only("fencing/plain/").only("exclusion/same-label").run().await;
    assert_eq!(report.cells.len(), 1);
    assert_eq!(report.exit_status(), 0);
}
