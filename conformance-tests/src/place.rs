//! The default place: a guarded destination in memory.

use crate::subject::{Place, ServerControl, TestDestination, Unfenced};
use lease_core::memory::MemoryDestination;
use lease_core::plain::{IdempotencyKey, Once, Version};
use lease_core::{Authority, Claims, FencingToken, GuardError, GuardedDestination, LeaseError, ResourceName, Stored};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Guarded destinations in memory, one per namespace. They can only be opened in this process.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlace {
    destinations: Arc<Mutex<HashMap<String, MemoryDestination>>>,
    unfenced: Arc<Mutex<HashMap<String, Table>>>,
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

    fn unfenced(&self, namespace: &str) -> Option<Arc<dyn Unfenced>> {
        let mut tables = self.unfenced.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::new(tables.entry(namespace.to_owned()).or_default().clone()))
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

/// Data that are written without a token. One lock is one transaction.
#[derive(Clone, Debug, Default)]
struct Table(Arc<Mutex<Rows>>);

#[derive(Debug, Default)]
struct Rows {
    texts: HashMap<ResourceName, (u64, String)>,
    once: HashMap<IdempotencyKey, String>,
}

impl Table {
    /// A panic of another user left nothing half done.
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl Unfenced for Table {
    async fn set_up(&self) -> Result<(), LeaseError> {
        Ok(())
    }

    async fn read(&self, resource: &ResourceName) -> Result<(Version, String), LeaseError> {
        let (version, text) = self.rows().texts.get(resource).cloned().unwrap_or_default();
        Ok((Version::new(version), text))
    }

    async fn write_at(&self, resource: &ResourceName, read: Version, text: &str) -> Result<bool, LeaseError> {
        let mut rows = self.rows();
        let row = rows.texts.entry(resource.clone()).or_default();
        let fits = row.0 == read.number();
        if fits {
            *row = (row.0.saturating_add(1), text.to_owned());
        }
        Ok(fits)
    }

    async fn add_once(
        &self,
        resource: &ResourceName,
        key: &IdempotencyKey,
        text: &str,
    ) -> Result<Option<Once>, LeaseError> {
        let mut rows = self.rows();
        if let Some(before) = rows.once.get(key) {
            return Ok((before == text).then_some(Once::Before));
        }
        rows.once.insert(key.clone(), text.to_owned());
        rows.texts.entry(resource.clone()).or_default().1.push_str(text);
        Ok(Some(Once::First))
    }

    async fn add(&self, resource: &ResourceName, text: &str) -> Result<(), LeaseError> {
        self.rows().texts.entry(resource.clone()).or_default().1.push_str(text);
        Ok(())
    }
}
