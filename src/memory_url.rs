//! `memory:` and `memory:NAME`.

use crate::memory::{MemoryBackend, MemoryDestination, MemoryStore};
use crate::{GuardedDestination, LeaseBackend, LeaseError, StoreUrl};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Name and namespace.
type Key = (String, String);

/// The memory stores that have a name, where there is somebody to keep them.
#[derive(Debug)]
pub(crate) struct MemoryStores {
    named: Option<Mutex<Named>>,
}

#[derive(Debug, Default)]
struct Named {
    stores: HashMap<Key, MemoryStore>,
    destinations: HashMap<Key, MemoryDestination>,
}

impl MemoryStores {
    pub(crate) fn named() -> Self {
        Self { named: Some(Mutex::default()) }
    }

    pub(crate) fn unnamed() -> Self {
        Self { named: None }
    }

    pub(crate) fn backend(&self, url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        let store = match parse(url)? {
            None => MemoryStore::new()?,
            Some(key) => match self.lock()?.stores.entry(key) {
                Entry::Occupied(there) => there.get().clone(),
                Entry::Vacant(free) => free.insert(MemoryStore::new()?).clone(),
            },
        };
        Ok(Arc::new(MemoryBackend::on(store)))
    }

    pub(crate) fn destination(&self, url: &str) -> Result<Arc<dyn GuardedDestination>, LeaseError> {
        let destination = match parse(url)? {
            None => MemoryDestination::new(),
            Some(key) => self.lock()?.destinations.entry(key).or_default().clone(),
        };
        Ok(Arc::new(destination))
    }

    fn lock(&self) -> Result<MutexGuard<'_, Named>, LeaseError> {
        let named = self.named.as_ref().ok_or_else(|| LeaseError::InvalidConfig {
            reason: "a named memory store lives in a `Registry`: keep one and call its `connect`, or write `memory:` \
                     for a store of this connect's own"
                .into(),
        })?;
        // Each step is one map operation, so a panic in another thread left nothing half-done.
        Ok(named.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The name and namespace; `None` for `memory:` alone.
fn parse(text: &str) -> Result<Option<Key>, LeaseError> {
    let parsed = StoreUrl::parse(text, &[])?;
    let name = parsed.url.path();
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    if parsed.url.has_authority() || parsed.url.fragment().is_some() || !is_plain || name.len() > 64 {
        return Err(LeaseError::InvalidConfig {
            reason: "write `memory:`, or `memory:NAME` with a name of at most 64 characters A-Z a-z 0-9 _ - .".into(),
        });
    }
    if parsed.options.epoch != 0 {
        // Accepting it and doing nothing would be a lie: the store draws a new authority whenever it begins.
        return Err(LeaseError::InvalidConfig {
            reason: "a memory store has no `epoch`: it can't be restored, and each new one has an authority of its own"
                .into(),
        });
    }
    // The other common parameters are kept by having nothing to bound: no I/O, and no record of an idle name.
    let namespace = parsed.options.namespace.as_str().to_owned();
    Ok((!name.is_empty()).then(|| (name.to_owned(), namespace)))
}
