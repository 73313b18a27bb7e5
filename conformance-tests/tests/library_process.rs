//! Workers in processes of their own: this program is the driver, and with the argument `worker` it is the worker.

#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test may end by a panic, and tells what it does"
)]
#![expect(unreachable_pub, reason = "the toys are shared by test programs")]

mod file_toy;

use file_toy::place::{FileDestination, FilePlace};
use file_toy::{FileToy, OnWallClock};
use lease_conformance::faults::{FaultBench, HandEdit};
use lease_conformance::soak::{CASE, Soak};
use lease_conformance::subject::{
    Opener, Place, PlainWriter, ServerControl, Subject, TestDestination, faults_at_calls,
};
use lease_conformance::{Cell, MemoryPlace, Report, Suite, Verdict, worker};
use lease_core::{GuardError, LeaseBackend, LeaseError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("worker") => return worker::run_stdio(Arc::new(ByPath)).await.unwrap(),
        Some("wall-clock") => return println!("{:?}", wall_clock("").await),
        _ => {}
    }
    workers_are_really_stopped().await;
    println!("workers_are_really_stopped ... ok");
    processes_that_do_not_share_their_store_are_caught().await;
    println!("processes_that_do_not_share_their_store_are_caught ... ok");
    a_worker_that_does_not_work_is_not_green().await;
    println!("a_worker_that_does_not_work_is_not_green ... ok");
    workers_are_killed_in_a_soak_and_their_notes_count().await;
    println!("workers_are_killed_in_a_soak_and_their_notes_count ... ok");
    a_soak_finds_processes_that_do_not_share_their_store().await;
    println!("a_soak_finds_processes_that_do_not_share_their_store ... ok");
    what_counts_on_the_wall_clock_is_caught().await;
    println!("what_counts_on_the_wall_clock_is_caught ... ok");
    a_wall_clock_that_cannot_be_moved_is_not_green().await;
    println!("a_wall_clock_that_cannot_be_moved_is_not_green ... ok");
}

/// A soak of worker processes that are stopped and killed; each store for itself, or one for all.
fn soak(folder: &Path, mark: &'static str) -> Soak {
    Soak::new(Arc::new(InFile { path: folder.join("leases"), mark }))
        .place(Arc::new(FilePlace { folder: folder.to_owned() }))
        .worker_program(std::env::current_exe().unwrap(), ["worker".to_owned()])
        .seed(11)
        .time(Duration::from_secs(5))
}

async fn workers_are_killed_in_a_soak_and_their_notes_count() {
    let folder = tempfile::tempdir().unwrap();
    let report = soak(folder.path(), "").run().await;
    let cell = report.cells_of(CASE).next().unwrap();
    assert_eq!(report.exit_status(), 0, "{:#?}", verdicts(&report));
    assert_eq!(text(cell, "workers"), "processes");
    let times = |kind: &str| cell.evidence["faults"][kind]["times"].as_u64().unwrap_or_default();
    assert!(times("worker killed") > 0 && times("worker stopped") > 0, "{:#?}", cell.evidence);
    assert_eq!(number(cell, "histories"), 4 + times("worker killed"), "those of killed workers are there too");
}

async fn a_soak_finds_processes_that_do_not_share_their_store() {
    let folder = tempfile::tempdir().unwrap();
    let report = soak(folder.path(), APART).run().await;
    assert_eq!((report.cells[0].verdict, report.exit_status()), (Verdict::Broken, 1), "{:#?}", verdicts(&report));
}

struct ByPath;

/// The mark of a store that each process has for itself.
const APART: &str = "apart:";

#[async_trait::async_trait]
impl Opener for ByPath {
    async fn backend(&self, url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        let own = url.strip_prefix(APART).map(|path| format!("{path}.{}", std::process::id()));
        Ok(Arc::new(FileToy::new(own.as_deref().unwrap_or(url))))
    }

