//! The default place: a guarded destination in memory.

use crate::subject::{Place, ServerControl, TestDestination};
use lease_core::memory::MemoryDestination;
use lease_core::{Authority, Claims, FencingToken, GuardError, GuardedDestination, ResourceName, Stored};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Guarded destinations in memory, one per namespace. They can only be opened in this process.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlace {
    destinations: Arc<Mutex<HashMap<String, MemoryDestination>>>,
}

impl MemoryPlace {
    /// A place with no destination yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait::async_trait]
impl Place for MemoryPlace {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn store_of(&self) -> Option<&str> {
        None
    }

    fn url(&self, _namespace: &str) -> Option<String> {
        None
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        let mut destinations = self.destinations.lock().unwrap_or_else(PoisonError::into_inner);
        let destination = destinations.entry(namespace.to_owned()).or_default();
        Ok(Arc::new(InMemory(destination.clone())))
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct InMemory(MemoryDestination);

#[async_trait::async_trait]
impl GuardedDestination for InMemory {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    /// Its interface has no transaction that a caller could roll back, so that claim is not made here.
    fn claims(&self) -> Claims {
        Claims::of(&[lease_core::Claim::RefusalUncommittable])
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        self.0.adopt(expected_old, new).await
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.0.seal(resource, token).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        self.0.write(resource, token, value).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        self.0.read(resource).await
    }
}

#[async_trait::async_trait]
impl TestDestination for InMemory {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        self.0.write_plain(resource, value);
        Ok(())
    }

    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        // Check and write are one call, so a caller has nothing left to commit after the refusal.
        self.0.write(resource, token, value).await
    }

    async fn write_and_roll_back(
        &self,
        _resource: &ResourceName,
        _token: &FencingToken,
        _value: &str,
    ) -> Option<Result<(), GuardError>> {
        None
    }
}
