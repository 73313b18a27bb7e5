//! The report for people: matrix, summary, then each mismatch with its evidence and the command that repeats it.

use super::evidence;
use super::expected::Mismatch;
use super::layout;
use super::matrix::{self, Mode};
use super::paint::{Paint, Tone};
use crate::report::{Cell, Report, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// The tables of the matrix: modes side by side, so that each table fits the width of a terminal.
const TABLES: &[(&str, &[Mode])] = &[
    ("Nothing checks the write (controls: it has to land)", &[matrix::UNCHECKED, matrix::PLAIN, matrix::NEITHER]),
    ("Something checks the write", &[matrix::NATIVE, matrix::GUARDED, matrix::SEALED]),
    ("A careless writer, and A's lease", &[matrix::IGNORED, matrix::KNOWS, matrix::RENEWS, matrix::LEAVES]),
];

/// The whole report as text.
pub(crate) fn render(report: &Report, mismatches: &[Mismatch], paint: Paint) -> String {
    let mut out = String::new();
    section(&mut out, paint, "Backends");
    out.push_str(&backends(report));
    if report.cells_of("fencing/pause-past-ttl/").next().is_some() {
        out.push_str(&two_workers(report, paint));
    }
    section(&mut out, paint, "Summary");
    out.push_str(&painted(&summary(report), paint));
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

fn backends(report: &Report) -> String {
    let mut table = layout::table();
    table.set_header(["backend", "server", "own fence", "claims"]);
    for backend in &report.backends {
        table.add_row([&backend.name, &backend.server_version, &backend.fence, &backend.claims.join(", ")]);
    }
    layout::text(&table)
}

fn two_workers(report: &Report, paint: Paint) -> String {
    let mut out = String::new();
    section(
        &mut out,
        paint,
        "Two workers: A is paused past its TTL, B takes over, A wakes up and writes. What becomes of A's write?",
    );
    for (title, modes) in TABLES {
        let columns: Vec<(Mode, Option<&str>)> = modes
            .iter()
            .flat_map(|mode| matrix::destinations(report, *mode).into_iter().map(|destination| (*mode, destination)))
            .collect();
        if columns.is_empty() {
            continue;
        }
        line(&mut out, &format!("\n{title}"));
        let mut table = layout::table();
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
        out.push_str(&painted(&layout::with_bands(&table, &bands), paint));
    }
    line(&mut out, &paint.text(Tone::Faint, &matrix::legend(report)));
    out
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
fn summary(report: &Report) -> String {
    let mut groups: BTreeMap<&str, BTreeMap<Verdict, usize>> = BTreeMap::new();
    for cell in &report.cells {
        let group = cell.case.split('/').next().unwrap_or_default();
        let count = groups.entry(group).or_default().entry(cell.verdict).or_default();
        *count = count.saturating_add(1);
    }
    let seen: Vec<Verdict> =
        Verdict::ALL.into_iter().filter(|verdict| report.cells.iter().any(|cell| cell.verdict == *verdict)).collect();
    let mut table = layout::table();
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
                "\n{count} to look at. What a case proves: lease-conformance explain CASE. A verdict that is right after all belongs into \
             expected.toml, with its reason."
            ),
        );
    }
    out
}

fn needs_a_look(verdict: Verdict) -> bool {
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
    line(&mut out, &format!("  repeat: {}", repeat(report, cell)));
    out
}

/// The command that runs this cell again with the same choices.
fn repeat(report: &Report, cell: &Cell) -> String {
    let separate = cell.destination.as_deref().and_then(super::Store::from_name);
    let destination = separate.map_or_else(String::new, |store| format!(" --destination {store}"));
    let (backend, case, trials, seed) = (&cell.backend, &cell.case, cell.trials.max(1), report.seed);
    format!("lease-conformance run --backend {backend}{destination} --case {case} --trials {trials} --seed {seed}")
}
