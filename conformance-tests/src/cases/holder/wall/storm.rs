//! A wall clock that jumps all the time, so that a jump falls into whatever the worker is doing.

use crate::context::{Stop, pause_for};
use crate::worker::{WallClock, now_ns};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the clock stays where it is.
const STAYS: Duration = Duration::from_micros(50);

/// The most jumps that are remembered: more than in any wait of a case.
const MOST: usize = 1_000_000;

/// Jumps on a thread of its own, until it is ended or dropped.
#[derive(Debug)]
pub(super) struct Storm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

#[derive(Debug, Default)]
struct Shared {
    over: AtomicBool,
    /// The instants right before and right after each jump.
    jumps: Mutex<Vec<(u64, u64)>>,
}

impl Shared {
    /// Every step under the lock leaves a whole list behind.
    fn jumps(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.jumps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blow(&self, clock: &WallClock, seconds: i64) -> Result<(), String> {
        let round = [seconds, 0, seconds.saturating_neg(), 0];
        for to in round.into_iter().cycle() {
            if self.over.load(Ordering::SeqCst) {
                break;
            }
            let before = now_ns();
            clock.set(to)?;
            let jump = (before, now_ns());
            let mut jumps = self.jumps();
            if jumps.len() < MOST {
                jumps.push(jump);
            }
            drop(jumps);
            std::thread::sleep(STAYS);
        }
        Ok(())
    }
}

impl Storm {
    /// Begins: ahead by so many seconds, back, behind by as many, back, and so on.
    pub(super) fn begin(clock: Arc<WallClock>, seconds: i64) -> Result<Self, Stop> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lease-storm".into());
        let thread = thread.spawn(move || of_thread.blow(&clock, seconds));
        let thread = thread.map_err(|e| Stop::NotTried(format!("cannot start a thread: {e}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether the clock jumped between two instants.
    pub(super) fn fell_into(&self, from_ns: u64, to_ns: u64) -> bool {
        let jumps = self.shared.jumps();
        let next = jumps.partition_point(|(before, _)| *before < from_ns);
        jumps.get(next).is_some_and(|(_, after)| *after <= to_ns)
    }

    /// Ends it; returns how often the clock jumped. It is where the last jump left it.
    pub(super) async fn end(mut self) -> Result<usize, Stop> {
        self.shared.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() {
                pause_for(Duration::from_millis(1)).await;
            }
            let ended = thread.join().unwrap_or_else(|_| Err("the thread that moves the clock panicked".into()));
            ended.map_err(Stop::NotTried)?;
        }
        Ok(self.shared.jumps().len())
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
    }
}
