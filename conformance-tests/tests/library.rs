//! The whole suite on the memory backend, with workers on threads: everything that is declared is kept, and nothing else is there.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_conformance::{Report, Suite, Verdict, cases, subject};
use lease_core::memory::{MemoryBackend, MemoryStore};

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
    let report = memory().seed(1).run().await;
    assert_eq!(red(&report), Vec::<String>::new());
    assert_eq!(report.exit_status(), 0);
    assert!(report.missing.is_empty());
    for case in cases() {
        assert!(
            report.cells.iter().any(|cell| cell.case == case.id)
                || case.id.ends_with("/native-mark")
                || case.id.ends_with("/native-unchecked"),
            "{} has no cell",
            case.id
        );
    }
    for cell in &report.cells {
        println!(
            "{:60} {:12} {:15} {:?}",
            cell.case,
            cell.destination.as_deref().unwrap_or(""),
            cell.verdict.name(),
            cell.finding
        );
    }
}
