//! `run`: provide the stores, run the suite on each backend, compare with what is expected, print.

use super::ask::{AskedBackend, RunArgs, SoakArgs};
use super::expected::{Expected, Mismatch};
use super::paint::Paint;
use super::places::{OwnMemory, StorePlace};
use super::plan::Plan;
use super::progress::Progress;
use super::servers::{Fleet, Home, Role};
use super::tidy::Tidy;
use super::{Backend, Failure, Store, cli, layout, markdown, signals, subjects, terminal};
use crate::Suite;
use crate::report::{Missing, Report, SCHEMA};
use crate::subject::{Place, Subject};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Runs the suite and returns the exit status.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    for prefix in &args.cases {
        cli::cases_of(prefix)?;
    }
    for path in args.json.iter().chain(&args.markdown) {
        Failure::unless_writable(path)?;
    }
    args.pages.check()?;
    let plan = Plan::new(args)?;
    let expected = Expected::load(args.expected.as_deref())?;
    let progress = Arc::new(Progress::new());
    let report = provided(&plan, Job::Cases(args), &progress)?;
    // What is expected is known of private servers only.
    let is_expected = plan.is_private();
    let mismatches = if is_expected { expected.compare(&report) } else { Vec::new() };
    let stale = if is_expected { expected.stale(&report) } else { Vec::new() };
    publish(args, &report, &mismatches, &progress)?;
    match stale.first() {
        Some(_) => Err(Failure::Differs(stale.join("\n"))),
        None => Ok(status(&report, &mismatches)),
    }
}

/// What is done to each backend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job<'a> {
    /// The suite's cases.
    Cases(&'a RunArgs),
    /// A soak.
    Soak(&'a SoakArgs),
}

/// Provides the stores, runs, and takes away again what must not stay.
pub(super) fn provided(plan: &Plan, job: Job<'_>, progress: &Arc<Progress>) -> Result<Report, Failure> {
    progress.at("starting servers");
    let tidy = Tidy::default();
    let running = runtime()?;
    let needed = plan.needed();
    let started = running.block_on(signals::until_signal(async {
        tokio::task::spawn_blocking(move || Fleet::start(&needed))
            .await
            .map_err(|e| Failure::CouldNotRun(format!("starting servers: {e}")))?
    }));
    // A signal in the middle of it: `running` waits for those that are just starting, and then they are stopped.
    let fleet = started??;
    let result = running.block_on(signals::until_signal(async {
        tokio::select! {
            report = all_backends(plan, job, &fleet, &tidy, progress) => report,
            never = progress.keep_showing() => match never {},
        }
    }));
    progress.end();
    // Whatever a signal left running ends with its runtime, so that nothing is written any more when the rest is removed.
    running.shutdown_timeout(SHUTDOWN);
    // Private stores go as a whole.
    let left = if plan.is_private() { Vec::new() } else { runtime()?.block_on(tidy.purge()) };
    drop(fleet);
    match result {
        // What was seen counts, whatever could not be taken away.
        Ok(Ok(mut report)) => {
            report.missing.extend(left.into_iter().map(not_tidied));
            Ok(report)
        }
        Ok(Err(failure)) | Err(failure) => {
            for line in &left {
                progress.note(line);
            }
            Err(failure)
        }
    }
}

fn not_tidied(reason: String) -> Missing {
    Missing { backend: "clean-up".to_owned(), reason, required: true }
}

/// How long tasks may take to end; they wait for nothing but the network.
const SHUTDOWN: Duration = Duration::from_secs(10);

fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::CouldNotRun(format!("cannot start the runtime: {e}")))
}

async fn all_backends(
    plan: &Plan,
    job: Job<'_>,
    fleet: &Fleet,
    tidy: &Tidy,
    progress: &Arc<Progress>,
) -> Result<Report, Failure> {
    let mut report = Report { schema: SCHEMA, seed: plan.seed, missing: plan.missing.clone(), ..Report::default() };
    let separate = separate_places(plan, fleet, tidy, &mut report.missing);
    for (index, asked) in plan.backends.iter().enumerate() {
        let name = asked.backend.name();
        let (subject, mut places) = match provide(plan, asked, fleet, tidy) {
            Ok(provided) => provided,
            Err(reason) => {
                report.missing.push(Missing { backend: name.to_owned(), reason, required: true });
                continue;
            }
        };
        // On one given server, the lease's own store is the only destination of its kind.
        let is_own = |store: Store| asked.url.is_some() && store == asked.backend.store();
        places.extend(separate.iter().filter(|(store, _)| !is_own(*store)).map(|(_, place)| Arc::clone(place)));
        let label = format!("[{}/{}] {name}", index.saturating_add(1), plan.backends.len());
        let one = match job {
            Job::Cases(args) => suite(subject, places, plan.seed, args, progress, label)?.run().await,
            Job::Soak(args) => super::soak::one(subject, &places, plan.seed, args, progress, label)?.run().await,
        };
        report.backends.extend(one.backends);
        report.cells.extend(one.cells);
        report.missing.extend(one.missing.into_iter().map(|missing| Missing { required: true, ..missing }));
    }
    Ok(report)
}

