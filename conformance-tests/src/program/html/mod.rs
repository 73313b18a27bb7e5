//! The report as one HTML page that needs nothing else: no script, no other file.

mod entry;
mod style;
mod survival;
mod tables;

use super::expected::Mismatch;
use super::markup::{escaped, push};
use super::{render, svg};
use crate::report::{Cell, Report};
use crate::survival::SurvivalCell;
use entry::{Entry, Tone};

/// The whole page.
pub(crate) fn render(report: &Report, mismatches: &[Mismatch]) -> String {
    let (of_cells, of_survival) = render::names(report);
    let survived: Vec<(&SurvivalCell, Entry<'_>)> =
        report.survival.iter().zip(of_survival).map(|(cell, id)| (cell, Entry::of_survival(cell, id))).collect();
    let entries: Vec<(&Cell, Entry<'_>)> = report
        .cells
        .iter()
        .zip(of_cells)
        .map(|(cell, id)| {
            let mismatch = mismatches.iter().find(|mismatch| mismatch.is_of(cell));
            (cell, Entry::of_cell(report, cell, id, mismatch))
        })
        .collect();
    let mut out = head();
    let all: Vec<&Entry<'_>> =
        entries.iter().map(|(_, entry)| entry).chain(survived.iter().map(|(_, entry)| entry)).collect();
    out.push_str(&summary(report, &all));
    out.push_str(&to_look_at(report, &all));
    if has_two_workers(report) {
        out.push_str("<h2 id=\"two-workers\">Two workers</h2>\n");
        out.push_str("<p>Worker A is stopped past its TTL, worker B gets the lease, A wakes up and sends the write that it had prepared. \
             What becomes of A's write? Each word leads to what was seen.</p>\n");
        out.push_str(&tables::two_workers(report, &entries));
    }
    if !survived.is_empty() {
        out.push_str("<h2 id=\"survival\">What survives a server fault</h2>\n");
        out.push_str(&survival::tables(&survived));
    }
    if !entries.is_empty() {
        out.push_str("<h2 id=\"cases\">Every case on every backend</h2>\n");
        out.push_str(&tables::cases(report, &entries));
    }
    out.push_str("<h2 id=\"backends\">Backends</h2>\n<p>As each of them declared itself when it was connected.</p>\n");
    out.push_str(&tables::backends(report));
    out.push_str("<h2 id=\"evidence\">Evidence</h2>\n");
    for entry in all.iter().filter(|entry| !entry.is_red) {
        out.push_str(&entry.details());
    }
    out + "</body></html>\n"
}

fn has_two_workers(report: &Report) -> bool {
    report.cells_of("fencing/pause-past-ttl/").next().is_some()
}

fn head() -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Lease conformance</title>\n<style>{}{}</style></head>\n<body>\n",
        style::STYLE,
        svg::STYLE
    )
}

