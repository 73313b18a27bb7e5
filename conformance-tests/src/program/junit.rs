//! The report as `JUnit`'s XML: a suite for each backend, a test for each cell.

use super::evidence;
use super::expected::Mismatch;
use super::markup::{escaped, push};
use super::survive::is_mismatch;
use super::{story, terminal};
use crate::report::{Cell, Missing, Report, Verdict};
use crate::survival::{Outcome, SurvivalCell};

/// The whole report.
pub(crate) fn render(report: &Report, mismatches: &[Mismatch]) -> String {
    let mut suites: Vec<Suite> = Vec::new();
    for cell in &report.cells {
        let mismatch = mismatches.iter().find(|mismatch| mismatch.is_of(cell));
        suite(&mut suites, &cell.backend).take(&of_cell(report, cell, mismatch));
    }
    for cell in &report.survival {
        suite(&mut suites, &cell.backend).take(&of_survival(cell));
    }
    for missing in &report.missing {
        suite(&mut suites, &missing.backend).take(&of_missing(missing));
    }
    let total = |count: fn(&Suite) -> usize| suites.iter().map(count).sum::<usize>();
    let counts = counts(total(|s| s.tests), total(|s| s.failures), total(|s| s.errors), total(|s| s.skipped));
    let mut out =
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"lease-conformance\" {counts}>\n");
    for suite in &suites {
        out.push_str(&suite.text(report));
    }
    out + "</testsuites>\n"
}

/// What came of one test.
enum End {
    Passed,
    Failed(String, String),
    Error(String),
    Skipped(String),
}

struct Test {
    class: String,
    name: String,
    end: End,
}

#[derive(Default)]
struct Suite {
    name: String,
    tests: usize,
    failures: usize,
    errors: usize,
    skipped: usize,
    text: String,
}

fn suite<'a>(suites: &'a mut Vec<Suite>, name: &str) -> &'a mut Suite {
    let at = suites.iter().position(|suite| suite.name == name).unwrap_or(suites.len());
    if at == suites.len() {
        suites.push(Suite { name: name.to_owned(), ..Suite::default() });
    }
    &mut suites[at]
}

fn of_cell(report: &Report, cell: &Cell, mismatch: Option<&Mismatch>) -> Test {
    let class = format!("{}.{}", cell.backend, cell.case.split('/').next().unwrap_or_default());
    let place = cell.destination.as_ref().map_or_else(String::new, |destination| format!(" at {destination}"));
    let verdict = cell.verdict.name().replace('_', " ");
    let finding = cell.finding.clone().unwrap_or_default();
    let end = match (mismatch, cell.verdict) {
        (Some(mismatch), _) => {
            let expected = mismatch.expected.map_or("nothing", Verdict::name).replace('_', " ");
            End::Failed(format!("{verdict}, expected {expected}: {finding}"), details(report, cell))
        }
        (None, Verdict::Broken | Verdict::ControlFailed | Verdict::Unclaimed) => {
            End::Failed(format!("{verdict}: {finding}"), details(report, cell))
        }
        (None, Verdict::Untested | Verdict::Unproven) => End::Skipped(format!("{verdict}: {finding}")),
        (None, Verdict::Kept | Verdict::ControlLanded | Verdict::HonestNo) => End::Passed,
    };
    Test { class, name: format!("{}{place}", cell.case), end }
}

/// A guarantee under a fault: it fails where it is not as expected.
fn of_survival(cell: &SurvivalCell) -> Test {
    let outcome = cell.outcome.name().replace('_', " ");
    let end = match cell.outcome {
        _ if is_mismatch(cell) => {
            let expected = cell.expected.map_or("nothing", Outcome::name).replace('_', " ");
            let details = cell.timeline.iter().flat_map(story::lines).collect::<Vec<_>>().join("\n");
            End::Failed(format!("{outcome}, expected {expected}: {}", cell.finding), details)
        }
        Outcome::NotTried => End::Skipped(cell.finding.clone()),
        Outcome::Survives | Outcome::Noticed | Outcome::Breaks => End::Passed,
    };
    let name = format!("{} under {} in {}: {outcome}", cell.guarantee, cell.fault, cell.setup);
    Test { class: format!("{}.survival", cell.backend), name, end }
}

/// Evidence, what happened, and the command that repeats it.
fn details(report: &Report, cell: &Cell) -> String {
    let mut lines = evidence::lines(cell);
    lines.extend(cell.timeline.iter().flat_map(story::lines));
    lines.push(format!("repeat: {}", terminal::repeat(report, cell)));
    lines.join("\n")
}

