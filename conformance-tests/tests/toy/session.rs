//! What a client of the toy store keeps for as long as it lives.

use super::store::Store;
use lease_core::{BootInstant, ResourceName};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Session {
    /// Ends what its client holds, as a lock in a session does.
    holds: Option<(Arc<Mutex<Store>>, u64)>,
    says_goodbye: bool,
    pub ttl: OnceLock<Duration>,
    first_tries: Mutex<HashMap<ResourceName, BootInstant>>,
}

impl Session {
    pub fn new(holds: Option<(Arc<Mutex<Store>>, u64)>, says_goodbye: bool) -> Self {
        Self { holds, says_goodbye, ttl: OnceLock::new(), first_tries: Mutex::default() }
    }

    pub fn first_try(&self, name: &ResourceName, now: BootInstant) -> BootInstant {
        *self.first_tries.lock().unwrap().entry(name.clone()).or_insert(now)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.says_goodbye {
            tokio::runtime::Handle::current().spawn(async {});
        }
        let Some((store, client)) = &self.holds else { return };
        store.lock().unwrap().end_all_of(*client);
    }
}
