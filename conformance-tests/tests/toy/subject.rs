//! The toy store as a subject, with hands on it.

use super::{Break, Toy};
use lease_conformance::faults::{FaultBench, HandEdit};
use lease_conformance::subject::{PlainWriter, ServerControl, Subject, faults_at_calls};
use lease_core::{LeaseBackend, LeaseError, ResourceName};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub struct ToySubject(pub Toy);

#[async_trait::async_trait]
impl Subject for ToySubject {
    fn name(&self) -> &'static str {
        "toy"
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        Ok(Arc::new(self.0.another()))
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
        Some(Arc::new(Hands(self.0.clone())))
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        Some(Arc::new(Hands(self.0.clone())))
    }

    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        faults_at_calls(self, call_timeout).await
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

/// The hands on the store itself.
#[derive(Debug)]
struct Hands(Toy);

#[async_trait::async_trait]
impl PlainWriter for Hands {
    async fn write(&self, resource: &ResourceName, value: &str) -> Result<(), LeaseError> {
        let key = self.0.key(resource);
        if let Some(record) = self.0.lock().records.get_mut(&key)
            && !self.0.is(Break::PlainWriteIsLost)
        {
            record.register = Some(value.to_owned());
        }
        Ok(())
    }
}

/// What the toys call a restart: everything that is not durable is gone.
impl ServerControl for Hands {
    fn kill_and_restart(&self) -> Result<(u32, u32), String> {
        let mut store = self.0.lock();
        if self.0.is(Break::RestartForgetsLeases) {
            store.records.clear();
        }
        if self.0.is(Break::RestartForgetsCounter) {
            store.last_value = 0;
            store.counters.clear();
        }
        Ok((1, 2))
    }

    fn pause(&self) -> Result<u32, String> {
        Err("it is no process".to_owned())
    }

    fn resume(&self) -> Result<(), String> {
        Ok(())
    }

    fn can_be_down(&self) -> bool {
        false
    }

    fn kill(&self) -> Result<u32, String> {
        Err("it is no process".to_owned())
    }

    fn start(&self) -> Result<u32, String> {
        Err("it is no process".to_owned())
    }
}
