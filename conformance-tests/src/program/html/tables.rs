//! The tables of the page: the backends, the matrix, and every case on every backend.

use super::entry::{Entry, Tone};
use crate::program::markup::{escaped, push};
use crate::program::matrix::{self, Mode};
use crate::program::terminal::TABLES;
use crate::report::{Cell, Report, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// The cells with what the page says of each.
pub(super) type Entries<'a> = [(&'a Cell, Entry<'a>)];

/// The backends, as they declared themselves.
pub(super) fn backends(report: &Report) -> String {
    let mut out = String::from(
        "<div class=\"wide\"><table class=\"backends\"><thead><tr><th>backend</th><th>server</th><th>address</th><th>own fence</th><th>claims</th>\
         <th>limits</th></tr></thead><tbody>\n",
    );
    for backend in &report.backends {
        let limits: Vec<String> =
            backend.limits.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
        let values =
            [&backend.server_version, &backend.address, &backend.fence, &backend.claims.join(", "), &limits.join(", ")];
        push!(out, "<tr><th scope=\"row\">{}</th>", escaped(&backend.name));
        for value in values {
            push!(out, "<td>{}</td>", escaped(value));
        }
        out.push_str("</tr>\n");
    }
    out + "</tbody></table></div>\n"
}

/// The two-worker test: what became of the stale write, by lease backend and destination.
pub(super) fn two_workers(report: &Report, entries: &Entries<'_>) -> String {
    let mut out = String::new();
    for (title, modes) in TABLES {
        let columns: Vec<(Mode, Vec<Option<&str>>)> = modes
            .iter()
            .map(|mode| (*mode, matrix::destinations(report, *mode)))
            .filter(|(_, found)| !found.is_empty())
            .collect();
        if columns.is_empty() {
            continue;
        }
        push!(
            out,
            "<h3>{}</h3>\n<div class=\"wide\"><table class=\"matrix\"><thead>{}</thead><tbody>\n",
            escaped(title),
            heading(&columns)
        );
        for backend in &report.backends {
            push!(out, "<tr><th scope=\"row\">{}</th>", escaped(&backend.name));
            for (mode, destinations) in &columns {
                for destination in destinations {
                    let cell = matrix::cell(report, *mode, &backend.name, *destination);
                    push!(out, "<td>{}</td>", linked(entries, *mode, cell));
                }
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
    }
    out + &format!("<p class=\"faint\">{}</p>\n", escaped(&matrix::legend(report)))
}

/// Two rows: what was done, and where. Facts about A's lease have one heading together.
fn heading(columns: &[(Mode, Vec<Option<&str>>)]) -> String {
    let mut above = String::from("<tr><th rowspan=\"2\">lease backend</th>");
    for band in columns.chunk_by(|(one, _), (next, _)| one.heading == next.heading) {
        let width: usize = band.iter().map(|(_, destinations)| destinations.len()).sum();
        let heading = band.first().map_or("", |(mode, _)| mode.heading);
        push!(above, "<th colspan=\"{width}\">{}</th>", escaped(heading));
    }
    let mut below = String::from("</tr><tr>");
    for (mode, destinations) in columns {
        for destination in destinations {
            push!(below, "<th>{}</th>", escaped(matrix::column(*mode, *destination)));
        }
    }
    above + &below + "</tr>"
}

fn linked(entries: &Entries<'_>, mode: Mode, cell: Option<&Cell>) -> String {
    let word = matrix::word(mode, cell);
    let entry = cell.and_then(|cell| entries.iter().find(|(other, _)| std::ptr::eq(*other, cell)));
    entry.map_or_else(|| escaped(word), |(_, entry)| entry.link(word))
}

/// Every case on every backend, each cell with a link to its evidence.
pub(super) fn cases(report: &Report, entries: &Entries<'_>) -> String {
    let mut names: Vec<&str> = report.backends.iter().map(|backend| backend.name.as_str()).collect();
    for (cell, _) in entries {
        if !names.contains(&cell.backend.as_str()) {
            names.push(&cell.backend);
        }
    }
    let mut out = String::from("<div class=\"wide\"><table class=\"cases\"><thead><tr><th>case</th>");
    for name in &names {
        push!(out, "<th>{}</th>", escaped(name));
    }
    out.push_str("</tr></thead><tbody>\n");
    let mut seen = BTreeSet::new();
    for (cell, _) in entries.iter().filter(|(cell, _)| seen.insert(&cell.case)) {
        push!(out, "<tr><th scope=\"row\" title=\"{}\">{}</th>", escaped(title(&cell.case)), escaped(&cell.case));
        for name in &names {
            let links: Vec<String> = entries
                .iter()
                .filter(|(other, _)| other.case == cell.case && other.backend == **name)
                .map(|(other, entry)| entry.link(&word(other)))
                .collect();
            push!(out, "<td>{}</td>", links.join("<br>"));
        }
        out.push_str("</tr>\n");
    }
    out + "</tbody></table></div>\n"
}

fn title(case: &str) -> &'static str {
    crate::cases().iter().find(|info| info.id == case).map_or("", |info| info.title)
}

/// The verdict, with the destination where there is one.
fn word(cell: &Cell) -> String {
    let verdict = cell.verdict.name().replace('_', " ");
    cell.destination.as_ref().map_or_else(|| verdict.clone(), |destination| format!("{destination}: {verdict}"))
}

/// How many cells have each verdict.
pub(super) fn counts(report: &Report) -> String {
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    for cell in &report.cells {
        let count = counts.entry(cell.verdict).or_default();
        *count = count.saturating_add(1);
    }
    let count = |(verdict, count): (&Verdict, &usize)| {
        let (class, name) = (Tone::of(*verdict).class(), verdict.name().replace('_', " "));
        format!("<span class=\"w {class}\">{count} {name}</span>")
    };
    counts.iter().map(count).collect::<Vec<_>>().join(" ")
}