/// What was run, and what came of it.
fn summary(report: &Report, entries: &[&Entry<'_>]) -> String {
    let red = entries.iter().filter(|entry| entry.is_red).count();
    let missing = report.missing.iter().filter(|missing| missing.required).count();
    let (tone, words) = match (red, missing, entries.len()) {
        (0, 0, 0) => (Tone::Bad, "nothing was run".to_owned()),
        (0, 0, _) => (Tone::Good, "declared equals observed".to_owned()),
        (red, 0, _) => (Tone::Bad, format!("{red} to look at")),
        (red, missing, _) => (Tone::Bad, format!("{red} to look at, {missing} not run")),
    };
    let names: Vec<String> =
        report.backends.iter().map(|backend| format!("{} {}", backend.name, backend.server_version)).collect();
    format!(
        "<h1>Lease conformance</h1>\n<p><span class=\"w {}\">{words}</span> {}</p>\n\
         <dl class=\"facts\"><dt>backends</dt><dd>{}</dd><dt>cells</dt><dd>{}</dd><dt>seed</dt><dd>{}</dd>\
         <dt>report</dt><dd>form {}, drawn by lease-conformance {}</dd></dl>\n\
         <nav>{}{}{}<a href=\"#backends\">backends</a><a href=\"#evidence\">evidence</a></nav>\n",
        tone.class(),
        tables::counts(report),
        escaped(&names.join(", ")),
        report.cells.len().saturating_add(report.survival.len()),
        report.seed,
        report.schema,
        env!("CARGO_PKG_VERSION"),
        if has_two_workers(report) { "<a href=\"#two-workers\">two workers</a>" } else { "" },
        if report.survival.is_empty() { "" } else { "<a href=\"#survival\">what survives</a>" },
        if report.cells.is_empty() { "" } else { "<a href=\"#cases\">every case</a>" },
    )
}

/// What has to be looked at, and what was not run.
fn to_look_at(report: &Report, entries: &[&Entry<'_>]) -> String {
    let red: Vec<_> = entries.iter().filter(|entry| entry.is_red).collect();
    if red.is_empty() && report.missing.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h2 id=\"red\">To look at</h2>\n");
    for missing in &report.missing {
        let tone = if missing.required { Tone::Bad } else { Tone::Note };
        let (backend, reason) = (escaped(&missing.backend), escaped(&missing.reason));
        push!(out, "<p><span class=\"w {}\">not run</span> {backend}: {reason}</p>\n", tone.class());
    }
    for entry in red {
        out.push_str(&entry.details());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::markup::tests::elements;
    use super::super::render::tests::{EVIL, report};
    use super::*;
    use std::collections::BTreeSet;

    const VOID: &[&str] = &["meta", "br"];

    fn values(page: &str, key: &str) -> Vec<String> {
        let attributes = elements(page, VOID).into_iter().flat_map(|(_, attributes)| attributes);
        attributes.filter(|(name, _)| name == key).map(|(_, value)| value).collect()
    }

    #[test]
    fn it_is_well_formed_every_link_leads_somewhere_and_every_cell_has_one() {
        let report = report();
        let page = super::render(&report, &[]);
        let ids = values(&page, "id");
        let unique: BTreeSet<&String> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "each id is there once");
        let links: BTreeSet<String> = values(&page, "href").into_iter().collect();
        for link in &links {
            let target = link.strip_prefix('#').unwrap_or_else(|| panic!("{link} leads elsewhere"));
            assert!(ids.iter().any(|id| id == target), "{link} leads nowhere");
        }
        let (cells, survival) = render::names(&report);
        for name in cells.into_iter().chain(survival) {
            assert!(links.contains(&format!("#{name}")), "no link to {name}");
        }
    }

    #[test]
    fn it_needs_nothing_from_outside_and_takes_nothing_hostile() {
        let page = super::render(&report(), &[]);
        let found = elements(&page, VOID);
        let outside = ["script", "link", "img", "iframe", "object"];
        assert!(found.iter().all(|(name, _)| !outside.contains(&name.as_str())));
        assert!(
            found.iter().flat_map(|(_, attributes)| attributes).all(|(key, _)| !key.starts_with("on") && key != "src")
        );
        assert!(!page.contains(EVIL) && page.contains("&lt;script&gt;") && !page.contains('\u{1b}'));
        assert!(!page.contains("url(http") && !page.contains("@import"));
    }

    #[test]
    fn what_is_red_comes_first_and_open() {
        let page = super::render(&report(), &[]);
        let (before, evidence) = page.split_once("id=\"evidence\"").unwrap();
        // Broken, unclaimed, unproven, control failed, and the two hostile ones; of survival, three that are not as expected.
        assert_eq!(before.matches("<details class=\"cell\" open=\"open\">").count(), 9);
        assert!(before.find("To look at") < before.find("Every case on every backend"));
        assert!(!evidence.contains("open=\"open\"") && evidence.contains("<details class=\"cell\">"));
        assert!(page.contains("aria-labelledby") && page.contains("9 to look at, 1 not run"));
    }
}
