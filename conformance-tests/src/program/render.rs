//! Files that are written of a report: a page, pictures, and what a CI server reads. Everything in them is in the report.

use super::expected::Mismatch;
use super::{Failure, html, junit, svg};
use crate::report::Report;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Which files to write.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Pages {
    /// Write the report as one HTML page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the report as XML in the form of `JUnit`, for a CI server.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write each timeline as an SVG into this folder, which is made where it is missing.
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
}

impl Pages {
    /// Finds what could not be written after all the work, before the work.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        for path in self.html.iter().chain(&self.junit) {
            Failure::unless_writable(path)?;
        }
        match &self.svg {
            Some(folder) => std::fs::create_dir_all(folder).map_err(|e| Failure::file("make the folder", folder, &e)),
            None => Ok(()),
        }
    }

    /// Writes the files and says where they are.
    pub(crate) fn write(&self, report: &Report, mismatches: &[Mismatch]) -> Result<Vec<String>, Failure> {
        let mut written = Vec::new();
        if let Some(path) = &self.html {
            put(path, &html::render(report, mismatches))?;
            written.push(format!("page in {}", path.display()));
        }
        if let Some(path) = &self.junit {
            put(path, &junit::render(report, mismatches))?;
            written.push(format!("JUnit in {}", path.display()));
        }
        if let Some(folder) = &self.svg {
            let pictures = pictures(report);
            for (name, picture) in &pictures {
                put(&folder.join(name), picture)?;
            }
            written.push(format!("{} pictures in {}", pictures.len(), folder.display()));
        }
        Ok(written)
    }
}

fn put(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::file("write", path, &e))
}

/// A file's name and its picture, for each cell that has a timeline.
fn pictures(report: &Report) -> Vec<(String, String)> {
    let (cells, survival) = names(report);
    let of_cells = report.cells.iter().map(|cell| &cell.timeline).zip(cells);
    let of_survival = report.survival.iter().map(|cell| &cell.timeline).zip(survival);
    of_cells
        .chain(of_survival)
        .filter_map(|(timeline, name)| {
            let picture = svg::render(timeline.as_ref()?, "t", svg::Styled::Own);
            Some((format!("{name}.svg"), picture))
        })
        .collect()
}

/// A name for each cell, and for each one of survival, which no other has: for a file, and for a link to it. Whatever a report contains, it is
/// of letters, digits, `-`, `_` alone, and not too long.
pub(super) fn names(report: &Report) -> (Vec<String>, Vec<String>) {
    let mut taken = BTreeSet::new();
    let cells = report.cells.iter().map(|cell| {
        let case = cell.case.strip_prefix("fencing/").unwrap_or(&cell.case);
        let parts: Vec<&str> = [case, &cell.backend].into_iter().chain(cell.destination.as_deref()).collect();
        name(&mut taken, &parts)
    });
    let cells = cells.collect();
    let survival = report.survival.iter().map(|cell| {
        let parts = ["survival", &cell.setup, &cell.fault, &cell.backend, cell.guarantee.name()];
        name(&mut taken, &parts)
    });
    (cells, survival.collect())
}

