//! Every probe catches the saboteur that it is for, by name, and passes its honest twin.

#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "a test may end by a panic, and the toys are broken on purpose"
)]
#![expect(unreachable_pub, reason = "the toys are shared by test programs")]

mod toy;

use lease_conformance::{Cell, Suite, Verdict};
use std::sync::Arc;
use toy::Toy;
use toy::caught::{BACKEND, DESTINATION};
use toy::place::ToyPlace;
use toy::subject::ToySubject;

/// How many saboteurs are run at the same time.
const AT_ONCE: usize = 12;

async fn run(backend: Option<toy::Break>, place: Option<toy::place::Break>, only: &[&str]) -> Vec<Cell> {
    let mut suite = Suite::new(Arc::new(ToySubject(Toy::new(backend)))).places(vec![Arc::new(ToyPlace::new(place))]);
    for prefix in only {
        suite = suite.only(*prefix);
    }
    suite.run().await.cells
}

/// What is wrong with the cells that should have caught it.
fn missed(name: &str, cells: &[Cell], cases: &[&str]) -> Vec<String> {
    let caught = |case: &&&str| {
        let mut cells = cells.iter().filter(|cell| cell.case == **case);
        cells.any(|cell| matches!(cell.verdict, Verdict::Broken | Verdict::ControlFailed) && cell.finding.is_some())
    };
    let missed = cases.iter().filter(|case| !caught(case));
    missed.map(|case| format!("{name} was not caught by {case}: {:?}", verdicts(cells))).collect()
}

fn verdicts(cells: &[Cell]) -> Vec<(&str, Verdict, &Option<String>)> {
    cells.iter().map(|cell| (cell.case.as_str(), cell.verdict, &cell.finding)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_saboteur_is_caught_by_its_case() {
    let mut runs = tokio::task::JoinSet::new();
    // Some at a time: what a saboteur does for a moment only is not seen where each look takes longer than that.
    let turns = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    for (sabotage, cases) in BACKEND {
        let turns = Arc::clone(&turns);
        runs.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            missed(&format!("{sabotage:?}"), &run(Some(*sabotage), None, cases).await, cases)
        });
    }
    for (sabotage, cases) in DESTINATION {
        let turns = Arc::clone(&turns);
        runs.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            missed(&format!("{sabotage:?}"), &run(None, Some(*sabotage), cases).await, cases)
        });
    }
    let missed: Vec<String> = runs.join_all().await.into_iter().flatten().collect();
    assert_eq!(missed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_honest_twin_passes_them_all() {
    let cells = run(None, None, &[]).await;
    let red = cells.iter().filter(|cell| {
        !matches!(cell.verdict, Verdict::Kept | Verdict::ControlLanded | Verdict::HonestNo | Verdict::Untested)
    });
    let red: Vec<Cell> = red.cloned().collect();
    assert!(red.is_empty(), "{:#?}", verdicts(&red));
    let sabotaged = BACKEND.iter().map(|(_, cases)| cases).chain(DESTINATION.iter().map(|(_, cases)| cases));
    for case in sabotaged.flat_map(|cases| cases.iter()) {
        let of_case = cells.iter().filter(|cell| cell.case == *case);
        assert!(
            of_case.clone().count() > 0
                && of_case.clone().all(|cell| matches!(cell.verdict, Verdict::Kept | Verdict::ControlLanded)),
            "the twin should keep {case}: {:?}",
            verdicts(&of_case.cloned().collect::<Vec<_>>())
        );
    }
}
