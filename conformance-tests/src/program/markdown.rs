//! The matrix as Markdown, for the README. Nothing in it differs from run to run or from machine to machine.

use super::matrix::{self, Mode};
use crate::report::{BackendReport, Cell, Report, Verdict};

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
        cells.push(after_a_kill(report, backend));
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
        None => "-".to_owned(),
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

/// What was still there after the server had been killed, as it was seen.
fn after_a_kill(report: &Report, backend: &BackendReport) -> String {
    let seen = |case: &str| {
        let is_it = |cell: &&Cell| cell.case == case && cell.backend == backend.name;
        report.cells.iter().find(is_it).map(|cell| cell.verdict)
    };
    let (lease, token) = (seen("restart/lease-survives"), seen("restart/token-survives"));
    if (lease, token) == (Some(Verdict::HonestNo), Some(Verdict::HonestNo)) {
        return "all is gone".to_owned();
    }
    let word = |verdict, stays, gone, broken| match verdict {
        Some(Verdict::Kept | Verdict::Unclaimed) => Some(stays),
        Some(Verdict::HonestNo) => Some(gone),
        Some(Verdict::Broken) => Some(broken),
        _ => None,
    };
    let words = [
        word(lease, "lease stays", "lease is gone", "LEASE IS GONE"),
        word(token, "token grows", "token goes back", "TOKEN GOES BACK"),
    ];
    let words: Vec<&str> = words.into_iter().flatten().collect();
    if words.is_empty() { "not tried".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn after(lease: Option<Verdict>, token: Option<Verdict>) -> String {
        let backend = BackendReport {
            name: "redis".into(),
            server_version: String::new(),
            address: String::new(),
            claims: Vec::new(),
            fence: "native, live owner".into(),
            limits: BTreeMap::new(),
        };
        let cell = |case: &str, verdict: Option<Verdict>| {
            let json = serde_json::json!({"case": case, "backend": "redis", "verdict": verdict?, "trials": 1});
            Some(serde_json::from_value::<Cell>(json).unwrap())
        };
        let cells = [cell("restart/lease-survives", lease), cell("restart/token-survives", token)];
        let report = Report { cells: cells.into_iter().flatten().collect(), ..Report::default() };
        assert_eq!(own_fence(&report, &backend), "-", "nothing of it was tried");
        after_a_kill(&report, &backend)
    }

    #[test]
    fn nothing_is_said_of_what_was_not_tried() {
        use Verdict::{Broken, HonestNo, Kept, Unproven, Untested};
        assert_eq!(after(None, None), "not tried");
        assert_eq!(after(Some(Untested), Some(Unproven)), "not tried");
        assert_eq!(after(Some(Kept), Some(Kept)), "lease stays, token grows");
        assert_eq!(after(Some(HonestNo), Some(HonestNo)), "all is gone");
        assert_eq!(after(Some(HonestNo), Some(Kept)), "lease is gone, token grows");
        assert_eq!(after(Some(Kept), Some(Broken)), "lease stays, TOKEN GOES BACK");
    }
}