/// Something that was asked for and could not be run.
fn of_missing(missing: &Missing) -> Test {
    let end = if missing.required { End::Error(missing.reason.clone()) } else { End::Skipped(missing.reason.clone()) };
    Test { class: missing.backend.clone(), name: "can be run".to_owned(), end }
}

impl Suite {
    fn take(&mut self, test: &Test) {
        let add = |count: &mut usize| *count = count.saturating_add(1);
        add(&mut self.tests);
        let inner = match &test.end {
            End::Passed => String::new(),
            End::Failed(message, details) => {
                add(&mut self.failures);
                format!("<failure message=\"{}\">{}</failure>", one_line(message), escaped(details))
            }
            End::Error(message) => {
                add(&mut self.errors);
                format!("<error message=\"{}\"/>", one_line(message))
            }
            End::Skipped(message) => {
                add(&mut self.skipped);
                format!("<skipped message=\"{}\"/>", one_line(message))
            }
        };
        let (class, name) = (one_line(&test.class), one_line(&test.name));
        push!(self.text, "    <testcase classname=\"{class}\" name=\"{name}\">{inner}</testcase>\n");
    }

    fn text(&self, report: &Report) -> String {
        let counts = counts(self.tests, self.failures, self.errors, self.skipped);
        let mut properties = format!("<property name=\"seed\" value=\"{}\"/>", report.seed);
        for backend in report.backends.iter().filter(|backend| backend.name == self.name) {
            let (version, fence) = (one_line(&backend.server_version), one_line(&backend.fence));
            push!(
                properties,
                "<property name=\"server\" value=\"{version}\"/><property name=\"fence\" value=\"{fence}\"/>"
            );
        }
        let name = one_line(&self.name);
        let text = &self.text;
        format!(
            "  <testsuite name=\"{name}\" {counts}>\n    <properties>{properties}</properties>\n{text}  </testsuite>\n"
        )
    }
}

fn counts(tests: usize, failures: usize, errors: usize, skipped: usize) -> String {
    format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\"")
}

/// For an attribute, in which a new line would become a space anyway.
fn one_line(text: &str) -> String {
    escaped(&text.replace(['\n', '\t'], " "))
}

#[cfg(test)]
mod tests {
    use super::super::markup::tests::elements;
    use super::super::render::tests::{cell, report};
    use super::*;

    fn count(found: &[(String, Vec<(String, String)>)], name: &str) -> usize {
        found.iter().filter(|(other, _)| other == name).count()
    }

    #[test]
    fn red_verdicts_fail_untried_ones_are_skipped_and_whatever_was_asked_for_and_is_missing_is_an_error() {
        let report = report();
        let found = elements(&render(&report, &[]), &[]);
        assert_eq!(count(&found, "testcase"), report.cells.len() + report.survival.len() + report.missing.len());
        assert_eq!(count(&found, "testsuite"), 2);
        assert_eq!(count(&found, "script"), 0);
        // Broken, unclaimed, control failed, and the two hostile ones; of survival, three that are not as expected.
        assert_eq!(count(&found, "failure"), 8);
        assert_eq!(
            (count(&found, "skipped"), count(&found, "error")),
            (4, 1),
            "untested, unproven, not asked for, not tried; asked for"
        );
        let (_, totals) = found.first().unwrap();
        let total = |name: &str| totals.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!(
            [total("tests"), total("failures"), total("errors"), total("skipped")],
            [Some("20"), Some("8"), Some("1"), Some("4")]
        );
    }

    #[test]
    fn a_verdict_that_differs_from_the_expected_one_fails_whatever_it_is() {
        let mut report = report();
        report.cells = vec![cell("a/b", None, Verdict::Kept)];
        report.missing.clear();
        report.survival.clear();
        let mismatch = Mismatch {
            case: "a/b".to_owned(),
            backend: "redis".to_owned(),
            destination: None,
            expected: Some(Verdict::HonestNo),
            seen: Verdict::Kept,
        };
        assert_eq!(count(&elements(&render(&report, &[]), &[]), "failure"), 0);
        let xml = render(&report, &[mismatch]);
        assert!(xml.contains("kept, expected honest no") && xml.contains("--seed 7"), "{xml}");
        assert_eq!(count(&elements(&xml, &[]), "failure"), 1);
    }
}