fn name(taken: &mut BTreeSet<String>, parts: &[&str]) -> String {
    const MOST: usize = 150;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let plain: String = parts.join("--").chars().map(plain).take(MOST).collect();
    let mut name = plain.clone();
    let mut count = 1_usize;
    while !taken.insert(name.clone()) {
        count = count.saturating_add(1);
        name = format!("{plain}_{count}");
    }
    name
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::{BackendReport, Cell, Missing, Verdict};
    use crate::survival::{Guarantee, Outcome, SurvivalCell};
    use crate::timeline::{Mark, MarkKind, Timeline};
    use std::collections::BTreeMap;

    /// What could be markup, where it comes from outside.
    pub(in crate::program) const EVIL: &str = "</td></details><script>alert('1')</script>\" onload=\"x &\u{1b}[31m";

    pub(in crate::program) fn cell(case: &str, destination: Option<&str>, verdict: Verdict) -> Cell {
        Cell {
            case: case.to_owned(),
            backend: "redis".to_owned(),
            destination: destination.map(ToOwned::to_owned),
            claim: None,
            verdict,
            trials: 1,
            finding: None,
            evidence: BTreeMap::new(),
            timeline: None,
        }
    }

    /// One cell of each outcome, expected and not, all hostile.
    pub(in crate::program) fn survival() -> Vec<SurvivalCell> {
        let outcomes = [Outcome::Survives, Outcome::Noticed, Outcome::Breaks, Outcome::NotTried];
        let cell = |(outcome, guarantee): (Outcome, Guarantee), expected: Outcome| SurvivalCell {
            setup: format!("redis/{EVIL}"),
            backend: EVIL.to_owned(),
            fault: EVIL.to_owned(),
            guarantee,
            outcome,
            expected: Some(expected),
            finding: EVIL.to_owned(),
            trials: 1,
            witness: BTreeMap::from([(EVIL.to_owned(), EVIL.into())]),
            evidence: BTreeMap::from([(EVIL.to_owned(), EVIL.into())]),
            timeline: (outcome == Outcome::Breaks).then(|| Timeline { title: EVIL.to_owned(), ..Timeline::default() }),
        };
        let all = || outcomes.into_iter().zip(Guarantee::ALL);
        all().map(|one| cell(one, one.0)).chain(all().map(|one| cell(one, Outcome::Noticed))).collect()
    }

    /// One cell of each verdict, and one in which everything that can be is hostile.
    pub(in crate::program) fn report() -> Report {
        let backend = |name: &str| BackendReport {
            name: name.to_owned(),
            server_version: format!("1 {EVIL}"),
            address: EVIL.to_owned(),
            claims: vec!["fencing-token".to_owned(), EVIL.to_owned()],
            fence: EVIL.to_owned(),
            limits: BTreeMap::from([(EVIL.to_owned(), 7)]),
        };
        let mut cells: Vec<Cell> = Verdict::ALL
            .into_iter()
            .zip(
                ["guarded", "plain", "refusal-ignored", "cannot-renew", "sealed-not-written", "knows-at-first-touch"]
                    .iter()
                    .cycle(),
            )
            .map(|(verdict, case)| cell(&format!("fencing/pause-past-ttl/{case}"), Some("sqlite"), verdict))
            .collect();
        let evil = Cell {
            backend: EVIL.to_owned(),
            destination: Some(EVIL.to_owned()),
            claim: Some(EVIL.to_owned()),
            finding: Some(EVIL.to_owned()),
            evidence: BTreeMap::from([(EVIL.to_owned(), EVIL.into()), ("b_granted_ns".to_owned(), 5.into())]),
            timeline: Some(Timeline {
                title: EVIL.to_owned(),
                lanes: vec![EVIL.to_owned()],
                spans: Vec::new(),
                marks: vec![Mark {
                    lane: EVIL.to_owned(),
                    at_ms: 1.0,
                    kind: MarkKind::StaleCommitted,
                    label: EVIL.to_owned(),
                }],
            }),
            ..cell(EVIL, None, Verdict::Broken)
        };
        cells.extend([evil.clone(), evil]);
        let missing = |required| Missing { backend: EVIL.to_owned(), reason: EVIL.to_owned(), required };
        let backends = vec![backend("redis"), backend(EVIL)];
        Report {
            seed: 7,
            backends,
            missing: vec![missing(true), missing(false)],
            cells,
            survival: survival(),
            ..Report::default()
        }
    }

    #[test]
    fn names_are_plain_and_each_is_there_once() {
        let report = report();
        let (cells, survival) = names(&report);
        let names = [cells, survival].concat();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        assert!(names.iter().all(|name| name.chars().all(plain) && name.len() < 160), "{names:?}");
        assert_eq!(
            names.iter().collect::<BTreeSet<_>>().len(),
            report.cells.len() + report.survival.len(),
            "{names:?}"
        );
        assert_eq!(names.first().map(String::as_str), Some("pause-past-ttl-guarded--redis--sqlite"));
        assert_eq!(pictures(&report).len(), 4, "two hostile cells, and two of survival");
    }
}
