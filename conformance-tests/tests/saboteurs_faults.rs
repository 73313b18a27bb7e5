//! Adapters that are wrong about what they do not know, or that a dropped call spoils: each is caught by its cases, by name, and the honest
//! twin passes.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]
#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "the toys are broken on purpose"
)]
#![expect(unreachable_pub, dead_code, reason = "the toys are shared by test programs")]

mod flawed;
mod toy;

use flawed::caught::FLAWS;
use flawed::{Flaw, FlawedSubject};
use lease_conformance::{Cell, Suite, Verdict};
use std::sync::Arc;

async fn run(flaw: Option<Flaw>, only: &[&str]) -> Vec<Cell> {
    let mut suite = Suite::new(Arc::new(FlawedSubject::new(flaw)));
    for prefix in only {
        suite = suite.only(*prefix);
    }
    suite.run().await.cells
}

fn verdicts(cells: &[Cell]) -> Vec<(&str, Verdict, &Option<String>)> {
    cells.iter().map(|cell| (cell.case.as_str(), cell.verdict, &cell.finding)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flaw_is_caught_by_its_cases() {
    let mut runs = tokio::task::JoinSet::new();
    for (flaw, cases) in FLAWS {
        runs.spawn(async move {
            let cells = run(Some(*flaw), cases).await;
            let caught = |case: &&&str| {
                cells
                    .iter()
                    .any(|cell| cell.case == **case && cell.verdict == Verdict::Broken && cell.finding.is_some())
            };
            let missed = cases.iter().filter(|case| !caught(case));
            missed.map(|case| format!("{flaw:?} was not caught by {case}: {:?}", verdicts(&cells))).collect::<Vec<_>>()
        });
    }
    let missed: Vec<String> = runs.join_all().await.into_iter().flatten().collect();
    assert_eq!(missed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_honest_twin_passes_them_all() {
    let cells = run(None, &["unknown/", "cancel/"]).await;
    let red: Vec<Cell> = cells.iter().filter(|cell| cell.verdict != Verdict::Kept).cloned().collect();
    assert!(red.is_empty(), "{:#?}", verdicts(&red));
    for case in FLAWS.iter().flat_map(|(_, cases)| cases.iter()) {
        assert!(cells.iter().any(|cell| cell.case == *case), "{case} has no cell");
    }
}
