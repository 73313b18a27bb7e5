//! The two-worker test as a matrix of lease backends and destinations: what terminal and Markdown have in common.

use crate::judge::Rule;
use crate::report::{Cell, Report, Verdict};

/// What the two-worker cases' ids begin with.
const TEST: &str = "fencing/pause-past-ttl/";

/// Columns of the matrix: one way in which the stale write is sent, or one fact about the stale worker's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    /// The ends of the ids of its cases: one, or several of which each backend has one.
    ids: &'static [&'static str],
    /// The heading above its columns.
    pub(crate) heading: &'static str,
    /// The heading of a column that has no destination, or needs none.
    pub(crate) column: &'static str,
    /// Not about a write.
    is_fact: bool,
}

const fn write(ids: &'static [&'static str], heading: &'static str) -> Mode {
    Mode { ids, heading, column: SAME, is_fact: false }
}

const fn fact(ids: &'static [&'static str], column: &'static str) -> Mode {
    Mode { ids, heading: "A's lease after the pause", column, is_fact: true }
}

pub(crate) const NATIVE: Mode = Mode { column: "fence", ..write(&["native-live-owner", "native-mark"], "own") };
pub(crate) const UNCHECKED: Mode = Mode { column: "unfenced", ..write(&["native-unchecked"], "own row") };
pub(crate) const PLAIN: Mode = write(&["plain"], "no check at all");
pub(crate) const GUARDED: Mode = write(&["guarded"], "guarded, B has sealed and written");
pub(crate) const SEALED: Mode = write(&["sealed-not-written"], "guarded, B has only sealed");
pub(crate) const NEITHER: Mode = write(&["neither-sealed-nor-written"], "guarded, B has not been there yet");
pub(crate) const IGNORED: Mode = write(&["refusal-ignored"], "guarded, A ignores the refusal and commits");
pub(crate) const KNOWS: Mode = fact(&["knows-at-first-touch"], "knows");
pub(crate) const RENEWS: Mode = fact(&["cannot-renew"], "not renewed");
pub(crate) const LEAVES: Mode = fact(&["release-leaves-holder-alone"], "B's untouched");

/// The destinations, in the order of the columns.
const DESTINATIONS: [&str; 6] = [Cell::SAME_STORE, "memory", "sqlite", "redis", "etcd", "postgres"];

/// The destinations that the cells of a mode have, in the order of the columns; `[None]` for a mode without any.
pub(crate) fn destinations(report: &Report, mode: Mode) -> Vec<Option<&str>> {
    let mut found: Vec<Option<&str>> = Vec::new();
    for cell in report.cells.iter().filter(|cell| mode.has(cell)) {
        let destination = cell.destination.as_deref();
        if !found.contains(&destination) {
            found.push(destination);
        }
    }
    let place = |d: Option<&str>| d.and_then(|name| DESTINATIONS.iter().position(|known| *known == name));
    found.sort_by_key(|destination| (place(*destination), *destination));
    found
}

/// The cell of a mode.
pub(crate) fn cell<'a>(report: &'a Report, mode: Mode, backend: &str, destination: Option<&str>) -> Option<&'a Cell> {
    let is_it = |cell: &&Cell| mode.has(cell) && cell.backend == backend && cell.destination.as_deref() == destination;
    report.cells.iter().filter(is_it).max_by_key(|cell| is_tried(cell))
}

/// A backend has one kind of fence, and the case of the other kind is not tried on it.
fn is_tried(cell: &Cell) -> bool {
    !matches!(cell.verdict, Verdict::Untested | Verdict::Unproven)
}

impl Mode {
    fn has(self, cell: &Cell) -> bool {
        cell.case.strip_prefix(TEST).is_some_and(|id| self.ids.contains(&id))
    }
}

/// What became of the stale write, in a word.
pub(crate) fn word(mode: Mode, cell: Option<&Cell>) -> &'static str {
    match cell.map(|cell| cell.verdict) {
        None => "-",
        Some(Verdict::Kept) if mode.is_fact => "yes",
        Some(Verdict::Broken) if mode.is_fact => "NO",
        Some(Verdict::Kept) => "refused",
        Some(Verdict::ControlLanded) => "lands",
        Some(Verdict::HonestNo) => "not fenced",
        Some(Verdict::Untested) => "untested",
        Some(Verdict::Unproven) => "UNPROVEN",
        Some(Verdict::Unclaimed) => "UNCLAIMED",
        Some(Verdict::ControlFailed) => "NO-LANDING",
        Some(Verdict::Broken) => "LANDED",
    }
}

/// The heading of one column.
pub(crate) fn column(mode: Mode, destination: Option<&str>) -> &str {
    destination.filter(|name| *name != Cell::SAME_STORE).unwrap_or(mode.column)
}

const SAME: &str = "same";

/// What the words mean; of those in capitals, only what occurs.
pub(crate) fn legend(report: &Report) -> String {
    let mut text = String::from(
        "same: the lease's own store · refused: A's write did not land · lands: it did, as it must where nothing checks",
    );
    let has = |verdict| report.cells_of(TEST).any(|cell| cell.verdict == verdict);
    for (verdict, meaning) in [
        (Verdict::HonestNo, "not fenced: it landed, and the backend does not claim otherwise"),
        (Verdict::Untested, "untested: not claimed, could not be tried"),
        (Verdict::Unproven, "UNPROVEN: claimed, could not be tried"),
        (Verdict::Unclaimed, "UNCLAIMED: refused, and not claimed"),
        (Verdict::ControlFailed, "NO-LANDING: a control did not land, so the test proves nothing"),
        (Verdict::Broken, "LANDED, NO: a broken promise"),
    ] {
        if has(verdict) {
            text.push_str(" · ");
            text.push_str(meaning);
        }
    }
    text
}

/// What a case decides about, in a sentence.
pub(crate) fn rule_text(rule: Rule) -> String {
    match rule {
        Rule::Core => "core rule: has to hold on every backend".to_owned(),
        Rule::Claim(claim) => {
            format!("claim `{claim}`: has to hold where it is declared, and be declared where it holds")
        }
        Rule::Control => "negative control: the stale write has to land, or the test proves nothing".to_owned(),
    }
}
