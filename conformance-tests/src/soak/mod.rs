//! A soak: several workers on a few names under random faults, and their histories checked together.
//!
//! Every worker notes each operation before it is sent and when it has ended. The checker knows nothing of the adapter under test: from the
//! merged notes it decides whether two grants were live for certain at one moment, whether tokens grow with the grants, whether
//! anything was admitted below the destination's mark, and whether the register that all of them write is linearizable and lost nothing.

mod drive;
mod faults;
mod journal;
mod merge;
mod note;
mod random;
mod register;
mod schedule;
mod team;
mod work;

use crate::place::MemoryPlace;
use crate::report::{Cell, Report, SCHEMA};
use crate::subject::{Place, Subject};
use crate::worker::WorkerProgram;
pub use note::{Came, Does, Note, Orders, Part};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
pub(crate) use work::Work;

/// The case of a soak's cell in the report.
pub const CASE: &str = "soak/random-faults";

/// A soak of one lease backend.
///
/// ```
/// use lease_conformance::{soak::Soak, subject};
/// use lease_core::memory::{MemoryBackend, MemoryStore};
/// use std::time::Duration;
///
/// # #[tokio::main] async fn main() -> Result<(), lease_core::LeaseError> {
/// let store = MemoryStore::new()?;
/// let connect = move || std::future::ready(Ok(MemoryBackend::on(store.clone())));
/// let report = Soak::new(subject("memory", connect)).seed(1).time(Duration::from_secs(3)).run().await;
/// assert_eq!(report.exit_status(), 0, "{:#?}", report.cells);
/// # Ok(()) }
/// ```
#[must_use = "nothing is tested until it is run"]
pub struct Soak {
    subject: Arc<dyn Subject>,
    place: Arc<dyn Place>,
    program: Option<WorkerProgram>,
    seed: Option<u64>,
    time: Duration,
    workers: usize,
    told: Option<Box<Told>>,
}

type Told = dyn Fn(&str) + Send + Sync;

impl fmt::Debug for Soak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Soak").field("subject", &self.subject).field("place", &self.place).finish_non_exhaustive()
    }
}

impl Soak {
    /// A soak of `subject` for half a minute, with four workers on threads, a destination in memory and a random seed.
    pub fn new(subject: Arc<dyn Subject>) -> Self {
        Self {
            subject,
            place: Arc::new(MemoryPlace::new()),
            program: None,
            seed: None,
            time: Duration::from_secs(30),
            workers: 4,
            told: None,
        }
    }

    /// Lets the workers write at this place. It must not be on a server that the faults hit.
    pub fn place(mut self, place: Arc<dyn Place>) -> Self {
        self.place = place;
        self
    }

    /// Starts `path` with `args` as a worker, as [`Suite::worker_program`](crate::Suite::worker_program) does.
    pub fn worker_program(mut self, path: impl Into<PathBuf>, args: impl IntoIterator<Item = String>) -> Self {
        self.program = Some(WorkerProgram { path: path.into(), args: args.into_iter().collect() });
        self
    }

    /// Seeds the schedule of faults and what the workers do. The same seed repeats the schedule.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// For how long.
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// How many workers, at least two.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(2);
        self
    }

    /// Calls `callback` with what happens next.
    pub fn progress(mut self, callback: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.told = Some(Box::new(callback));
        self
    }

    /// Runs. Always ends, and always with a report of one cell.
    ///
    /// # Cancel safety
    /// Workers are ended; grants that were made end with their TTL.
    pub async fn run(self) -> Report {
        let seed = self.seed.unwrap_or_else(crate::suite::random_seed);
        let mut report = Report { schema: SCHEMA, seed, ..Report::default() };
        let connecting = tokio::time::timeout(crate::context::CONNECTING, self.subject.client()).await;
        let cell: Result<Cell, String> = match connecting {
            Err(_) => Err("connecting did not end within 60 s".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(first)) => {
                report.backends.push(crate::suite::backend_report(self.subject.name(), first.as_ref()));
                Ok(drive::soak(&self, first, seed).await)
            }
        };
        match cell {
            Ok(cell) => report.cells.push(cell),
            Err(reason) => report.missing.push(crate::report::Missing {
                backend: self.subject.name().to_owned(),
                reason,
                required: true,
            }),
        }
        report
    }

    fn tell(&self, what: &str) {
        if let Some(told) = &self.told {
            told(what);
        }
    }
}
