//! The expected verdicts, committed before a run: a difference in either direction is red.

use super::{Backend, Failure};
use crate::report::{Cell, Report, Verdict};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The verdicts that this workspace expects of its own backends.
const BUILT_IN: &str = include_str!("../../expected.toml");

/// The expected verdict of each case, with exceptions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expected {
    /// By the case's id.
    cases: BTreeMap<String, Verdict>,
    #[serde(default, rename = "exception")]
    exceptions: Vec<Exception>,
}

/// Where the verdict of a case is another one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    case: String,
    /// The backend's name; all of them when it is not given.
    backend: Option<String>,
    /// The destination's kind; all of them when it is not given.
    destination: Option<String>,
    verdict: Verdict,
    /// Why, for whoever reads the file.
    reason: String,
}

/// A cell whose verdict is not the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) case: String,
    pub(crate) backend: String,
    pub(crate) destination: Option<String>,
    /// The expected verdict; `None` when the file does not know the case.
    pub(crate) expected: Option<Verdict>,
    pub(crate) seen: Verdict,
}

impl Mismatch {
    /// Whether it is about this cell.
    pub(crate) fn is_of(&self, cell: &Cell) -> bool {
        self.case == cell.case && self.backend == cell.backend && self.destination == cell.destination
    }
}

impl Expected {
    /// Reads the file, or the built-in one.
    ///
    /// # Errors
    /// When it cannot be read, or says something that cannot be true of any run: an unknown case or backend, an exception that
    /// says what is expected anyway, or two for the same cell.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, Failure> {
        let (name, text) = match path {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
                (path.display().to_string(), text)
            }
            None => ("the built-in expected.toml".to_owned(), BUILT_IN.to_owned()),
        };
        let known: BTreeSet<&str> = crate::cases().iter().map(|case| case.id).collect();
        Self::parse(&text, &known).map_err(|reason| Failure::Usage(format!("{name}: {reason}")))
    }

    fn parse(text: &str, known: &BTreeSet<&str>) -> Result<Self, String> {
        let expected: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        if let Some(case) = expected.cases.keys().find(|case| !known.contains(case.as_str())) {
            return Err(format!("there is no case `{case}` (any more): remove it"));
        }
        let mut seen = BTreeSet::new();
        for exception in &expected.exceptions {
            exception.check(&expected.cases)?;
            if !seen.insert((&exception.case, &exception.backend, &exception.destination)) {
                return Err(format!("two exceptions for the same cell: {}", exception.place()));
            }
        }
        Ok(expected)
    }

    /// The exceptions that are stale: their case was run on their backend and destination, and no cell is left for them.
    pub(crate) fn stale(&self, report: &Report) -> Vec<String> {
        self.exceptions
            .iter()
            .filter(|exception| exception.is_stale(report))
            .map(|stale| {
                format!("expected.toml: the exception for {} matches no cell of this run: remove it", stale.place())
            })
            .collect()
    }

    /// What differs from this in the report.
    pub(crate) fn compare(&self, report: &Report) -> Vec<Mismatch> {
        let mismatch = |cell: &Cell| {
            let expected = self.verdict(cell);
            (expected != Some(cell.verdict)).then(|| Mismatch {
                case: cell.case.clone(),
                backend: cell.backend.clone(),
                destination: cell.destination.clone(),
                expected,
                seen: cell.verdict,
            })
        };
        report.cells.iter().filter_map(mismatch).collect()
    }

    /// The expected verdict of a cell: that of the exception that says most about it, or that of the case.
    fn verdict(&self, cell: &Cell) -> Option<Verdict> {
        self.exceptions
            .iter()
            .filter(|exception| exception.is_of(cell))
            .max_by_key(|exception| (exception.destination.is_some(), exception.backend.is_some()))
            .map(|exception| exception.verdict)
            .or_else(|| self.cases.get(&cell.case).copied())
    }
}

impl Exception {
    fn check(&self, cases: &BTreeMap<String, Verdict>) -> Result<(), String> {
        let usual = cases
            .get(&self.case)
            .ok_or_else(|| format!("an exception for `{}`, which has no line under [cases]", self.case))?;
        if let Some(backend) = self.backend.as_deref()
            && Backend::from_name(backend).is_none()
        {
            return Err(format!("an exception for backend `{backend}`, which does not exist"));
        }
        if self.backend.is_none() && self.destination.is_none() {
            return Err(format!("the exception for `{}` is for every cell: write it under [cases]", self.case));
        }
        if *usual == self.verdict && self.destination.is_none() {
            return Err(format!("the exception for {} says what is expected anyway", self.place()));
        }
        if self.reason.trim().is_empty() {
            return Err(format!("the exception for {} has no reason", self.place()));
        }
        Ok(())
    }

    fn place(&self) -> String {
        let backend = self.backend.as_deref().unwrap_or("every backend");
        match &self.destination {
            Some(destination) => format!("`{}` on {backend} at {destination}", self.case),
            None => format!("`{}` on {backend}", self.case),
        }
    }

