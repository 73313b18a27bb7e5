//! What changed from one report to another.

use super::cli::put;
use crate::report::{Report, Verdict};
use crate::survival::{Outcome, SurvivalCell};
use std::collections::{BTreeMap, BTreeSet};

type Key<'a> = (&'a str, &'a str, Option<&'a str>);

/// Prints what differs; the exit status is 1 when anything does.
pub(crate) fn print(before: &Report, after: &Report) -> u8 {
    let lines = lines(before, after);
    if lines.is_empty() {
        let count = after.cells.len().saturating_add(after.survival.len());
        put(&format!("no difference in {count} cells\n"));
        return 0;
    }
    for line in &lines {
        put(&format!("{line}\n"));
    }
    1
}

/// One line for each difference, in order of case, backend and destination.
fn lines(before: &Report, after: &Report) -> Vec<String> {
    let (old, new) = (verdicts(before), verdicts(after));
    let mut lines = Vec::new();
    for backend in &after.backends {
        let Some(earlier) = before.backends.iter().find(|b| b.name == backend.name) else {
            continue;
        };
        for claim in backend.claims.iter().filter(|claim| !earlier.claims.contains(claim)) {
            lines.push(format!("{}: now claims {claim}", backend.name));
        }
        for claim in earlier.claims.iter().filter(|claim| !backend.claims.contains(claim)) {
            lines.push(format!("{}: no longer claims {claim}", backend.name));
        }
    }
    for (key, verdict) in &old {
        match new.get(key) {
            Some(now) if now == verdict => {}
            Some(now) => lines.push(format!("{}: {} -> {}", place(key), verdict.name(), now.name())),
            None => lines.push(format!("{}: {} -> not run", place(key), verdict.name())),
        }
    }
    for (key, verdict) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
        lines.push(format!("{}: not run -> {}", place(key), verdict.name()));
    }
    lines.extend(survival_lines(before, after));
    lines
}

/// The same for what survives a server fault.
fn survival_lines(before: &Report, after: &Report) -> Vec<String> {
    let outcomes = |report: &Report| -> BTreeMap<String, Outcome> {
        let named = |cell: &SurvivalCell| {
            (format!("{} under {} in {} on {}", cell.guarantee, cell.fault, cell.setup, cell.backend), cell.outcome)
        };
        report.survival.iter().map(named).collect()
    };
    let (old, new) = (outcomes(before), outcomes(after));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let word = |outcome: Option<&Outcome>| outcome.map_or("not run", |outcome| outcome.name());
    names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name))
        .map(|name| format!("{name}: {} -> {}", word(old.get(name)), word(new.get(name))))
        .collect()
}

fn verdicts(report: &Report) -> BTreeMap<Key<'_>, Verdict> {
    report
        .cells
        .iter()
        .map(|cell| {
            let key = (cell.case.as_str(), cell.backend.as_str(), cell.destination.as_deref());
            (key, cell.verdict)
        })
        .collect()
}

fn place((case, backend, destination): &Key<'_>) -> String {
    match destination {
        Some(destination) => format!("{case} on {backend} at {destination}"),
        None => format!("{case} on {backend}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Cell;

    fn report(cells: &[(&str, Verdict)]) -> Report {
        Report {
            cells: cells
                .iter()
                .map(|(case, verdict)| Cell {
                    case: (*case).into(),
                    backend: "redis".into(),
                    destination: Some("sqlite".into()),
                    claim: None,
                    verdict: *verdict,
                    trials: 1,
                    finding: None,
                    evidence: BTreeMap::new(),
                    timeline: None,
                })
                .collect(),
            ..Report::default()
        }
    }

    #[test]
    fn names_what_changed_came_and_went() {
        let before = report(&[("a", Verdict::Kept), ("b", Verdict::Kept), ("c", Verdict::Kept)]);
        let after = report(&[("a", Verdict::Kept), ("b", Verdict::Broken), ("d", Verdict::Kept)]);
        assert_eq!(
            lines(&before, &after),
            [
                "b on redis at sqlite: kept -> broken",
                "c on redis at sqlite: kept -> not run",
                "d on redis at sqlite: not run -> kept",
            ]
        );
        assert_eq!(lines(&after, &after), Vec::<String>::new());

        let survival = super::super::render::tests::survival();
        let mut with = Report { survival: survival.into_iter().take(1).collect(), ..report(&[]) };
        let without = report(&[]);
        let came = lines(&without, &with);
        assert!(came.len() == 1 && came.iter().all(|line| line.ends_with(": not run -> survives")), "{came:?}");
        let earlier = with.clone();
        for cell in &mut with.survival {
            cell.outcome = Outcome::Breaks;
        }
        assert!(lines(&earlier, &with).iter().all(|line| line.ends_with(": survives -> breaks")));
        assert_eq!(lines(&earlier, &earlier), Vec::<String>::new());
    }
}
