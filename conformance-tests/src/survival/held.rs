//! What A holds, as it knows it.

use lease_core::{Lease, LeaseBackend, Renewal};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One lease of A's. Clones share it: whoever compares with A's deadline sees the one of the last renewal.
#[derive(Clone)]
pub(super) struct Held(Arc<Mutex<Lease>>);

impl Held {
    pub(super) fn of(lease: Lease) -> Self {
        Self(Arc::new(Mutex::new(lease)))
    }

    /// As it is now.
    pub(super) fn now(&self) -> Lease {
        self.lock().clone()
    }

    /// Renews it once.
    pub(super) async fn renew(&self, client: &dyn LeaseBackend) -> Result<(), String> {
        match client.renew(&self.now()).await {
            Ok(Renewal::Renewed(newer)) => {
                *self.lock() = newer;
                Ok(())
            }
            Ok(Renewal::Lost(reason)) => Err(format!("lost ({reason:?})")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lease> {
        // Every change is one step: a panic elsewhere left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
