//! A guarded destination in memory with one guarantee broken, or none.

use lease_conformance::subject::{Place, ServerControl, TestDestination, Unfenced};
use lease_core::{
    Authority, Claim, Claims, FencingToken, GrantId, GuardError, GuardedDestination, LeaseError, Refusal, ResourceName,
    Stored,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The guarantee that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    AdoptDoesNotCompare,
    AdoptForgetsMarks,
    ChecksThenWrites,
    ComparesDoubles,
    ComparesText,
    ConflictPasses,
    DroppedWriteKeepsLock,
    ForgetsMark,
    IgnoresAuthority,
    MarkStaysAfterRollBack,
    OneMarkForAll,
    RefusalCanBeCommitted,
    RefusedSecondWrite,
    RefusedTokenBecomesMark,
    RestartForgetsMarks,
    SealDoesNothing,
    SealWrites,
    TellsWrittenWhenRefused,
    WritesAreLost,
}

/// Destinations that share one sabotage.
#[derive(Clone, Debug)]
pub struct ToyPlace {
    broken: Option<Break>,
    open: Arc<Mutex<HashMap<String, ToyDestination>>>,
}

impl ToyPlace {
    pub fn new(broken: Option<Break>) -> Self {
        Self { broken, open: Arc::default() }
    }
}

#[async_trait::async_trait]
impl Place for ToyPlace {
    fn kind(&self) -> &'static str {
        "toy"
    }

    fn store_of(&self) -> Option<&str> {
        None
    }

    fn url(&self, _namespace: &str) -> Option<String> {
        None
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        let new = || ToyDestination {
            broken: self.broken,
            steps: Arc::default(),
            locked: Arc::default(),
            state: Arc::default(),
        };
        let mut open = self.open.lock().unwrap();
        Ok(Arc::new(open.entry(namespace.to_owned()).or_insert_with(new).clone()))
    }

    fn unfenced(&self, _namespace: &str) -> Option<Arc<dyn Unfenced>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        Some(Arc::new(self.clone()))
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

