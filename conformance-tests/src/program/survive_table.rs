//! The tables of what survives, from the report alone: for a terminal, and as Markdown for the README.

use super::layout;
use super::paint::{Paint, Tone};
use super::story;
use super::survive::is_mismatch;
use crate::report::Report;
use crate::survival::{Expected, Guarantee, Outcome, SurvivalCell, scenes};

/// The columns: what is watched, and its heading.
const COLUMNS: [(Guarantee, &str); 7] = [
    (Guarantee::Exclusion, "exclusion"),
    (Guarantee::LeaseKept, "lease kept"),
    (Guarantee::TokenOrder, "token order"),
    (Guarantee::Granting, "granting"),
    (Guarantee::FenceReached, "reached"),
    (Guarantee::FenceUnreached, "unreached"),
    (Guarantee::NoGuard, "no guard"),
];

/// What stands above the columns of the destinations.
const STALE_WRITE: &str = "a stale write where";

/// One row: a fault in a set-up, and the backends that fared alike.
struct Row<'a> {
    setup: &'a str,
    fault: &'a str,
    backends: Vec<&'a str>,
    cells: Vec<&'a SurvivalCell>,
}

/// Sets of rows, one for each store.
fn rows(report: &Report) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    let scene = |cell: &SurvivalCell| (cell.setup.clone(), cell.fault.clone(), cell.backend.clone());
    for cells in report.survival.chunk_by(|one, next| scene(one) == scene(next)) {
        let Some(first) = cells.first() else { continue };
        let words = |cells: &[&SurvivalCell]| -> Vec<String> { columns(cells).map(|cell| marked(cell)).collect() };
        let cells: Vec<&SurvivalCell> = cells.iter().collect();
        let alike = rows
            .iter_mut()
            .find(|row| row.setup == first.setup && row.fault == first.fault && words(&row.cells) == words(&cells));
        match alike {
            Some(row) => row.backends.push(&first.backend),
            None => rows.push(Row { setup: &first.setup, fault: &first.fault, backends: vec![&first.backend], cells }),
        }
    }
    rows
}

fn store(setup: &str) -> &str {
    setup.split('/').next().unwrap_or(setup)
}

fn columns<'a>(cells: &'a [&'a SurvivalCell]) -> impl Iterator<Item = Option<&'a SurvivalCell>> {
    COLUMNS.iter().map(|(guarantee, _)| cells.iter().copied().find(|cell| cell.guarantee == *guarantee))
}

/// The word for a cell.
fn word(cell: Option<&SurvivalCell>) -> &'static str {
    let Some(cell) = cell else { return "-" };
    let is_write = matches!(cell.guarantee, Guarantee::FenceReached | Guarantee::FenceUnreached | Guarantee::NoGuard);
    match (cell.outcome, is_write) {
        (Outcome::NotTried, _) => "-",
        (Outcome::Survives, false) => "survives",
        (Outcome::Noticed, false) => "noticed",
        (Outcome::Breaks, false) => "breaks",
        (Outcome::Survives, true) => "refused",
        (Outcome::Noticed, true) => "found out",
        (Outcome::Breaks, true) => "lands",
    }
}

/// The word, with a sign where it is not what was expected.
fn marked(cell: Option<&SurvivalCell>) -> String {
    let sign = if cell.is_some_and(is_mismatch) { " ≠" } else { "" };
    format!("{}{sign}", word(cell))
}

