//! The report for people: matrix, summary, then each mismatch with its evidence and the command that repeats it.

use super::evidence;
use super::expected::Mismatch;
use super::holders;
use super::itself;
use super::layout;
use super::matrix::{self, Mode};
use super::paint::{Paint, Tone};
use super::story;
use crate::report::{Cell, Report, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// The tables of the matrix: modes side by side, so that each table fits the width of a terminal.
pub(super) const TABLES: &[(&str, &[Mode])] = &[
    ("Nothing checks the write (controls: it has to land)", &[matrix::UNCHECKED, matrix::PLAIN, matrix::NEITHER]),
    ("Something checks the write", &[matrix::NATIVE, matrix::GUARDED, matrix::SEALED]),
    ("A careless writer, and A's lease", &[matrix::IGNORED, matrix::KNOWS, matrix::RENEWS, matrix::LEAVES]),
];

/// The whole report as text.
pub(crate) fn render(report: &Report, mismatches: &[Mismatch], paint: Paint, width: u16) -> String {
    let mut out = String::new();
    section(&mut out, paint, "Backends");
    out.push_str(&backends(report, width));
    if report.cells_of("fencing/pause-past-ttl/").next().is_some() {
        out.push_str(&two_workers(report, paint, width));
    }
    if let Some(table) = holders::table(report, width) {
        section(&mut out, paint, "Holders in trouble, and many guards at once");
        out.push_str(&table);
    }
    section(&mut out, paint, "Summary");
    out.push_str(&painted(&summary(report, width), paint));
    for missing in &report.missing {
        let tone = if missing.required { Tone::Bad } else { Tone::Note };
        let what = paint.text(tone, &format!("not run: {}", missing.backend));
        line(&mut out, &format!("{what}: {}", missing.reason));
    }
    out.push_str(&findings(report, mismatches, paint));
    out
}

fn section(out: &mut String, paint: Paint, title: &str) {
    line(out, &format!("\n{}", paint.text(Tone::Strong, title)));
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn backends(report: &Report, width: u16) -> String {
    let mut table = layout::table(width);
    table.set_header(["backend", "server", "own fence", "claims"]);
    for backend in &report.backends {
        table.add_row([&backend.name, &backend.server_version, &backend.fence, &backend.claims.join(", ")]);
    }
    layout::text(&table)
}

fn two_workers(report: &Report, paint: Paint, width: u16) -> String {
    let mut out = String::new();
    let title =
        "Two workers: A is paused past its TTL, B takes over, A wakes up and writes. What becomes of A's write?";
    section(&mut out, paint, &layout::wrapped(title, width));
    for (title, modes) in TABLES {
        let columns: Vec<Column<'_>> = modes
            .iter()
            .flat_map(|mode| matrix::destinations(report, *mode).into_iter().map(|destination| (*mode, destination)))
            .collect();
        if columns.is_empty() {
            continue;
        }
        line(&mut out, &format!("\n{title}"));
        let tables: Vec<String> = tables(report, &columns, width).iter().map(|table| painted(table, paint)).collect();
        out.push_str(&tables.join("\n"));
    }
    line(&mut out, &paint.text(Tone::Faint, &layout::wrapped(&matrix::legend(report), width)));
    out
}

/// A column of the matrix: a mode, and where there are several the destination.
type Column<'a> = (Mode, Option<&'a str>);

/// The columns as one table, or as several where it would be too wide; a mode's columns stay together.
fn tables(report: &Report, columns: &[Column<'_>], width: u16) -> Vec<String> {
    let fits = |table: &str| table.lines().all(|line| line.chars().count() <= usize::from(width));
    let mut tables: Vec<String> = Vec::new();
    let mut begin = 0;
    let mut end = 0_usize;
    for mode in columns.chunk_by(|(one, _), (next, _)| one.heading == next.heading) {
        let before = end;
        end = end.saturating_add(mode.len());
        let longer = matrix_table(report, columns.get(begin..end).unwrap_or(mode));
        match tables.last_mut() {
            Some(last) if fits(&longer) => *last = longer,
            _ => {
                begin = before;
                tables.push(matrix_table(report, mode));
            }
        }
    }
    tables
}

/// The table of these columns, with the headings of their modes, as wide as it needs to be.
fn matrix_table(report: &Report, columns: &[Column<'_>]) -> String {
    let mut table = layout::table(u16::MAX);
    let headings = columns.iter().map(|(mode, destination)| matrix::column(*mode, *destination));
    table.set_header(std::iter::once("backend").chain(headings));
    for backend in &report.backends {
        let words =
            columns.iter().map(|(mode, at)| matrix::word(*mode, matrix::cell(report, *mode, &backend.name, *at)));
        table.add_row(std::iter::once(backend.name.as_str()).chain(words));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    let bands: Vec<&str> = std::iter::once("").chain(columns.iter().map(|(mode, _)| mode.heading)).collect();
    layout::with_bands(&table, &bands)
}

/// Colours the words of the matrix and of the summary, after the table was laid out: colour has no width.
fn painted(text: &str, paint: Paint) -> String {
    if paint == Paint::Plain {
        return text.to_owned();
    }
    let mut text = text.to_owned();
    for (word, tone) in [
        ("refused", Tone::Good),
        ("LANDED", Tone::Bad),
        ("NO-LANDING", Tone::Bad),
        ("UNPROVEN", Tone::Bad),
        ("UNCLAIMED", Tone::Note),
        ("not fenced", Tone::Note),
    ] {
        text = text.replace(word, &paint.text(tone, word));
    }
    text
}

/// One row for each group of cases: the first part of their ids.
fn summary(report: &Report, width: u16) -> String {
    let mut groups: BTreeMap<&str, BTreeMap<Verdict, usize>> = BTreeMap::new();
    for cell in &report.cells {
        let group = cell.case.split('/').next().unwrap_or_default();
        let count = groups.entry(group).or_default().entry(cell.verdict).or_default();
        *count = count.saturating_add(1);
    }
    let seen: Vec<Verdict> =
        Verdict::ALL.into_iter().filter(|verdict| report.cells.iter().any(|cell| cell.verdict == *verdict)).collect();
    let mut table = layout::table(width);
    let headings = seen.iter().map(|verdict| verdict.name().replace('_', " "));
    table.set_header(["cases".to_owned(), "cells".to_owned()].into_iter().chain(headings));
    for (group, counts) in &groups {
        let total: usize = counts.values().sum();
        let numbers =
            seen.iter().map(|verdict| counts.get(verdict).map_or_else(|| "-".to_owned(), ToString::to_string));
        table.add_row([(*group).to_owned(), total.to_string()].into_iter().chain(numbers));
    }
    layout::text(&table)
}

/// The cells that have to be looked at. The first one of each case comes with its evidence; the report has that of all.
fn findings(report: &Report, mismatches: &[Mismatch], paint: Paint) -> String {
    let mut out = String::new();
    let mut count = 0_usize;
    let mut shown = BTreeSet::new();
    for cell in &report.cells {
        let mismatch = mismatches.iter().find(|mismatch| mismatch.is_of(cell));
        if mismatch.is_none() && !needs_a_look(cell.verdict) {
            continue;
        }
        count = count.saturating_add(1);
        let with_evidence = shown.insert((&cell.case, &cell.destination));
        out.push_str(&finding(report, cell, mismatch, with_evidence, paint));
    }
    if count > 0 {
        line(
            &mut out,
            &format!(
                "\n{count} to look at. What a case proves: {} explain CASE. A verdict that is right after all belongs into \
                 expected.toml, with its reason.",
                itself::command()
            ),
        );
    }
    out
}

pub(super) fn needs_a_look(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Broken | Verdict::ControlFailed | Verdict::Unproven | Verdict::Unclaimed)
}

fn finding(report: &Report, cell: &Cell, mismatch: Option<&Mismatch>, with_evidence: bool, paint: Paint) -> String {
    let mut out = String::new();
    let verdict = cell.verdict.name().replace('_', " ");
    let place = cell.destination.as_ref().map_or_else(String::new, |destination| format!(" at {destination}"));
    let title = format!("{} on {}{place}: {verdict}", cell.case, cell.backend);
    line(&mut out, &format!("\n{}", paint.text(Tone::Bad, &title)));
    if let Some(mismatch) = mismatch {
        let expected = mismatch.expected.map_or("nothing: expected.toml does not know the case", Verdict::name);
        line(&mut out, &format!("  expected: {}", expected.replace('_', " ")));
    }
    if let Some(claim) = &cell.claim {
        line(&mut out, &format!("  claim: {claim}"));
    }
    if let Some(text) = &cell.finding {
        line(&mut out, &format!("  {}", text.replace('\n', "\n  ")));
    }
    if with_evidence {
        for evidence in evidence::lines(cell) {
            line(&mut out, &format!("    {evidence}"));
        }
    }
    if let Some(timeline) = &cell.timeline {
        line(&mut out, "  what happened:");
        for event in story::lines(timeline) {
            line(&mut out, &format!("    {event}"));
        }
    }
    line(&mut out, &format!("  repeat: {}", repeat(report, cell)));
    out
}

/// The command that runs this cell again with the same choices.
pub(super) fn repeat(report: &Report, cell: &Cell) -> String {
    let separate = cell.destination.as_deref().and_then(super::Store::from_name);
    let destination = separate.map_or_else(String::new, |store| format!(" --destination {store}"));
    let (backend, case, trials, seed) = (&cell.backend, &cell.case, cell.trials.max(1), report.seed);
    let itself = itself::command();
    format!("{itself} run --backend {backend}{destination} --case {case} --trials {trials} --seed {seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let backend = |name: &str| crate::report::BackendReport {
            name: name.to_owned(),
            server_version: "1.2.3".to_owned(),
            address: String::new(),
            claims: vec!["fencing-token".to_owned(), "native-fence-live-owner".to_owned(), "list-by-prefix".to_owned()],
            fence: "native, live owner".to_owned(),
            limits: BTreeMap::new(),
        };
        let cell = |case: &str, destination: Option<&str>| Cell {
            case: format!("fencing/pause-past-ttl/{case}"),
            backend: "redis".to_owned(),
            destination: destination.map(ToOwned::to_owned),
            claim: None,
            verdict: Verdict::Kept,
            trials: 1,
            finding: None,
            evidence: BTreeMap::new(),
            timeline: None,
        };
        let places = [Cell::SAME_STORE, "sqlite", "redis", "etcd", "postgres"].map(Some);
        let writes = ["guarded", "sealed-not-written", "refusal-ignored"];
        let mut cells = vec![cell("native-live-owner", None), cell("knows-at-first-touch", None)];
        cells.extend(writes.iter().flat_map(|case| places.map(|place| cell(case, place))));
        Report { backends: vec![backend("redis"), backend("redis-fred")], cells, ..Report::default() }
    }

    #[test]
    fn a_red_cell_shows_what_happened_and_how_to_repeat_it() {
        let mut report = report();
        let mark = |at_ms, kind, label: &str| crate::timeline::Mark {
            lane: "A".to_owned(),
            at_ms,
            kind,
            label: label.to_owned(),
        };
        let marks = vec![
            mark(1.0, crate::timeline::MarkKind::Granted, "granted"),
            mark(2_400.0, crate::timeline::MarkKind::StaleCommitted, "A's stale write LANDS"),
        ];
        for cell in report.cells.iter_mut().take(1) {
            cell.verdict = Verdict::Broken;
            cell.timeline = Some(crate::timeline::Timeline { marks: marks.clone(), ..Default::default() });
        }
        let text = render(&report, &[], Paint::Plain, 80);
        let (_, after) = text.split_once("  what happened:\n").unwrap();
        let lines: Vec<_> = after.lines().take(3).collect();
        assert_eq!(lines[..2], ["        1.0 ms  A  + granted", "    2,400.0 ms  A  !! A's stale write LANDS"]);
        assert!(lines[2].starts_with("  repeat: ") && lines[2].contains(" --seed 0"), "{after}");
        for cell in &mut report.cells {
            cell.verdict = Verdict::Kept;
        }
        assert!(!render(&report, &[], Paint::Plain, 80).contains("what happened"), "only where somebody has to look");
    }

    #[test]
    fn a_narrow_terminal_gets_the_same_in_more_tables() {
        let report = report();
        let [narrow, wide] = [80, layout::WIDTH].map(|width| (render(&report, &[], Paint::Plain, width), width));
        for (text, width) in [&narrow, &wide] {
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(*width), "{line}");
            }
        }
        let count = |(text, _): &(String, u16), what: &str| text.matches(what).count();
        assert_eq!(count(&narrow, "refused"), count(&wide, "refused"), "{}", narrow.0);
        assert_eq!((count(&narrow, "\nbackend "), count(&wide, "\nbackend ")), (3, 2), "{}", narrow.0);
    }
}
