//! A guarded destination in memory.

use crate::{
    Authority, Claim, Claims, FencingToken, GrantId, GuardError, GuardedDestination, Refusal, ResourceName, Stored,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A guarded destination in memory. Clones are the same destination.
#[derive(Clone, Debug, Default)]
pub struct MemoryDestination {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    trusted: Option<Authority>,
    /// By authority too, so that an authority that is adopted again finds its old marks.
    marks: HashMap<(ResourceName, Authority), (u64, GrantId)>,
    values: HashMap<ResourceName, String>,
}

impl State {
    fn mark(&self, resource: &ResourceName) -> Option<(u64, GrantId)> {
        self.marks.get(&(resource.clone(), self.trusted.clone()?)).copied()
    }

    fn admit(&mut self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        Refusal::judge(self.trusted.as_ref(), self.mark(resource), token)
            .map_err(|refusal| GuardError::Refused { resource: resource.clone(), refusal })?;
        self.marks.insert((resource.clone(), token.authority().clone()), (token.value(), token.grant()));
        Ok(())
    }
}

impl MemoryDestination {
    /// An empty destination that trusts no authority yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes without any check, as code that knows nothing of fencing would.
    pub fn write_plain(&self, resource: &ResourceName, value: &str) {
        self.lock().values.insert(resource.clone(), value.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl GuardedDestination for MemoryDestination {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn claims(&self) -> Claims {
        Claims::of(&[Claim::RefusalUncommittable])
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        let mut state = self.lock();
        if state.trusted.as_ref() != expected_old {
            return Err(GuardError::AdoptConflict { found: state.trusted.clone() });
        }
        state.trusted = Some(new.clone());
        Ok(())
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.lock().admit(resource, token)
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let mut state = self.lock();
        state.admit(resource, token)?;
        state.values.insert(resource.clone(), value.to_owned());
        Ok(())
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        let state = self.lock();
        Ok(Stored::new(state.values.get(resource).cloned(), state.mark(resource)))
    }
}