    async fn plain_writer(&self, _url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError> {
        Ok(None)
    }

    async fn destination(&self, url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        Ok(Arc::new(FileDestination { path: url.into() }))
    }
}

#[derive(Debug)]
struct InFile {
    path: PathBuf,
    /// What is wrong with it.
    mark: &'static str,
}

#[async_trait::async_trait]
impl Subject for InFile {
    fn name(&self) -> &'static str {
        "file toy"
    }

    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        ByPath.backend(&self.worker_url().unwrap()).await
    }

    async fn forgetful_client(&self) -> Option<Result<Arc<dyn LeaseBackend>, LeaseError>> {
        None
    }

    fn worker_url(&self) -> Option<String> {
        Some(format!("{}{}", self.mark, self.path.display()))
    }

    fn plain_writer(&self) -> Option<Arc<dyn PlainWriter>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn own_store_url(&self) -> Option<String> {
        None
    }

    async fn fault_bench(&self, call_timeout: Duration) -> Option<Result<Arc<dyn FaultBench>, String>> {
        faults_at_calls(self, call_timeout).await
    }

    fn hand_edit(&self) -> Option<Arc<dyn HandEdit>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

fn suite(folder: &Path, mark: &'static str) -> Suite {
    let places: Vec<Arc<dyn Place>> =
        vec![Arc::new(FilePlace { folder: folder.to_owned() }), Arc::new(MemoryPlace::new())];
    Suite::new(Arc::new(InFile { path: folder.join("leases"), mark }))
        .places(places)
        .worker_program(std::env::current_exe().unwrap(), ["worker".to_owned()])
        .trials(2)
}

fn verdicts(report: &Report) -> Vec<(&str, Option<&str>, Verdict, &Option<String>)> {
    let cells = report.cells.iter();
    cells.map(|cell| (cell.case.as_str(), cell.destination.as_deref(), cell.verdict, &cell.finding)).collect()
}

fn text<'a>(cell: &'a Cell, name: &str) -> &'a str {
    cell.evidence.get(name).and_then(|value| value.as_str()).unwrap_or_default()
}

fn number(cell: &Cell, name: &str) -> u64 {
    // Of several trials, the least.
    let found = cell.evidence.get(name).map(|value| value.get("min").unwrap_or(value));
    found.and_then(serde_json::Value::as_u64).unwrap_or_default()
}

async fn workers_are_really_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let report = suite(folder.path(), "").only("fencing/pause").only("exclusion/across").run().await;
    assert_eq!(report.exit_status(), 0, "{:#?}", verdicts(&report));
    let guarded = |destination| {
        let mut cells = report.cells_of("fencing/pause-past-ttl/guarded");
        cells.find(move |cell| cell.destination.as_deref() == Some(destination)).unwrap()
    };
    let cell = guarded("file");
    assert_eq!((cell.verdict, cell.trials), (Verdict::Kept, 2));
    assert_eq!(text(cell, "mode"), "process");
    assert_eq!((text(cell, "state_while_stopped"), text(cell, "state_before_resume")), ("T", "T"));
    let pids = [number(cell, "pid_a"), number(cell, "pid_b"), u64::from(std::process::id())];
    assert!(pids[0] != pids[1] && !pids[..2].contains(&pids[2]), "three processes: {pids:?}");
    assert!(number(cell, "pause_ms") >= number(cell, "granted_ttl_ms"));
    assert!(number(cell, "a_last_live_ns") < number(cell, "b_granted_ns"));
    assert!(number(cell, "b_granted_ns") < number(cell, "resumed_ns"));
    assert!(number(cell, "resumed_ns") <= number(cell, "a_effect_sent_ns"));
    for pid in &pids[..2] {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "worker {pid} was not reaped");
    }
    // A place that only this process can open is tried all the same, with blocked runtimes, and the evidence says so.
    assert_eq!(text(guarded("memory"), "mode"), "blocked runtime");
    let across: Vec<&Cell> = report.cells_of("exclusion/across-processes").collect();
    assert!(across.iter().all(|cell| cell.verdict == Verdict::Kept) && across.len() == 1);
}