/// What the toys call a restart: everything that is not durable is gone.
impl ServerControl for ToyPlace {
    fn kill_and_restart(&self) -> Result<(u32, u32), String> {
        if self.broken == Some(Break::RestartForgetsMarks) {
            let open = self.open.lock().unwrap();
            open.values().for_each(|destination| destination.state.lock().unwrap().marks.clear());
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

type Mark = (u64, GrantId);

#[derive(Clone, Debug)]
struct ToyDestination {
    broken: Option<Break>,
    steps: Arc<AtomicU64>,
    locked: Arc<AtomicBool>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    trusted: Option<Authority>,
    marks: HashMap<(String, Authority), Mark>,
    values: HashMap<ResourceName, String>,
}

impl ToyDestination {
    fn is(&self, sabotage: Break) -> bool {
        self.broken == Some(sabotage)
    }

    fn key(&self, resource: &ResourceName, authority: &Authority) -> (String, Authority) {
        let name = if self.is(Break::OneMarkForAll) { "" } else { resource.as_str() };
        (name.to_owned(), authority.clone())
    }

    fn put(&self, state: &mut State, resource: &ResourceName, value: &str) {
        if !self.is(Break::WritesAreLost) {
            state.values.insert(resource.clone(), value.to_owned());
        }
    }

    fn judge(&self, state: &State, resource: &ResourceName, token: &FencingToken) -> Result<(), Refusal> {
        let mark = state.marks.get(&self.key(resource, token.authority())).copied();
        let trusted = if self.is(Break::IgnoresAuthority) { Some(token.authority()) } else { state.trusted.as_ref() };
        let below = |mark: u64| Err(Refusal::Stale { presented: token.value(), mark });
        Refusal::judge(trusted, None, token)?;
        match (self.broken, mark) {
            (Some(Break::ForgetsMark), _) => Ok(()),
            (Some(Break::RefusedSecondWrite), Some((mark, _))) if token.value() == mark => below(mark),
            (Some(Break::ComparesText), Some((mark, _))) if token.value() != mark => {
                if token.value().to_string() < mark.to_string() { below(mark) } else { Ok(()) }
            }
            (Some(Break::ComparesDoubles), Some((mark, _))) if token.value() as f64 == mark as f64 => Ok(()),
            (Some(Break::ConflictPasses), Some((mark, _))) if token.value() == mark => Ok(()),
            _ => Refusal::judge(trusted, mark, token),
        }
    }

    fn admit(&self, state: &mut State, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        let judged = self.judge(state, resource, token);
        if judged.is_ok() || self.is(Break::RefusedTokenBecomesMark) {
            let key = self.key(resource, token.authority());
            state.marks.insert(key, (token.value(), token.grant()));
        }
        judged.map_err(|refusal| GuardError::Refused { resource: resource.clone(), refusal })
    }
}

#[async_trait::async_trait]
impl GuardedDestination for ToyDestination {
    fn kind(&self) -> &'static str {
        "toy"
    }

    fn claims(&self) -> Claims {
        Claims::of(&[Claim::RefusalUncommittable, Claim::MarkRollsBack, Claim::MarkSurvivesRestart])
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        let mut state = self.state.lock().unwrap();
        if state.trusted.as_ref() != expected_old && !self.is(Break::AdoptDoesNotCompare) {
            return Err(GuardError::AdoptConflict { found: state.trusted.clone() });
        }
        if self.is(Break::AdoptForgetsMarks) {
            state.marks.clear();
        }
        state.trusted = Some(new.clone());
        Ok(())
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        let mut state = self.state.lock().unwrap();
        if self.is(Break::SealDoesNothing) {
            return self
                .judge(&state, resource, token)
                .map_err(|refusal| GuardError::Refused { resource: resource.clone(), refusal });
        }
        self.admit(&mut state, resource, token)?;
        if self.is(Break::SealWrites) {
            state.values.insert(resource.clone(), String::new());
        }
        Ok(())
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        if self.is(Break::ChecksThenWrites) {
            self.admit(&mut self.state.lock().unwrap(), resource, token)?;
            // The way to a store takes longer one time than another.
            let way = self.steps.fetch_add(1, Ordering::SeqCst) % 5;
            for _ in 0..way {
                tokio::task::yield_now().await;
            }
            return self.write_plain(resource, value).await;
        }
        if self.is(Break::DroppedWriteKeepsLock) {
            if self.locked.swap(true, Ordering::SeqCst) {
                let reason = "another write is under way".to_owned();
                return Err(GuardError::Store(LeaseError::InvalidConfig { reason }));
            }
            tokio::task::yield_now().await;
            self.locked.store(false, Ordering::SeqCst);
        }
        let mut state = self.state.lock().unwrap();
        match self.admit(&mut state, resource, token) {
            Err(_) if self.is(Break::TellsWrittenWhenRefused) => return Ok(()),
            admitted => admitted?,
        }
        self.put(&mut state, resource, value);
        Ok(())
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        let state = self.state.lock().unwrap();
        let mark = state.trusted.as_ref().and_then(|trusted| state.marks.get(&self.key(resource, trusted)));
        Ok(Stored::new(state.values.get(resource).cloned(), mark.copied()))
    }
}

#[async_trait::async_trait]
impl TestDestination for ToyDestination {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        self.put(&mut self.state.lock().unwrap(), resource, value);
        Ok(())
    }

    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        let answer = self.write(resource, token, value).await;
        if self.is(Break::RefusalCanBeCommitted) {
            self.write_plain(resource, value).await?;
        }
        answer
    }

    async fn write_and_roll_back(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        _value: &str,
    ) -> Option<Result<(), GuardError>> {
        let mut state = self.state.lock().unwrap();
        let before = state.marks.clone();
        let admitted = self.admit(&mut state, resource, token);
        if !self.is(Break::MarkStaysAfterRollBack) {
            state.marks = before;
        }
        Some(admitted)
    }
}
