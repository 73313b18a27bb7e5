//! The report: what was run, what was seen, and how it was judged. Everything else is rendered from it.

use crate::survival::SurvivalCell;
use crate::timeline::Timeline;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The version of the report's form.
pub const SCHEMA: u32 = 1;

/// One run of the suite.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The version of the report's form.
    pub schema: u32,
    /// Seeds every random choice of the run: the same seed repeats them.
    pub seed: u64,
    /// The backends that were tested.
    pub backends: Vec<BackendReport>,
    /// What was asked for and could not be run at all, and why.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Every case on every backend (and destination).
    pub cells: Vec<Cell>,
    /// Which guarantee survives which server fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survival: Vec<SurvivalCell>,
}

/// A backend that was tested.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendReport {
    /// Its name, such as `redis-fred`.
    pub name: String,
    /// The server's version.
    pub server_version: String,
    /// Where it was, without credentials.
    pub address: String,
    /// The ids of the guarantees that it declares.
    pub claims: Vec<String>,
    /// How its own store fences: `native, live owner`, `native, mark`, `token only`, `none`.
    pub fence: String,
    /// The numbers that bound it, in the unit that the name says.
    pub limits: BTreeMap<String, u64>,
}

/// Something that was asked for and could not be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The backend.
    pub backend: String,
    /// What is missing and how to get it (a package, a feature).
    pub reason: String,
    /// Whether it was asked for by name, so that the run cannot end well without it.
    pub required: bool,
}

/// One case on one backend, at one destination where there is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The case's id.
    pub case: String,
    /// The lease backend's name.
    pub backend: String,
    /// The destination's kind, such as `postgres`, or `same store`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// The claim that the case tests; none for a core rule and for a control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The judgement.
    pub verdict: Verdict,
    /// In how many trials it was not refuted, or in which one it was.
    pub trials: u32,
    /// For a red cell: what was expected and what was seen instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// What was seen: process ids, states, times, tokens, contents.
    ///
    /// The end of a name says what a number is: `_ms`, `_us` and `_bytes` are measures; `_at_once` and `_at_rest` the most at one time;
    /// `_ns` an instant on the boot clock, `_value` a token's value. Other numbers are counts, but for process ids. Over several trials
    /// counts are summed, measures that differ become `{"min": …, "median": …, "max": …}`, and what means something in its own trial only
    /// is the last one's.
    #[serde(default)]
    pub evidence: BTreeMap<String, Value>,
    /// What happened when, where it makes a picture worth looking at. Of several trials, the one that decides the verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

impl Cell {
    /// The destination's name when it is the lease's own store.
    pub const SAME_STORE: &'static str = "same store";
}

/// How a cell was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Claimed (or a core rule), and not refuted.
    Kept,
    /// A negative control: the stale write landed, as it must without a guard.
    ControlLanded,
    /// Not claimed, and a counter-example was found.
    HonestNo,
    /// Not claimed, and could not be tried.
    Untested,
    /// Claimed (or a core rule), and could not be tried.
    Unproven,
    /// Not claimed, and not refuted: the claim is missing.
    Unclaimed,
    /// A negative control in which the stale write did not land: the test proves nothing.
    ControlFailed,
    /// Claimed (or a core rule), and refuted.
    Broken,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 8] = [
        Self::Kept,
        Self::ControlLanded,
        Self::HonestNo,
        Self::Untested,
        Self::Unproven,
        Self::Unclaimed,
        Self::ControlFailed,
        Self::Broken,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::ControlLanded => "control_landed",
            Self::HonestNo => "honest_no",
            Self::Untested => "untested",
            Self::Unproven => "unproven",
            Self::Unclaimed => "unclaimed",
            Self::ControlFailed => "control_failed",
            Self::Broken => "broken",
        }
    }
}

impl Report {
    /// The exit status: 0 declared equals observed; 1 a core rule or claim was broken, or a control failed; 2 only unclaimed
    /// guarantees; 3 something that was asked for could not be run, or nothing was.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        let any = |verdicts: &[Verdict]| self.cells.iter().any(|cell| verdicts.contains(&cell.verdict));
        if any(&[Verdict::Broken, Verdict::ControlFailed]) {
            1
        } else if any(&[Verdict::Unproven]) || self.missing.iter().any(|m| m.required) || self.cells.is_empty() {
            3
        } else if any(&[Verdict::Unclaimed]) {
            2
        } else {
            0
        }
    }

    /// Takes another report's backends, cells and what was missing in, so that several backends are one report.
    pub fn absorb(&mut self, other: Self) {
        self.backends.extend(other.backends);
        self.missing.extend(other.missing);
        self.cells.extend(other.cells);
        self.survival.extend(other.survival);
    }

    /// The cells of one case, by the beginning of its id.
    pub fn cells_of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| cell.case.starts_with(prefix))
    }
}
