//! Runs the cases on one subject and judges what was seen.

use crate::cases::{self, Case, How};
use crate::context::{CONNECTING, Run};
use crate::place::MemoryPlace;
use crate::report::{BackendReport, Cell, Missing, Report, SCHEMA};
use crate::subject::{Place, Subject};
use crate::trials::{Outcome, outcomes, panic_text};
use crate::worker::WorkerProgram;
use lease_core::{GrantId, LeaseBackend};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::{Id, JoinSet};

/// How many cases run at the same time, where they may.
const TOGETHER: usize = 8;

/// The suite on one lease backend.
///
/// ```no_run
/// # use lease_core::memory::MemoryBackend;
/// # async fn run() {
/// use lease_conformance::{Suite, subject};
/// let toy = subject("toy", || async { MemoryBackend::new() });
/// let report = Suite::new(toy).run().await;
/// assert_eq!(report.exit_status(), 0);
/// # }
/// ```
///
/// Without [`places`](Self::places) the stale writes go to a destination in memory; without
/// [`worker_program`](Self::worker_program) the workers are runtimes on threads of this process.
#[must_use = "nothing is tested until it is run"]
pub struct Suite {
    subject: Arc<dyn Subject>,
    places: Vec<Arc<dyn Place>>,
    program: Option<WorkerProgram>,
    seed: Option<u64>,
    trials: u32,
    only: Vec<String>,
    progress: Option<Box<Callback>>,
}

type Callback = dyn Fn(&Progress<'_>) + Send + Sync;

/// What the suite has just done.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The backend's name.
    pub backend: &'a str,
    /// The cell that was judged.
    pub cell: &'a Cell,
    /// How many of the cases are done.
    pub done: usize,
    /// How many cases there are.
    pub total: usize,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("subject", &self.subject)
            .field("places", &self.places)
            .field("program", &self.program.as_ref().map(|program| &program.path))
            .field("only", &self.only)
            .finish_non_exhaustive()
    }
}

impl Suite {
    /// The suite on `subject`, with a destination in memory, workers on threads, one trial of each case and a random seed.
    pub fn new(subject: Arc<dyn Subject>) -> Self {
        Self {
            subject,
            places: vec![Arc::new(MemoryPlace::new())],
            program: None,
            seed: None,
            trials: 1,
            only: Vec::new(),
            progress: None,
        }
    }

    /// Sends stale writes to these places and to no others.
    pub fn places(mut self, places: Vec<Arc<dyn Place>>) -> Self {
        self.places = places;
        self
    }

    /// Starts `path` with `args` as a worker; it must call [`worker::run_stdio`](crate::worker::run_stdio). Used for a subject that has a
    /// [`worker_url`](Subject::worker_url), and for places that have a [`url`](Place::url).
    pub fn worker_program(mut self, path: impl Into<PathBuf>, args: impl IntoIterator<Item = String>) -> Self {
        self.program = Some(WorkerProgram { path: path.into(), args: args.into_iter().collect() });
        self
    }

    /// Seeds every random choice.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Tries each case so many times, at least once.
    pub fn trials(mut self, trials: u32) -> Self {
        self.trials = trials.max(1);
        self
    }

    /// Runs only the cases whose id begins with `prefix`; called more than once, those of any of the prefixes.
    pub fn only(mut self, prefix: impl Into<String>) -> Self {
        self.only.push(prefix.into());
        self
    }

    /// Calls `callback` after each cell.
    pub fn progress(mut self, callback: impl Fn(&Progress<'_>) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }

    /// Runs. Always ends, and always with a report: what could not be run is in it.
    ///
    /// # Cancel safety
    /// Workers are ended; grants that were made end with their TTL.
    pub async fn run(self) -> Report {
        let seed = self.seed.unwrap_or_else(random_seed);
        let mut report = Report { schema: SCHEMA, seed, ..Report::default() };
        let connecting = tokio::time::timeout(CONNECTING, self.subject.client());
        let first = match connecting.await {
            Ok(Ok(first)) => first,
            Ok(Err(error)) => return self.cannot_run(report, &error.to_string()),
            Err(_) => return self.cannot_run(report, "connecting did not end within 60 s"),
        };
        report.backends.push(backend_report(self.subject.name(), first.as_ref()));
        let choices = (seed, self.trials);
        let run =
            Run::new(Arc::clone(&self.subject), self.places.clone(), self.program.clone(), first.as_ref(), choices);
        match run {
            Ok(run) => report.cells = self.cells(&Arc::new(run)).await,
            Err(error) => return self.cannot_run(report, &error.to_string()),
        }
        if report.cells.is_empty() {
            let reason = match self.wanted().next() {
                None => format!("no case begins with {}", self.only.join(" or ")),
                Some(_) => "no case could be run: all of those that are wanted need a place".to_owned(),
            };
            return self.cannot_run(report, &reason);
        }
        report
    }

    fn cannot_run(&self, mut report: Report, reason: &str) -> Report {
        report.missing.push(Missing {
            backend: self.subject.name().to_owned(),
            reason: reason.to_owned(),
            required: true,
        });
        report
    }

    async fn cells(&self, run: &Arc<Run>) -> Vec<Cell> {
        let wanted: Vec<&'static Case> = self.wanted().collect();
        let mut sink = Sink::new(self, wanted.len());
        let pause = wanted.iter().filter(|case| matches!(case.how, How::Pause)).count();
        if pause > 0 {
            for outcome in cases::run_pause(run).await {
                if self.wants(outcome.case) {
                    sink.take(outcome);
                }
            }
            sink.done(pause);
        }
        let mut running = Running::default();
        let (alone, together): (Vec<&Case>, Vec<&Case>) = wanted.into_iter().partition(|case| case.is_alone());
        for case in together.into_iter().filter(|case| !matches!(case.how, How::Pause)) {
            if running.tasks.len() >= TOGETHER {
                sink.take_all(running.next().await.unwrap_or_default());
            }
            running.start(run, case);
        }
        while let Some(outcomes) = running.next().await {
            sink.take_all(outcomes);
        }
        for case in alone {
            running.start(run, case);
            sink.take_all(running.next().await.unwrap_or_default());
        }
        sink.in_order()
    }

    fn wanted(&self) -> impl Iterator<Item = &'static Case> {
        cases::all().filter(|case| self.wants(case.info.id))
    }

    fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|prefix| id.starts_with(prefix))
    }
}

