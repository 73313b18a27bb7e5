//! No case without its saboteur: whichever is in the registry is caught by name, here or in the test that is named.

#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "a test may end by a panic, and the toys are broken on purpose"
)]
#![expect(unreachable_pub, dead_code, reason = "the toys are shared by test programs")]

mod flawed;
mod toy;

use std::collections::BTreeSet;

/// Cases that a test outside of the tables shows to fail, and which.
const ELSEWHERE: &[(&str, &str)] = &[
    ("exclusion/across-processes", "library_process: processes_that_do_not_share_their_store_are_caught"),
    ("fencing/plain/effect-without-key", "plain: each_flaw_is_found_by_its_case"),
    ("fencing/plain/idempotency-a-first", "plain: each_flaw_is_found_by_its_case"),
    ("fencing/plain/idempotency-b-first", "plain: each_flaw_is_found_by_its_case"),
    ("fencing/plain/idempotency-other-payload", "plain: each_flaw_is_found_by_its_case"),
    ("fencing/plain/version-condition", "plain: each_flaw_is_found_by_its_case"),
    ("fencing/plain/version-read-late", "plain: each_flaw_is_found_by_its_case"),
    ("holder/wall-clock-jump", "library_process: what_counts_on_the_wall_clock_is_caught"),
    ("holder/wall-clock-jump-by-hand", "library_process: what_counts_on_the_wall_clock_is_caught"),
    ("holder/wall-clock-jump-without-renewal", "library_process: what_counts_on_the_wall_clock_is_caught"),
];

/// Cases that nothing is shown to fail, and why.
const WITHOUT: &[(&str, &str)] = &[(
    "fencing/pause-past-ttl/native-mark",
    "no backend of the workspace has a fence by mark; what is judged is what `native-live-owner` judges, at another claim",
)];

fn in_tables() -> BTreeSet<&'static str> {
    let backend = toy::caught::BACKEND.iter().map(|(_, cases)| cases);
    let destination = toy::caught::DESTINATION.iter().map(|(_, cases)| cases);
    let flaws = flawed::caught::FLAWS.iter().map(|(_, cases)| cases);
    backend.chain(destination).chain(flaws).flat_map(|cases| cases.iter().copied()).collect()
}

#[test]
fn every_case_of_the_registry_has_a_saboteur() {
    let (tables, known): (_, BTreeSet<&str>) =
        (in_tables(), lease_conformance::cases().iter().map(|it| it.id).collect());
    let said: BTreeSet<&str> = ELSEWHERE.iter().chain(WITHOUT).map(|(case, _)| *case).collect();
    let without: Vec<&&str> = known.iter().filter(|case| !tables.contains(*case) && !said.contains(*case)).collect();
    assert!(without.is_empty(), "nothing is shown to fail these: {without:#?}");
    // What is said stays true: no exception that is none any more, and no name that nothing has.
    let stale: Vec<&&str> = said.iter().filter(|case| tables.contains(*case)).collect();
    assert!(stale.is_empty(), "these are in a table, and need no exception: {stale:#?}");
    let unknown: Vec<&&str> = tables.union(&said).filter(|case| !known.contains(**case)).collect();
    assert!(unknown.is_empty(), "the registry has none of these: {unknown:#?}");
}

#[test]
fn the_tests_that_are_named_are_there() {
    for (case, test) in ELSEWHERE {
        let (file, name) = test.split_once(": ").unwrap();
        let path = format!("{}/tests/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(path).unwrap();
        assert!(
            source.contains(&format!("async fn {name}("))
                && (source.contains(&format!("{name}().await;")) || source.contains("#[tokio::test")),
            "{case}"
        );
    }
}
