//! A holder that asks for permits as often as it can, and keeps count of what it was told.

use super::handler::now_ns;
use lease_core::hold::{LeaseGuard, StaleBehaviour};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// What the holder of one lease was told. Times are on the boot clock, read by the holder itself and not taken from the guard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// How many permits were given.
    pub permits: u64,
    /// Right before the last permit was asked for and given.
    pub last_permit_ns: u64,
    /// Until when that permit said that the lease lasts; later by what passed between its asking and this reckoning.
    pub last_deadline_ns: u64,
    /// How long that permit said is left.
    pub last_left_ns: u64,
    /// The first refusal.
    pub loss: Option<SeenLoss>,
    /// When the signal of the loss had arrived; zero while it has not.
    pub signalled_ns: u64,
    /// How many permits were given after the first refusal: there must be none.
    pub permits_after_loss: u64,
    /// The longest time between two rounds of asking: what the machine did not let the holder see.
    pub longest_gap_ns: u64,
    /// The most that a permit said is left.
    pub most_left_ns: u64,
    /// The least that a permit said is left: what was left when a renewal came.
    pub least_left_ns: u64,
}

/// A loss, as the holder learned of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenLoss {
    /// The stable name of the reason.
    pub cause: String,
    /// When the guard says that it was noticed.
    pub at_ns: u64,
    /// When the holder had been refused.
    pub told_ns: u64,
}

/// How long to wait between two rounds of asking.
const PAUSE: Duration = Duration::from_millis(2);

/// Asks on a thread of its own, so that a stuck runtime does not keep it from asking.
#[derive(Debug, Default)]
pub(super) struct Asker {
    watched: Arc<Mutex<HashMap<String, Arc<Watched>>>>,
    /// Waits for the loss of each.
    listeners: HashMap<String, JoinHandle<()>>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    guard: LeaseGuard,
    seen: Mutex<Seen>,
}

impl Asker {
    /// Begins to ask for permits of one more lease.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn watch(&mut self, name: String, guard: LeaseGuard) -> Result<(), String> {
        let watched = Arc::new(Watched { guard, seen: Mutex::default() });
        let listener = Arc::clone(&watched);
        let listening = tokio::spawn(async move {
            // Ends with the lease: it is lost, or given up with the worker.
            listener.guard.lost().await;
            listener.seen().signalled_ns = now_ns();
        });
        self.listeners.insert(name.clone(), listening);
        lock(&self.watched).insert(name, watched);
        if self.thread.is_none() {
            let (all, over) = (Arc::clone(&self.watched), Arc::clone(&self.over));
            let thread = std::thread::Builder::new().name("lease-asker".into()).spawn(move || ask(&all, &over));
            self.thread = Some(thread.map_err(|e| format!("cannot start a thread: {e}"))?);
        }
        Ok(())
    }

    /// What was seen of one lease so far.
    pub(super) fn seen(&self, name: &str) -> Option<Seen> {
        lock(&self.watched).get(name).map(|watched| watched.seen().clone())
    }

    /// Gives the guard of a watched lease back.
    ///
    /// # Cancel safety
    /// The guard is dropped.
    pub(super) async fn give_back(&mut self, name: &str) -> Option<LeaseGuard> {
        let mut watched = lock(&self.watched).remove(name)?;
        if let Some(listener) = self.listeners.remove(name) {
            listener.abort();
            // It ends at once, or has ended before.
            drop(listener.await);
        }
        loop {
            // The thread that asks may be in the middle of a round.
            match Arc::try_unwrap(watched) {
                Ok(watched) => return Some(watched.guard),
                Err(shared) => watched = shared,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It ends after its present round; a panic in it was shown already.
            drop(thread.join());
        }
        lock(&self.watched).clear();
    }
}

fn ask(all: &Mutex<HashMap<String, Arc<Watched>>>, over: &AtomicBool) {
    let mut before = now_ns();
    while !over.load(Ordering::SeqCst) {
        let present: Vec<Arc<Watched>> = lock(all).values().cloned().collect();
        let now = now_ns();
        for watched in &present {
            watched.ask(now.saturating_sub(before));
        }
        before = now;
        std::thread::sleep(PAUSE);
    }
}

impl Seen {
    /// Until when the last permit said that the lease lasts, at the earliest.
    pub(crate) fn earliest_deadline_ns(&self) -> u64 {
        self.last_permit_ns.saturating_add(self.last_left_ns)
    }
}

impl Watched {
    fn ask(&self, gap_ns: u64) {
        let asked_ns = now_ns();
        let answer = self.guard.permit(StaleBehaviour::Fenced);
        let mut seen = self.seen();
        if seen.permits > 0 && seen.loss.is_none() {
            seen.longest_gap_ns = seen.longest_gap_ns.max(gap_ns);
        }
        match answer {
            Ok(permit) => {
                let left = u64::try_from(permit.remaining().as_nanos()).unwrap_or(u64::MAX);
                seen.most_left_ns = seen.most_left_ns.max(left);
                seen.least_left_ns = if seen.permits == 0 { left } else { seen.least_left_ns.min(left) };
                seen.permits = seen.permits.saturating_add(1);
                seen.last_permit_ns = asked_ns;
                seen.last_deadline_ns = now_ns().saturating_add(left);
                seen.last_left_ns = left;
                if seen.loss.is_some() {
                    seen.permits_after_loss = seen.permits_after_loss.saturating_add(1);
                }
            }
            Err(loss) if seen.loss.is_none() => {
                let (cause, at_ns) = (loss.cause().id().to_owned(), loss.at().as_nanos());
                seen.loss = Some(SeenLoss { cause, at_ns, told_ns: now_ns() });
            }
            Err(_) => {}
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

/// Every step under these locks leaves a whole state behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