/// The tables for a terminal, one for each store.
pub(crate) fn render(report: &Report, paint: Paint, width: u16) -> String {
    let rows = rows(report);
    let mut out = String::new();
    for rows in rows.chunk_by(|one, next| store(one.setup) == store(next.setup)) {
        let Some(first) = rows.first() else { continue };
        let title = format!("{}: what survives which fault", store(first.setup));
        line(&mut out, &format!("\n{}", paint.text(Tone::Strong, &title)));
        let mut table = layout::table(u16::MAX);
        table.set_header(["set-up", "fault"].into_iter().chain(COLUMNS.map(|(_, heading)| heading)));
        let mut last = "";
        for row in rows {
            // Where the backends of a set-up differ somewhere, the rows say whose they are.
            let same_setup = || rows.iter().filter(|other| other.setup == row.setup);
            let alike = same_setup().all(|other| other.backends.len() == row.backends.len());
            let name = row.setup.split_once('/').map_or(row.setup, |(_, name)| name);
            let setup = match (row.setup == last, alike) {
                (_, false) => format!("{name} ({})", row.backends.join(", ")),
                (true, true) => String::new(),
                (false, true) => name.to_owned(),
            };
            last = row.setup;
            table.add_row([setup, row.fault.to_owned()].into_iter().chain(columns(&row.cells).map(marked)));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        let bands = ["", "", "", "", "", "", STALE_WRITE, STALE_WRITE, STALE_WRITE];
        out.push_str(&painted(&layout::with_bands(&table, &bands), paint));
    }
    out.push_str(&paint.text(Tone::Faint, &layout::wrapped(LEGEND, width)));
    out.push('\n');
    for missing in &report.missing {
        let tone = if missing.required { Tone::Bad } else { Tone::Note };
        let what = paint.text(tone, &format!("not played: {}", missing.backend));
        line(&mut out, &format!("{what}: {}", missing.reason));
    }
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// Colour has no width, so it comes after the layout.
fn painted(text: &str, paint: Paint) -> String {
    if paint == Paint::Plain {
        return text.to_owned();
    }
    let tones = [
        ("survives", Tone::Good),
        ("refused", Tone::Good),
        ("noticed", Tone::Note),
        ("found out", Tone::Note),
        ("breaks", Tone::Bad),
        ("lands", Tone::Bad),
        ("≠", Tone::Strong),
    ];
    tones.into_iter().fold(text.to_owned(), |text, (word, tone)| text.replace(word, &paint.text(tone, word)))
}

const LEGEND: &str = "\
exclusion: nobody else is granted the lease before its holder's own deadline. lease kept: the holder can renew after the fault. token order: \
a later grant has a larger token; noticed: it has another authority. granting: the lease is granted again within a bound. a stale write: the \
old holder writes after the new one; refused by the guard, found out: the guard refused the new holder first, whose token or authority \
showed that history was lost; reached, unreached: whether the old holder had been there before. ≠ is not what survival.toml expects.";

/// What is not as expected, each with the command that repeats it.
pub(crate) fn mismatches(report: &Report, expected: &Expected, paint: Paint) -> String {
    let known = scenes();
    let mut out = String::new();
    for cell in report.survival.iter().filter(|cell| is_mismatch(cell)) {
        let title = format!("{} × {} on {}: {} {}", cell.setup, cell.fault, cell.backend, cell.guarantee, cell.outcome);
        line(&mut out, &format!("\n{}", paint.text(Tone::Bad, &title)));
        let scene = known.iter().find(|scene| scene.setup == cell.setup && scene.fault == cell.fault);
        let reason = scene.and_then(|scene| expected.of(scene)).and_then(|entry| entry.reason(cell.guarantee));
        let reason = reason.map_or_else(String::new, |reason| format!(", since {reason}"));
        let wanted = cell.expected.map_or("nothing: survival.toml does not know the scene", Outcome::name);
        line(&mut out, &format!("  expected: {wanted}{reason}"));
        line(&mut out, &format!("  seen: {} (in {} trials)", cell.finding, cell.trials));
        for (name, value) in cell.witness.iter().chain(&cell.evidence) {
            line(&mut out, &format!("    {name}: {value}"));
        }
        for event in cell.timeline.iter().flat_map(story::lines) {
            line(&mut out, &format!("    {event}"));
        }
        let itself = super::itself::command();
        let (setup, fault) = (&cell.setup, &cell.fault);
        line(
            &mut out,
            &format!(
                "  a bug, a wrong expectation (then its reason goes into survival.toml) or a missing claim; repeat: \
                 {itself} survive --setup {setup} --fault {fault}"
            ),
        );
    }
    out
}

/// The tables as Markdown. Nothing in them differs from run to run or from machine to machine.
pub(crate) fn markdown(report: &Report) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = row(["set-up", "backends", "fault"]
        .into_iter()
        .chain(COLUMNS.map(|(_, heading)| heading))
        .map(|heading| match heading {
            "reached" | "unreached" => format!("stale write: {heading}"),
            "no guard" => "stale write: no guard".to_owned(),
            other => other.to_owned(),
        })
        .collect());
    line(&mut out, &format!("|{}", "---|".repeat(COLUMNS.len().saturating_add(3))));
    for one in rows(report) {
        let words = columns(&one.cells).map(|cell| match word(cell) {
            word @ ("breaks" | "lands") => format!("**{word}**"),
            word => word.to_owned(),
        });
        let head = [one.setup.to_owned(), one.backends.join(", "), one.fault.to_owned()];
        out.push_str(&row(head.into_iter().chain(words).collect()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn cell(backend: &str, guarantee: Guarantee, outcome: Outcome, expected: Outcome) -> SurvivalCell {
        SurvivalCell {
            setup: "redis/none".into(),
            backend: backend.into(),
            fault: "kill-restart".into(),
            guarantee,
            outcome,
            expected: Some(expected),
            finding: "all is gone".into(),
            trials: 1,
            witness: BTreeMap::new(),
            evidence: BTreeMap::new(),
            timeline: None,
        }
    }

    fn report(second: Outcome) -> Report {
        let cells = [("redis", Outcome::Breaks), ("redis-fred", second)]
            .into_iter()
            .flat_map(|(backend, outcome)| {
                COLUMNS.map(|(guarantee, _)| cell(backend, guarantee, outcome, Outcome::Breaks))
            })
            .collect();
        Report { survival: cells, ..Report::default() }
    }

    #[test]
    fn backends_that_fare_alike_share_a_row() {
        assert_eq!(markdown(&report(Outcome::Breaks)).lines().count(), 3);
        assert!(markdown(&report(Outcome::Breaks)).contains("redis, redis-fred"));
        assert_eq!(markdown(&report(Outcome::Survives)).lines().count(), 4);
    }

    #[test]
    fn a_table_fits_and_a_difference_is_marked_and_explained() {
        let good = render(&report(Outcome::Breaks), Paint::Plain, layout::WIDTH);
        assert!(good.lines().all(|line| line.chars().count() <= usize::from(layout::WIDTH)), "{good}");
        assert!(!good.split("exclusion: nobody").next().unwrap().contains('≠'), "{good}");
        let bad = report(Outcome::Survives);
        assert!(render(&bad, Paint::Plain, layout::WIDTH).contains("survives ≠"));
        let text = mismatches(&bad, &Expected::built_in().unwrap(), Paint::Plain);
        assert!(text.contains("survive --setup redis/none --fault kill-restart"), "{text}");
        assert_eq!(mismatches(&report(Outcome::Breaks), &Expected::built_in().unwrap(), Paint::Plain), "");
    }

    #[test]
    fn every_word_has_its_place() {
        for outcome in [Outcome::Survives, Outcome::Noticed, Outcome::Breaks, Outcome::NotTried] {
            let of = |guarantee| word(Some(&cell("redis", guarantee, outcome, outcome)));
            assert_ne!(of(Guarantee::Exclusion) == of(Guarantee::NoGuard), outcome != Outcome::NotTried);
        }
    }
}
