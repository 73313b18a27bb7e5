//! The soak finds what is broken, by the histories alone, and nothing in the honest twin.

#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "a test may end by a panic, and the toys are plain"
)]
#![expect(dead_code, unreachable_pub, reason = "the toys are shared by test programs")]

mod toy;

use lease_conformance::soak::{CASE, Soak};
use lease_conformance::{Cell, Report, Verdict, subject};
use std::sync::Arc;
use std::time::Duration;
use toy::place::ToyPlace;
use toy::{Break, Toy};

fn soak(broken: Option<Break>, guard: Option<toy::place::Break>, seed: u64) -> Soak {
    let store = Toy::new(broken);
    let subject = subject("toy", move || std::future::ready(Ok(store.another())));
    Soak::new(subject).place(Arc::new(ToyPlace::new(guard))).seed(seed).time(Duration::from_secs(8))
}

fn cell(report: &Report) -> &Cell {
    assert_eq!((report.cells.len(), report.missing.len()), (1, 0), "{report:#?}");
    let cell = &report.cells[0];
    assert_eq!(cell.case, CASE);
    cell
}

fn number(cell: &Cell, name: &str) -> u64 {
    cell.evidence.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_honest_twin_passes_and_the_seed_repeats_the_schedule() {
    let reports = [tokio::spawn(soak(None, None, 3).run()), tokio::spawn(soak(None, None, 3).run())];
    let mut hashes = Vec::new();
    for report in reports {
        let report = report.await.unwrap();
        let cell = cell(&report);
        assert_eq!((cell.verdict, &cell.finding), (Verdict::Kept, &None), "{:#?}", cell.evidence);
        assert!(number(cell, "grants") > 0 && number(cell, "commits") > 0 && number(cell, "fault_count") > 0);
        assert_eq!((number(cell, "violations"), report.exit_status()), (0, 0));
        hashes.push(cell.evidence.get("schedule_hash").cloned());
    }
    assert_eq!(hashes[0], hashes[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_saboteur_is_found() {
    use toy::place::Break as Guard;
    let table = [
        ("two live grants at once", Some(Break::RenewWithoutOwner), None),
        ("two live grants at once", Some(Break::ExpiresEarly), None),
        ("two live grants at once", Some(Break::ReleaseWithoutOwner), None),
        ("two grants have one value", Some(Break::TokenOfTheClient), None),
        ("a write below the mark", None, Some(Guard::ForgetsMark)),
        ("a write below the mark", None, Some(Guard::TellsWrittenWhenRefused)),
    ];
    let running: Vec<_> = table
        .into_iter()
        .map(|(finding, broken, guard)| {
            (format!("{broken:?} {guard:?}"), finding, tokio::spawn(soak(broken, guard, 5).run()))
        })
        .collect();
    for (who, expected, report) in running {
        let report = report.await.unwrap();
        let cell = cell(&report);
        assert_eq!((cell.verdict, report.exit_status()), (Verdict::Broken, 1), "{who}: {:#?}", cell.evidence);
        let finding = cell.finding.as_deref().unwrap_or_default();
        assert!(finding.contains(expected), "{who}: {finding}");
    }
}
