//! The whole suite with workers on threads: what is declared is kept, nothing else is there, and what cannot be run is not green.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end by a panic")]
#![expect(unreachable_pub, reason = "the toys are shared by test programs")]

mod tokenless;

use lease_conformance::subject::{Place, ServerControl, TestDestination, Unfenced};
use lease_conformance::{Report, Suite, Verdict, cases, subject};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::{GuardError, LeaseError};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenless::Tokenless;

fn memory() -> Suite {
    let store = MemoryStore::new().unwrap();
    Suite::new(subject("memory", move || std::future::ready(Ok(MemoryBackend::on(store.clone())))))
}

fn red(report: &Report) -> Vec<String> {
    let green = [Verdict::Kept, Verdict::ControlLanded, Verdict::HonestNo, Verdict::Untested];
    let cells = report.cells.iter().filter(|cell| !green.contains(&cell.verdict));
    cells
        .map(|cell| format!("{} {:?}: {} {:?}", cell.case, cell.destination, cell.verdict.name(), cell.finding))
        .collect()
}

#[tokio::test]
async fn the_memory_backend_keeps_what_it_declares() {
    let told = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&told);
    let report = memory()
        .seed(1)
        .progress(move |step| {
            assert!(step.done <= step.total);
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .run()
        .await;
    assert_eq!(red(&report), Vec::<String>::new());
    assert_eq!((report.exit_status(), report.seed), (0, 1));
    assert!(report.missing.is_empty());
    assert_eq!(told.load(Ordering::SeqCst), report.cells.len(), "progress tells of every cell");
    has_its_figures(&report);
    // There is no process whose wall clock could be moved, and another process could not reach the store.
    assert!(report.cells_of("holder/wall-clock-jump").all(|cell| cell.verdict == Verdict::Untested));
    // Its fence is of the other kind, and nobody can write the register behind it unchecked.
    let elsewhere = ["fencing/pause-past-ttl/native-mark", "fencing/pause-past-ttl/native-unchecked"];
    for case in cases().iter().filter(|case| !elsewhere.contains(&case.id)) {
        assert!(report.cells.iter().any(|cell| cell.case == case.id), "{} has no cell", case.id);
    }
}

/// What the holder cases count and measure is in the report, for all of their holders.
fn has_its_figures(report: &Report) {
    let figure = |case: &str, path: &str| {
        let evidence = serde_json::json!(report.cells_of(case).next().unwrap().evidence);
        evidence.pointer(path).unwrap_or_else(|| panic!("{case} has no {path}: {evidence:#}")).clone()
    };
    for (case, measure, not_tried) in [
        ("holder/loss-by-deadline", "least_time_from_last_permit_to_next_grant_us", 3),
        ("holder/no-false-loss", "least_renewal_slack_ms", 2),
    ] {
        let holders = figure(case, "/holders").as_u64().unwrap();
        let kinds = figure(case, "/kinds");
        let of_kinds = kinds.as_object().unwrap().values().map(|kind| kind["holders"].as_u64().unwrap());
        assert!(holders >= 20 && of_kinds.sum::<u64>() == holders, "{case}: {holders} of {kinds}");
        let least = kinds.as_object().unwrap().values().map(|kind| kind[measure].as_u64().unwrap()).min();
        assert_eq!(figure(case, &format!("/{measure}")).as_u64(), least, "{case}: of all holders");
        assert_eq!(
            figure(case, "/kinds_not_tried").as_array().unwrap().len(),
            not_tried,
            "{case}: no server, no hands"
        );
    }
    assert!(figure("holder/no-false-loss", "/trouble_ms/min").as_u64() >= Some(400));
    let guards = figure("holder/ten-thousand-guards", "/guards_at_once");
    for round in ["/renewal_rounds/0", "/renewal_rounds/1"] {
        let of_round = |name: &str| figure("holder/ten-thousand-guards", &format!("{round}/{name}"));
        assert_eq!((of_round("guards"), of_round("requests")), (guards.clone(), guards.clone()));
        assert!(of_round("tasks_at_once").is_u64() && of_round("connections_at_once").is_u64());
    }
}

#[test]
fn ids_are_unique_and_every_case_says_what_it_is() {
    let mut ids: Vec<_> = cases().iter().map(|case| case.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), cases().len());
    for case in cases() {
        assert!(case.title.ends_with('.') && case.explain.ends_with('.'), "{}", case.id);
    }
}

#[tokio::test]
async fn a_lock_without_tokens_is_judged_by_what_it_declares() {
    let store = MemoryStore::new().unwrap();
    let subject = subject("tokenless", move || std::future::ready(Ok(Tokenless::on(&store))));
    let report = Suite::new(subject).run().await;
    assert_eq!(red(&report), Vec::<String>::new());
    assert_eq!(report.exit_status(), 0);
    let verdict = |case: &str| report.cells_of(case).map(|cell| cell.verdict).collect::<Vec<_>>();
    assert_eq!(verdict("token/present"), [Verdict::HonestNo]);
    assert_eq!(verdict("force/repeated"), [Verdict::Untested], "no value to name");
    assert_eq!(verdict("fencing/pause-past-ttl/guarded"), [Verdict::Untested], "no token, nothing to guard with");
    assert_eq!(verdict("fencing/pause-past-ttl/plain"), [Verdict::ControlLanded]);
    assert_eq!(verdict("fencing/pause-past-ttl/cannot-renew"), [Verdict::Kept]);
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_not_green() {
    let refuse =
        || std::future::ready(Err::<MemoryBackend, _>(LeaseError::InvalidConfig { reason: "no store".into() }));
    let report = Suite::new(subject("gone", refuse)).run().await;
    assert!(report.cells.is_empty());
    assert!(report.missing.iter().all(|missing| missing.required && missing.reason.contains("no store")));
    assert_eq!((report.missing.len(), report.exit_status()), (1, 3));
}

#[tokio::test]
async fn a_run_of_nothing_is_not_green() {
    let misspelt = memory().only("exclusions/").run().await;
    assert!(misspelt.missing.iter().any(|missing| missing.reason.contains("exclusions/")), "{:?}", misspelt.missing);
    let nowhere = memory().only("destination/").places(Vec::new()).run().await;
    assert!(nowhere.missing.iter().any(|missing| missing.reason.contains("place")), "{:?}", nowhere.missing);
    assert_eq!((misspelt.exit_status(), nowhere.exit_status(), Report::default().exit_status()), (3, 3, 3));
}

/// A place whose opening ends in a panic.
#[derive(Debug)]
struct Trapdoor;

#[async_trait::async_trait]
impl Place for Trapdoor {
    fn kind(&self) -> &'static str {
        "trapdoor"
    }

    fn store_of(&self) -> Option<&str> {
        None
    }

    fn url(&self, _namespace: &str) -> Option<String> {
        None
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        panic!("{namespace} is not there")
    }

    fn unfenced(&self, _namespace: &str) -> Option<Arc<dyn Unfenced>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_case_that_panics_has_a_red_cell() {
    let report = memory().only("destination/").places(vec![Arc::new(Trapdoor)]).run().await;
    for case in cases().iter().filter(|case| case.id.starts_with("destination/")) {
        let verdicts: Vec<_> = report.cells_of(case.id).map(|cell| cell.verdict).collect();
        assert_eq!(verdicts, [Verdict::Broken], "{}", case.id);
    }
    assert!(report.cells.iter().all(|cell| cell.finding.as_deref().is_some_and(|text| text.contains("is not there"))));
    assert_eq!(report.exit_status(), 1);
}