type Provided = (Arc<dyn Subject>, Vec<Arc<dyn Place>>);

/// The subject, and the place in its own store.
fn provide(plan: &Plan, asked: &AskedBackend, fleet: &Fleet, tidy: &Tidy) -> Result<Provided, String> {
    let backend = asked.backend;
    if backend == Backend::Memory {
        let subject = subjects::in_memory().map_err(|e| e.to_string())?;
        return Ok((subject, vec![OwnMemory::place()]));
    }
    let store = backend.store();
    let home = match &asked.url {
        Some(url) => Home::existing(store, url.clone()),
        None => started(fleet, Role::Leases, store)?,
    };
    let prefix = format!("{}_{}", plan.prefix, backend.name().replace('-', "_"));
    let subject = subjects::on_store(backend, &home, &format!("{prefix}_l"), tidy);
    Ok((subject, vec![StorePlace::on(&home, Some(backend.name()), format!("{prefix}_d"), tidy)]))
}

fn started(fleet: &Fleet, role: Role, store: Store) -> Result<Home, String> {
    fleet.home(role, store).cloned().ok_or_else(|| {
        let reason = fleet.failure(role, store).unwrap_or("it was not started");
        format!("the private server did not start: {reason}")
    })
}

/// The places apart from every lease store.
fn separate_places(
    plan: &Plan,
    fleet: &Fleet,
    tidy: &Tidy,
    missing: &mut Vec<Missing>,
) -> Vec<(Store, Arc<dyn Place>)> {
    let mut places = Vec::new();
    for &store in &plan.destinations {
        let home = match plan.given(store) {
            Some(url) => Ok(Home::existing(store, url.to_owned())),
            None => started(fleet, Role::Destinations, store),
        };
        match home {
            Ok(home) => places.push((store, StorePlace::on(&home, None, format!("{}_{store}", plan.prefix), tidy))),
            // It is installed, so that it did not start is a fault, whoever asked for it.
            Err(reason) => missing.push(Missing { backend: format!("destination {store}"), reason, required: true }),
        }
    }
    places
}

fn suite(
    subject: Arc<dyn Subject>,
    places: Vec<Arc<dyn Place>>,
    seed: u64,
    args: &RunArgs,
    progress: &Arc<Progress>,
    label: String,
) -> Result<Suite, Failure> {
    let progress = Arc::clone(progress);
    let mut suite = Suite::new(subject)
        .places(places)
        .worker_program(own_file()?, ["worker".to_owned()])
        .seed(seed)
        .trials(args.trials)
        .progress(move |step| {
            progress.at(&format!("{label}  {}/{} cases  {}", step.done, step.total, step.cell.case));
        });
    for prefix in &args.cases {
        suite = suite.only(prefix.clone());
    }
    if args.quick {
        for case in crate::cases().iter().filter(|case| !case.is_slow()) {
            suite = suite.only(case.id);
        }
    }
    Ok(suite)
}

/// The file of this program, which starts itself as a worker.
pub(super) fn own_file() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::CouldNotRun(format!("cannot find this program's own file: {e}")))
}

/// Writes the files and prints the report.
fn publish(args: &RunArgs, report: &Report, mismatches: &[Mismatch], progress: &Progress) -> Result<(), Failure> {
    cli::put(&terminal::render(report, mismatches, Paint::for_stdout(), layout::width_of_stdout()));
    let (count, seed) = (report.cells.len(), report.seed);
    let mut end = vec![format!("\n{count} cells in {}, seed {seed}", progress.elapsed().trim())];
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(report).map_err(|e| Failure::CouldNotRun(e.to_string()))?;
        std::fs::write(path, json + "\n").map_err(|e| Failure::file("write", path, &e))?;
        end.push(format!("report in {}", path.display()));
    }
    if let Some(path) = &args.markdown {
        std::fs::write(path, markdown::render(report)).map_err(|e| Failure::file("write", path, &e))?;
        end.push(format!("matrix in {}", path.display()));
    }
    end.extend(args.pages.write(report, mismatches)?);
    if args.quick {
        let slow = crate::cases().iter().filter(|case| case.is_slow()).count();
        end.push(format!("left out {slow} cases that take minutes: the subcommand `run` has them"));
    }
    cli::put(&format!("{}\n", end.join("; ")));
    Ok(())
}

/// The exit status: what was observed, and, where it is known, whether it is what was expected.
fn status(report: &Report, mismatches: &[Mismatch]) -> u8 {
    match report.exit_status() {
        1 => 1,
        _ if !mismatches.is_empty() => 1,
        other => other,
    }
}