/// The cases that are under way, each on a task of its own.
#[derive(Default)]
struct Running {
    tasks: JoinSet<Vec<Outcome>>,
    cases: HashMap<Id, &'static Case>,
}

impl Running {
    fn start(&mut self, run: &Arc<Run>, case: &'static Case) {
        let task = self.tasks.spawn(outcomes(Arc::clone(run), case));
        self.cases.insert(task.id(), case);
    }

    /// The cells of the case that ends next. A trial's panic is in them; one outside of the trials, such as in a place that is opened, is
    /// a cell of its own: no case goes without one.
    async fn next(&mut self) -> Option<Vec<Outcome>> {
        match self.tasks.join_next().await? {
            Ok(outcomes) => Some(outcomes),
            Err(error) => {
                let case = self.cases.get(&error.id())?;
                Some(vec![Outcome::of_panic(case, &panic_text(error))])
            }
        }
    }
}

/// Collects judged cells and tells about progress.
struct Sink<'a> {
    suite: &'a Suite,
    cells: Vec<Cell>,
    done: usize,
    total: usize,
}

impl<'a> Sink<'a> {
    fn new(suite: &'a Suite, total: usize) -> Self {
        Self { suite, cells: Vec::new(), done: 0, total }
    }

    fn done(&mut self, cases: usize) {
        self.done = self.done.saturating_add(cases);
    }

    fn take(&mut self, outcome: Outcome) {
        let backend = self.suite.subject.name();
        let cell = outcome.into_cell(backend);
        if let Some(progress) = &self.suite.progress {
            progress(&Progress { backend, cell: &cell, done: self.done, total: self.total });
        }
        self.cells.push(cell);
    }

    /// Takes the cells of one case.
    fn take_all(&mut self, outcomes: Vec<Outcome>) {
        self.done(1);
        for outcome in outcomes {
            self.take(outcome);
        }
    }

    fn in_order(mut self) -> Vec<Cell> {
        let order: BTreeMap<&str, usize> = cases::all().enumerate().map(|(at, case)| (case.info.id, at)).collect();
        self.cells.sort_by_key(|cell| (order.get(cell.case.as_str()).copied(), cell.destination.clone()));
        self.cells
    }
}

pub(crate) fn backend_report(name: &str, backend: &dyn LeaseBackend) -> BackendReport {
    let description = backend.description();
    let limits = backend.limits();
    let millis = crate::context::millis;
    BackendReport {
        name: name.to_owned(),
        server_version: description.server_version,
        address: description.address,
        claims: backend.claims().iter().map(|claim| claim.id().to_owned()).collect(),
        fence: backend.fence().name().to_owned(),
        limits: BTreeMap::from([
            ("min_ttl_ms".to_owned(), millis(limits.min_ttl)),
            ("max_ttl_ms".to_owned(), millis(limits.max_ttl)),
            ("ttl_granularity_ms".to_owned(), millis(limits.ttl_granularity)),
            ("expiry_lag_ms".to_owned(), millis(limits.expiry_lag)),
            ("max_token_value".to_owned(), limits.max_token_value),
            ("call_timeout_ms".to_owned(), millis(limits.call_timeout)),
        ]),
    }
}

pub(crate) fn random_seed() -> u64 {
    // Without random numbers nothing can be acquired either, which the run then reports.
    GrantId::random().map_or(0, |id| u64::from_str_radix(&id.to_hex(), 16).unwrap_or(0))
}
