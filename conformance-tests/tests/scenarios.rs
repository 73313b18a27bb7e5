//! The table of public failures: every one is there, and what is said to keep it cured exists.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_conformance::program::scenarios::{Scenario, markdown, scenarios};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every report, by the kind of fault.
#[rustfmt::skip]
const REPORTS: &[(&str, &[u32])] = &[
    ("STALE", &[1, 3]),
    ("LOSS", &[4, 6, 8]),
    ("RENEW", &[9, 10, 11, 13, 14]),
    ("ZOMBIE", &[16, 18, 19]),
    ("RELEASE", &[20, 22, 24, 25]),
    ("AMBIG", &[26, 27, 28, 30, 31]),
    ("CANCEL", &[33, 35, 37, 38, 39]),
    ("SESSION", &[40, 41, 42, 44, 45]),
    ("RECONN", &[48, 50, 51]),
    ("POOL", &[52, 54]),
    ("DBTXN", &[55, 57, 59, 60]),
    ("CLOCK", &[61, 63, 65, 66]),
    ("TTL", &[67, 69, 71, 72, 73]),
    ("WAIT", &[74, 76, 78, 79]),
    ("NAMES", &[80, 81, 82, 84, 86, 88, 89]),
    ("IDENT", &[90, 91, 93]),
    ("ETCD", &[94, 95, 96, 98, 99, 101]),
    ("WAKE", &[102, 103, 104, 106, 108, 110]),
    ("FAILOVER", &[111, 113, 115, 117, 118]),
    ("FENCE", &[119, 121, 122]),
    ("ORPHAN", &[124, 126, 128]),
    ("LOCAL", &[129, 131, 132]),
    ("API", &[133, 135, 136]),
    ("SQLITE", &[137, 139]),
    ("SCHED", &[140, 142]),
];

/// Where something is still to be done. By kind: waiting that the store pushes.
const OPEN_KINDS: &[&str] = &["WAKE"];

