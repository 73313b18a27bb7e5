//! Public reports of real failures, and what keeps each kind cured here.

use super::Failure;
use serde::Deserialize;

/// The table.
const BUILT_IN: &str = include_str!("../../scenarios.toml");

/// One report, as the table has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Scenario {
    /// Its id, such as `B01`.
    pub id: String,
    /// The kind of fault, such as `STALE`.
    pub class: String,
    /// What went wrong elsewhere, in one line.
    pub title: String,
    /// Where it was told.
    pub report: String,
    /// The ids of the cases that would fail if an adapter had this fault.
    #[serde(default)]
    pub cases: Vec<String>,
    /// The tests that would fail, as `PACKAGE::FILE::NAME`.
    #[serde(default)]
    pub tests: Vec<String>,
    /// The server faults that were played and show what becomes of it, as `SET-UP × FAULT`.
    #[serde(default)]
    pub scenes: Vec<String>,
    /// Why the fault cannot arise here.
    #[serde(default)]
    pub never: Option<String>,
    /// What of the scenario is not tried, or still to be done.
    #[serde(default)]
    pub open: Option<String>,
}

impl Scenario {
    /// Whether anything keeps its kind cured.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        !self.cases.is_empty() || !self.tests.is_empty() || !self.scenes.is_empty() || self.never.is_some()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    scenario: Vec<Scenario>,
}

/// The table, in its order.
///
/// # Errors
/// When the built-in file has another form.
pub fn scenarios() -> Result<Vec<Scenario>, Failure> {
    let table: Table = toml::from_str(BUILT_IN).map_err(|e| Failure::Usage(format!("scenarios.toml: {e}")))?;
    Ok(table.scenario)
}

/// The scenarios that a case keeps cured, for people; empty when it stands for none.
pub(crate) fn of_case(case: &str) -> Result<String, Failure> {
    let table = scenarios()?;
    let its = table.iter().filter(|scenario| scenario.cases.iter().any(|id| id == case));
    let lines: Vec<String> = its.map(|it| format!("  {:<5} {}\n        {}\n", it.id, it.title, it.report)).collect();
    let text = lines.concat();
    if text.is_empty() { Ok(text) } else { Ok(format!("It would have caught what was reported in public as:\n{text}")) }
}

/// The table as Markdown: what `SCENARIOS.md` holds.
#[must_use]
pub fn markdown(scenarios: &[Scenario]) -> String {
    let mut text = String::from(HEAD);
    let mut class = "";
    for scenario in scenarios {
        if scenario.class != class {
            class = &scenario.class;
            text.extend(["\n## ", class, "\n\n| | elsewhere | here |\n|---|---|---|\n"]);
        }
        let Scenario { id, title, report, .. } = scenario;
        text.extend([format!("| [{id}]({report}) | {} | {} |\n", cell(title), here(scenario))]);
    }
    text
}

const HEAD: &str = "# Failures of others, and what keeps them cured here

Public reports of real failures of locks and leases. Each is a kind of fault, not an instance: what is named beside it would fail if an
adapter of this workspace had that fault. Names with slashes are cases of the suite (`lease-conformance explain CASE`), those with `×` are
server faults in a set-up (`lease-conformance survive --setup SET-UP --fault FAULT`), the others are tests as `PACKAGE::FILE::NAME`.
*Cannot arise* gives the reason in the design, with the test that shows it where there is one.

Printed from `scenarios.toml` by `lease-conformance scenarios`; a test keeps the two in step.
";

/// What keeps a scenario cured, in one cell.
fn here(scenario: &Scenario) -> String {
    let names = scenario.cases.iter().chain(&scenario.tests).chain(&scenario.scenes).map(|name| format!("`{name}`"));
    let said = [("Cannot arise", &scenario.never), ("**Open**", &scenario.open)];
    let said = said.iter().filter_map(|(what, text)| Some(format!("{what}: {}", cell(text.as_ref()?))));
    names.chain(said).collect::<Vec<_>>().join("<br>")
}

/// Text that does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