    fn is_of(&self, cell: &Cell) -> bool {
        self.case == cell.case
            && self.backend.as_ref().is_none_or(|backend| *backend == cell.backend)
            && (self.destination.is_none() || self.destination == cell.destination)
    }

    /// A run of a part is no reason to call an exception stale: only one that could have met it.
    fn is_stale(&self, report: &Report) -> bool {
        let case_was_run = report.cells.iter().any(|cell| cell.case == self.case);
        let backend_was_run =
            self.backend.as_ref().is_none_or(|name| report.backends.iter().any(|backend| backend.name == *name));
        let destination_was_there = self
            .destination
            .as_ref()
            .is_none_or(|kind| report.cells.iter().any(|cell| cell.destination.as_ref() == Some(kind)));
        case_was_run && backend_was_run && destination_was_there && !report.cells.iter().any(|cell| self.is_of(cell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::BackendReport;

    const TEXT: &str = r#"
        [cases]
        "a/one" = "kept"
        "a/two" = "control_landed"
        [[exception]]
        case = "a/one"
        backend = "redis"
        verdict = "honest_no"
        reason = "it cannot"
        [[exception]]
        case = "a/one"
        backend = "redis"
        destination = "sqlite"
        verdict = "kept"
        reason = "there it can"
    "#;

    fn known() -> BTreeSet<&'static str> {
        BTreeSet::from(["a/one", "a/two", "a/new"])
    }

    fn report(cells: &[(&str, &str, Option<&str>, Verdict)]) -> Report {
        let backend = |name: &str| BackendReport {
            name: name.into(),
            server_version: String::new(),
            address: String::new(),
            claims: Vec::new(),
            fence: String::new(),
            limits: BTreeMap::new(),
        };
        let names: BTreeSet<_> = cells.iter().map(|(_, backend, ..)| *backend).collect();
        Report {
            backends: names.into_iter().map(backend).collect(),
            cells: cells
                .iter()
                .map(|(case, backend, destination, verdict)| Cell {
                    case: (*case).into(),
                    backend: (*backend).into(),
                    destination: destination.map(Into::into),
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
    fn differences_in_both_directions_and_unknown_cases_are_mismatches() {
        let expected = Expected::parse(TEXT, &known()).unwrap();
        let run = report(&[
            ("a/one", "sqlite", None, Verdict::Kept),
            ("a/one", "redis", None, Verdict::Kept),
            ("a/one", "redis", Some("sqlite"), Verdict::Kept),
            ("a/two", "redis", None, Verdict::Kept),
            ("a/new", "redis", None, Verdict::Kept),
        ]);
        let mismatches = expected.compare(&run);
        let found: Vec<_> = mismatches.iter().map(|m| (m.case.as_str(), m.expected)).collect();
        assert_eq!(
            found,
            [("a/one", Some(Verdict::HonestNo)), ("a/two", Some(Verdict::ControlLanded)), ("a/new", None)]
        );
    }

    #[test]
    fn an_exception_that_matches_nothing_is_stale_only_when_it_could_have() {
        let expected = Expected::parse(TEXT, &known()).unwrap();
        let without = report(&[("a/one", "sqlite", None, Verdict::Kept)]);
        assert_eq!(expected.stale(&without), Vec::<String>::new());
        let stale = report(&[
            ("a/one", "sqlite", Some("sqlite"), Verdict::Kept),
            ("a/two", "redis", None, Verdict::ControlLanded),
        ]);
        let messages = expected.stale(&stale);
        assert!(messages.iter().all(|m| m.contains("`a/one` on redis") && m.contains("remove it")), "{messages:?}");
        assert_eq!(messages.len(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_true_is_refused() {
        let exception =
            |lines: &str| format!("[cases]\n\"a/one\" = \"kept\"\n[[exception]]\ncase = \"a/one\"\n{lines}\n");
        for (text, says) in [
            ("[cases]\n\"a/gone\" = \"kept\"\n".to_owned(), "no case `a/gone`"),
            ("[cases]\n\"a/one\" = \"fine\"\n".to_owned(), "unknown variant"),
            (exception("backend = \"redis\"\nverdict = \"kept\"\nreason = \"x\""), "anyway"),
            (exception("backend = \"radis\"\nverdict = \"broken\"\nreason = \"x\""), "does not exist"),
            (exception("verdict = \"broken\"\nreason = \"x\""), "every cell"),
            (exception("backend = \"redis\"\nverdict = \"broken\"\nreason = \" \""), "no reason"),
        ] {
            let message = Expected::parse(&text, &known()).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn the_built_in_file_is_sound_and_complete() {
        let expected = Expected::load(None).unwrap();
        let missing: Vec<_> =
            crate::cases().iter().filter(|case| !expected.cases.contains_key(case.id)).map(|case| case.id).collect();
        assert_eq!(missing, Vec::<&str>::new(), "cases without an expected verdict");
    }
}
