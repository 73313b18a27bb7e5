//! The stores of this workspace as places for stale writes.

use super::servers::Home;
use super::tidy::Tidy;
use super::{Backend, stores};
use crate::MemoryPlace;
use crate::subject::{Place, ServerControl, TestDestination, Unfenced};
use lease_core::GuardError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A store as a place, under namespaces that begin with `prefix`.
#[derive(Debug)]
pub(crate) struct StorePlace {
    home: Home,
    store_of: Option<String>,
    prefix: String,
    tidy: Tidy,
    /// The store's namespace for each of the suite's: those may be longer than a store allows.
    names: Mutex<HashMap<String, String>>,
}

impl StorePlace {
    pub(crate) fn on(home: &Home, store_of: Option<&str>, prefix: String, tidy: &Tidy) -> Arc<dyn Place> {
        Arc::new(Self {
            home: home.clone(),
            store_of: store_of.map(ToOwned::to_owned),
            prefix,
            tidy: tidy.clone(),
            names: Mutex::default(),
        })
    }

    fn url_of(&self, namespace: &str) -> String {
        // Inserting is one step: a panic elsewhere left the table whole.
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let next = names.len();
        let name = names.entry(namespace.to_owned()).or_insert_with(|| format!("{}_{next}", self.prefix));
        self.home.url_with(&[("namespace", name)])
    }
}

#[async_trait::async_trait]
impl Place for StorePlace {
    fn kind(&self) -> &str {
        self.home.store.name()
    }

    fn store_of(&self) -> Option<&str> {
        self.store_of.as_deref()
    }

    fn url(&self, namespace: &str) -> Option<String> {
        Some(self.url_of(namespace))
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        let url = self.url_of(namespace);
        // Before it is made, so that a failure half-way is tidied up too. Workers open only what was opened here first.
        self.tidy.destination(&url);
        stores::destination(&url).await
    }

    fn unfenced(&self, namespace: &str) -> Option<Arc<dyn Unfenced>> {
        let url = self.url_of(namespace);
        let data = stores::unfenced(&url)?;
        self.tidy.destination(&url);
        Some(data)
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        self.home.control.clone()
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

/// Destinations in memory, as the memory backend's own store.
#[derive(Debug)]
pub(crate) struct OwnMemory(MemoryPlace);

impl OwnMemory {
    pub(crate) fn place() -> Arc<dyn Place> {
        Arc::new(Self(MemoryPlace::new()))
    }
}

#[async_trait::async_trait]
impl Place for OwnMemory {
    fn kind(&self) -> &str {
        self.0.kind()
    }

    fn store_of(&self) -> Option<&str> {
        Some(Backend::Memory.name())
    }

    fn url(&self, namespace: &str) -> Option<String> {
        self.0.url(namespace)
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        self.0.open(namespace).await
    }

    fn unfenced(&self, namespace: &str) -> Option<Arc<dyn Unfenced>> {
        self.0.unfenced(namespace)
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        self.0.server()
    }

    fn lives_in_process(&self) -> bool {
        self.0.lives_in_process()
    }
}
