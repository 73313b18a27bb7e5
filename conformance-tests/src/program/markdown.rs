//! The matrix as Markdown, for the README. Nothing in it differs from run to run or from machine to machine.

use super::matrix::{self, Mode};
use crate::report::{BackendReport, Report, Verdict};
use lease_core::Claim;

/// Modes whose destinations share one column.
const TOGETHER: &[(Mode, &str)] =
    &[(matrix::SEALED, "sealed, not yet written"), (matrix::NEITHER, "neither"), (matrix::IGNORED, "refusal ignored")];

/// The matrix, without a heading.
pub(crate) fn render(report: &Report) -> String {
    let guarded = matrix::destinations(report, matrix::GUARDED);
    let mut header = vec![
        "lease backend".to_owned(),
        "own fence".to_owned(),
        "same row, no check".to_owned(),
        "no check".to_owned(),
    ];
    header.extend(guarded.iter().map(|destination| format!("guarded: {}", destination.unwrap_or("own store"))));
    header.extend(TOGETHER.iter().map(|(_, heading)| (*heading).to_owned()));
    header.push("after the server was killed".to_owned());

    let mut lines = vec![row(&header), format!("|{}", "---|".repeat(header.len()))];
    lines.extend(report.backends.iter().map(|backend| {
        let word =
            |mode, destination| matrix::word(mode, matrix::cell(report, mode, &backend.name, destination)).to_owned();
        let mut cells = vec![format!("**{}**", backend.name), own_fence(report, backend)];
        cells.push(all(report, matrix::UNCHECKED, backend));
        cells.push(all(report, matrix::PLAIN, backend));
        cells.extend(guarded.iter().map(|destination| word(matrix::GUARDED, *destination)));
        cells.extend(TOGETHER.iter().map(|(mode, _)| all(report, *mode, backend)));
        cells.push(after_a_kill(backend));
        row(&cells)
    }));
    lines.push(String::new());
    lines.push(EXPLAINED.to_owned());
    lines.join("\n") + "\n"
}

const EXPLAINED: &str = "\
Worker A is stopped past its TTL, worker B gets the lease, A goes on and sends the write that it had prepared. **refused**: A's write did
not land; **lands**: it did, which it must wherever nothing checks it, or the test would prove nothing. *Own fence*: a write in the lease's
own store through the fence of that backend, and what happens to the same row without it. *Guarded*: a destination that checks the
fencing token, in the lease's own store or in a separate store of that kind. *Sealed, not yet written*: B has only sealed. *Neither*: B
has done nothing there yet, so the guard knows of no newer token. *Refusal ignored*: A's code ignores the guard's error and commits.";

fn row(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// How the backend's own store fences, and whether that held.
fn own_fence(report: &Report, backend: &BackendReport) -> String {
    match matrix::destinations(report, matrix::NATIVE).first() {
        Some(destination) => {
            let cell = matrix::cell(report, matrix::NATIVE, &backend.name, *destination);
            match cell.map(|cell| cell.verdict) {
                Some(Verdict::Untested | Verdict::HonestNo) => backend.fence.clone(),
                _ => format!("{} ({})", matrix::word(matrix::NATIVE, cell), backend.fence),
            }
        }
        None => backend.fence.clone(),
    }
}

/// One word for all destinations of a mode, or each word with its destinations.
fn all(report: &Report, mode: Mode, backend: &BackendReport) -> String {
    let mut words: Vec<(&str, Vec<&str>)> = Vec::new();
    for destination in matrix::destinations(report, mode) {
        let Some(cell) = matrix::cell(report, mode, &backend.name, destination) else { continue };
        let (word, name) = (matrix::word(mode, Some(cell)), destination.unwrap_or("own store"));
        match words.iter_mut().find(|(known, _)| *known == word) {
            Some((_, names)) => names.push(name),
            None => words.push((word, vec![name])),
        }
    }
    match words.as_slice() {
        [] => "-".to_owned(),
        [(word, names)] if names.len() > 1 => format!("{word} ×{}", names.len()),
        [(word, _)] => (*word).to_owned(),
        several => {
            let parts: Vec<_> = several.iter().map(|(word, names)| format!("{word}: {}", names.join(", "))).collect();
            parts.join("; ")
        }
    }
}

/// What is still there, as the backend claims it: a claim that does not hold is a red cell elsewhere.
fn after_a_kill(backend: &BackendReport) -> String {
    let claims = |claim: Claim| backend.claims.iter().any(|id| id == claim.id());
    match (claims(Claim::LeaseSurvivesRestart), claims(Claim::TokenSurvivesRestart)) {
        (true, true) => "lease stays, token grows",
        (true, false) => "lease stays",
        (false, true) => "token grows",
        (false, false) => "all is gone",
    }
    .to_owned()
}