/// Of the others, those of which a part is not tried.
const OPEN_PARTS: &[&str] = &["B37", "B40", "B54", "B65", "B79", "B81", "B126"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// What is wrong with each scenario.
fn wrong(what: impl Fn(&Scenario) -> Vec<String>) -> Vec<String> {
    let table = scenarios().unwrap();
    table.iter().flat_map(|scenario| what(scenario).into_iter().map(|it| format!("{}: {it}", scenario.id))).collect()
}

#[test]
fn every_report_is_there_once_under_its_kind_and_in_order() {
    let expected = REPORTS.iter().flat_map(|(class, ids)| ids.iter().map(move |id| (format!("B{id:02}"), *class)));
    let table = scenarios().unwrap();
    let found = table.iter().map(|scenario| (scenario.id.clone(), scenario.class.as_str()));
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn each_has_its_line_its_source_and_something_that_keeps_it_cured() {
    let wrong = wrong(|scenario| {
        let mut wrong = Vec::new();
        if !scenario.title.ends_with('.') || scenario.title.contains('\n') || scenario.title.chars().count() > 140 {
            wrong.push(format!("not one line: {}", scenario.title));
        }
        if !scenario.report.starts_with("https://") {
            wrong.push(format!("no address: {}", scenario.report));
        }
        let texts = [&scenario.never, &scenario.open];
        if texts.into_iter().flatten().any(|text| text.trim().is_empty()) {
            wrong.push("an empty reason".to_owned());
        }
        if !scenario.is_covered() && scenario.open.is_none() {
            wrong.push("nothing keeps it cured".to_owned());
        }
        wrong
    });
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn nothing_is_open_but_where_it_is_known() {
    let table = scenarios().unwrap();
    let open = table.iter().filter(|it| it.open.is_some());
    let (kinds, parts): (Vec<_>, Vec<_>) = open.partition(|it| OPEN_KINDS.contains(&it.class.as_str()));
    let kinds: BTreeSet<&str> = kinds.iter().map(|it| it.class.as_str()).collect();
    assert_eq!(kinds, OPEN_KINDS.iter().copied().collect());
    assert_eq!(parts.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), OPEN_PARTS);
}

#[test]
fn every_case_that_is_named_is_in_the_registry() {
    let known: BTreeSet<&str> = lease_conformance::cases().iter().map(|case| case.id).collect();
    let wrong = wrong(|scenario| {
        let mut seen = BTreeSet::new();
        let cases = scenario.cases.iter();
        let bad = cases.filter(|case| !known.contains(case.as_str()) || !seen.insert(case.as_str()));
        bad.map(|case| format!("no such case, or twice: {case}")).collect()
    });
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_scene_that_is_named_is_played() {
    let known: BTreeSet<String> = lease_conformance::survival::scenes()
        .iter()
        .map(|scene| format!("{} × {}", scene.setup, scene.fault))
        .collect();
    let wrong = wrong(|scenario| {
        let mut seen = BTreeSet::new();
        let bad =
            scenario.scenes.iter().filter(|scene| !known.contains(scene.as_str()) || !seen.insert(scene.as_str()));
        bad.map(|scene| format!("no such scene, or twice: {scene}")).collect()
    });
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_test_that_is_named_is_a_test_in_its_file() {
    let wrong = wrong(|scenario| {
        let mut seen = BTreeSet::new();
        let tests = scenario.tests.iter();
        tests.filter_map(|test| if seen.insert(test) { absent(test) } else { Some(format!("twice: {test}")) }).collect()
    });
    assert_eq!(wrong, Vec::<String>::new());
}

/// Why there is no such test.
fn absent(test: &str) -> Option<String> {
    let parts: Vec<&str> = test.split("::").collect();
    let [package, file, name] = parts.as_slice() else {
        return Some(format!("write it as PACKAGE::FILE::NAME: {test}"));
    };
    let path = workspace().join(package).join(file);
    let Ok(source) = std::fs::read_to_string(&path) else {
        return Some(format!("no such file: {test}"));
    };
    let lines: Vec<&str> = source.lines().collect();
    let is_it = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
    };
    let at = lines.iter().position(|line| is_it(line));
    // Attributes stand before it; or it is in a macro that makes a test for each client of it.
    let attributes =
        |at: usize| lines.iter().take(at).rev().take_while(|line| line.trim_start().starts_with(['#', '/']));
    let is_test = |at: usize| {
        let is_attribute = |line: &str| ["#[test]", "#[tokio::test"].iter().any(|it| line.trim_start().starts_with(it));
        attributes(at).any(|line| is_attribute(line)) || lines.iter().take(at).any(|line| line.starts_with("both! {"))
    };
    (!at.is_some_and(is_test)).then(|| format!("no such test: {test}"))
}

#[test]
fn a_test_that_is_not_there_is_found() {
    for test in [
        "conformance-tests::tests/scenarios.rs::no_such_test",
        "conformance-tests::tests/scenarios.rs::workspace",
        "conformance-tests::tests/no_such_file.rs::x",
        "conformance-tests::x",
    ] {
        assert!(absent(test).is_some(), "{test}");
    }
    assert_eq!(absent("conformance-tests::tests/scenarios.rs::a_test_that_is_not_there_is_found"), None);
}

#[test]
fn the_printed_table_is_in_step() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("SCENARIOS.md");
    let printed = std::fs::read_to_string(path).unwrap();
    let advice = "run: lease-conformance scenarios > conformance-tests/SCENARIOS.md";
    assert!(printed == markdown(&scenarios().unwrap()), "SCENARIOS.md is not what scenarios.toml says; {advice}");
    let output = Command::new(env!("CARGO_BIN_EXE_lease-conformance")).arg("scenarios").output().unwrap();
    assert!(output.status.success() && output.stdout == printed.as_bytes());
}

#[test]
fn a_case_is_explained_with_the_failures_that_it_stands_for() {
    let explain = |case: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_lease-conformance")).args(["explain", case]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let told = explain("expiry/frees");
    for scenario in scenarios().unwrap() {
        let is_its = scenario.cases.iter().any(|case| case == "expiry/frees");
        assert_eq!(told.contains(&scenario.title), is_its, "{}", scenario.id);
    }
    let unnamed = lease_conformance::cases()
        .iter()
        .find(|case| scenarios().unwrap().iter().all(|scenario| scenario.cases.iter().all(|named| named != case.id)));
    assert!(!explain(unnamed.unwrap().id).contains("in public"), "nothing is said where there is nothing to say");
}