async fn processes_that_do_not_share_their_store_are_caught() {
    let folder = tempfile::tempdir().unwrap();
    let report = suite(folder.path(), APART).only("exclusion/across").run().await;
    assert!(report.cells.iter().all(|cell| cell.verdict == Verdict::Broken), "{:#?}", verdicts(&report));
    assert_eq!(report.exit_status(), 1);
}

async fn a_worker_that_does_not_work_is_not_green() {
    let folder = tempfile::tempdir().unwrap();
    let report = suite(folder.path(), "")
        .worker_program("/bin/false", [])
        .only("fencing/pause")
        .only("exclusion/across")
        .run()
        .await;
    let by_process = |cell: &&Cell| cell.destination.as_deref() != Some("memory") && !cell.case.contains("native");
    let cells: Vec<&Cell> = report.cells.iter().filter(by_process).collect();
    assert!(cells.len() >= 9, "{:#?}", verdicts(&report));
    assert!(cells.iter().all(|cell| cell.verdict == Verdict::Unproven), "{:#?}", verdicts(&report));
    assert_eq!(report.exit_status(), 3);
}

/// The cases whose worker's wall clock is moved.
const WALL_CLOCK: [&str; 3] =
    ["holder/wall-clock-jump", "holder/wall-clock-jump-without-renewal", "holder/wall-clock-jump-by-hand"];

/// What each of them says of a toy with something wrong.
async fn wall_clock(mark: &'static str) -> Vec<(Verdict, String)> {
    let folder = tempfile::tempdir().unwrap();
    let report = suite(folder.path(), mark).trials(1).only(WALL_CLOCK[0]).run().await;
    told(&report)
}

fn told(report: &Report) -> Vec<(Verdict, String)> {
    let cases: Vec<_> = report.cells.iter().map(|cell| cell.case.as_str()).collect();
    assert_eq!(cases, WALL_CLOCK);
    report.cells.iter().map(|cell| (cell.verdict, cell.finding.clone().unwrap_or_default())).collect()
}

async fn what_counts_on_the_wall_clock_is_caught() {
    let mut runs = tokio::task::JoinSet::new();
    for wall in [OnWallClock::Nothing, OnWallClock::Deadlines, OnWallClock::Records, OnWallClock::Tokens] {
        runs.spawn(async move { (wall, wall_clock(wall.mark()).await) });
    }
    for (wall, told) in runs.join_all().await {
        let verdict = if wall == OnWallClock::Nothing { Verdict::Kept } else { Verdict::Broken };
        assert!(told.iter().all(|(seen, _)| *seen == verdict), "{wall:?}: {told:#?}");
        let says = match wall {
            OnWallClock::Nothing => "",
            OnWallClock::Deadlines => "ns are left",
            OnWallClock::Records => "granted to",
            OnWallClock::Tokens => "is not larger",
        };
        assert!(told.iter().any(|(_, finding)| finding.contains(says)), "{wall:?}: {told:#?}");
    }
}

async fn a_wall_clock_that_cannot_be_moved_is_not_green() {
    let own = std::env::current_exe().unwrap();
    let no_compiler = std::process::Command::new(&own).arg("wall-clock").env("PATH", "/nowhere").output().unwrap();
    let told_there = String::from_utf8(no_compiler.stdout).unwrap();
    assert_eq!(told_there.matches("(Unproven, \"`cc` cannot be run").count(), 3, "{told_there}");

    // Into this worker nothing is preloaded, as into a static program.
    let folder = tempfile::tempdir().unwrap();
    let bare = ["-u", "LD_PRELOAD", own.to_str().unwrap(), "worker"].map(ToOwned::to_owned);
    let suite = suite(folder.path(), "").worker_program("/usr/bin/env", bare).trials(1);
    let report = suite.only(WALL_CLOCK[0]).run().await;
    let is_unproven =
        |(verdict, finding): &(Verdict, String)| *verdict == Verdict::Unproven && finding.contains("preloads nothing");
    assert!(told(&report).iter().all(is_unproven), "{:#?}", told(&report));
    assert_eq!(report.exit_status(), 3);
}
