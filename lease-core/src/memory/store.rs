//! The "server": records under one lock, on one clock.

use crate::{Authority, BootInstant, GrantId, LeaseError, OwnerToken, SharedClock, SystemClock};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store in memory. Clones are the same store.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    pub(super) clock: SharedClock,
    pub(super) authority: Authority,
    inner: Arc<Mutex<Inner>>,
}

/// The store sweeps by itself when it has at least so many records.
pub(super) const SWEEP_LEAST: usize = 1_024;

#[derive(Debug)]
pub(super) struct Inner {
    /// Names that are held, or were until lately.
    pub(super) records: BTreeMap<String, Record>,
    /// Attempts that must make no grant any more, until when.
    pub(super) tombstones: HashMap<OwnerToken, BootInstant>,
    /// The last fencing value of the whole store. One counter for all names, so that idle names cost nothing.
    pub(super) last_value: u64,
    /// At how many records idle ones are swept out.
    pub(super) sweep_at: usize,
}

/// The latest grant of a name.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) owner: OwnerToken,
    pub(super) holder: String,
    pub(super) value: u64,
    pub(super) expires: BootInstant,
    pub(super) granted: BootInstant,
    pub(super) renewed: BootInstant,
    pub(super) ended: Option<Ended>,
    pub(super) register: Option<String>,
}

/// How a grant ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Released,
    Forced,
}

impl Record {
    pub(super) fn is_live(&self, now: BootInstant) -> bool {
        self.ended.is_none() && now < self.expires
    }
}

impl MemoryStore {
    /// An empty store on the machine's boot clock.
    ///
    /// # Errors
    /// [`LeaseError::Entropy`] when the operating system gives no random numbers.
    pub fn new() -> Result<Self, LeaseError> {
        Self::on_clock(SystemClock::shared())
    }

    /// An empty store on `clock`; a [`ManualClock`](crate::ManualClock) makes time virtual.
    ///
    /// # Errors
    /// [`LeaseError::Entropy`] when the operating system gives no random numbers.
    pub fn on_clock(clock: SharedClock) -> Result<Self, LeaseError> {
        let inner =
            Inner { records: BTreeMap::new(), tombstones: HashMap::new(), last_value: 0, sweep_at: SWEEP_LEAST };
        let authority = Authority::of_store("memory", &GrantId::random()?.to_hex(), 0)?;
        Ok(Self { clock, authority, inner: Arc::new(Mutex::new(inner)) })
    }

    /// The state, locked for one atomic step. A panic in another step can't have left it half-changed: no step can panic between two writes.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
