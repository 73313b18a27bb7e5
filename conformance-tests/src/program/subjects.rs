//! The lease backends of this workspace as subjects of the suite.

use super::bench::ProxyBench;
use super::servers::Home;
use super::tidy::Tidy;
use super::{Backend, stores};
use crate::faults::{FaultBench, HandEdit};
use crate::subject::{PlainWriter, ServerControl, Subject, faults_at_calls};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::{LeaseBackend, LeaseError, ResourceName};
use std::sync::Arc;
use std::time::Duration;

/// How soon a forgetful client may forget an idle name.
const FORGET_AFTER_MS: &str = "200";

/// How long one call may take: the suite runs many cases at once, on machines that are busy with other things too.
const CALL_TIMEOUT_MS: &str = "10000";

/// The subject for `backend` on the store at `home`, in `namespace`.
pub(crate) fn on_store(backend: Backend, home: &Home, namespace: &str, tidy: &Tidy) -> Arc<dyn Subject> {
    let url = home.url_with(&[("namespace", namespace), ("call_timeout_ms", CALL_TIMEOUT_MS)]);
    let url = match url.strip_prefix("redis://") {
        Some(rest) if backend == Backend::RedisFred => format!("redis+fred://{rest}"),
        _ => url,
    };
    tidy.leases(&url);
    Arc::new(OnStore { backend, url, control: home.control.clone() })
}

#[derive(Debug)]
struct OnStore {
    backend: Backend,
    url: String,
    control: Option<Arc<dyn ServerControl>>,
}

#[async_trait::async_trait]
impl Subject for OnStore {
    fn name(&self) -> &str {
        self.backend.name()
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        leasehold::connect(&self.url).await
    }

    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>> {
        let url = format!("{}&idle_retention_ms={FORGET_AFTER_MS}", self.url);
        Some(leasehold::connect(&url).await)
    }

    fn worker_url(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>> {
        Some(Arc::new(ConnectsFirst { url: self.url.clone() }))
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        self.control.clone()
    }

    fn own_store_url(&self) -> Option<String> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }

    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        if self.backend.store().server().is_some() {
            return Some(ProxyBench::before(&self.url, call_timeout));
        }
        faults_at_calls(self, call_timeout).await
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        Some(Arc::new(ConnectsFirst { url: self.url.clone() }))
    }
}

/// Hands on the store that connect when they are used, since a subject hands it out without waiting.
#[derive(Debug)]
struct ConnectsFirst {
    url: String,
}

#[async_trait::async_trait]
impl PlainWriter for ConnectsFirst {
    async fn write(&self, resource: &ResourceName, value: &str) -> Result<(), LeaseError> {
        stores::plain_writer(&self.url).await?.write(resource, value).await
    }
}

#[async_trait::async_trait]
impl HandEdit for ConnectsFirst {
    async fn delete_record(&self, resource: &ResourceName) -> Result<(), LeaseError> {
        stores::delete_record(&self.url, resource).await
    }
}

/// The subject for the memory backend, on a store of its own.
///
/// # Errors
/// When the operating system gives no random numbers.
pub(crate) fn in_memory() -> Result<Arc<dyn Subject>, LeaseError> {
    Ok(Arc::new(InMemory { store: MemoryStore::new()? }))
}

#[derive(Debug)]
struct InMemory {
    store: MemoryStore,
}

#[async_trait::async_trait]
impl Subject for InMemory {
    fn name(&self) -> &str {
        Backend::Memory.name()
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        Ok(Arc::new(MemoryBackend::on(self.store.clone())))
    }

    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>> {
        // It forgets at every clean-up, without any setting.
        Some(self.client().await)
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        faults_at_calls(self, call_timeout).await
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        true
    }

    fn own_store_url(&self) -> Option<String> {
        Some("memory:".to_owned())
    }
}
