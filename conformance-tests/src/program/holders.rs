//! The figures of holders in trouble and of many guards at once, for people.

use super::layout;
use crate::report::{Cell, Report};
use serde_json::Value;

const LOST: &str = "holder/loss-by-deadline";
const KEPT: &str = "holder/no-false-loss";
const CROWD: &str = "holder/ten-thousand-guards";

const EXPLAINED: &str = "lost: holders in trouble that lasts, and the least time from the last permit to the next worker's grant · kept: \
    holders in trouble for so long, and the least that was left when a renewal came · guards: in one process, with so many tasks and \
    connections more than without them, and requests for each guard in one round of renewals";

/// One row for each backend; nothing where none of these cases has figures.
pub(crate) fn table(report: &Report, width: u16) -> Option<String> {
    let cell = |case: &str, backend: &str| {
        let is_it = |cell: &&Cell| cell.case == case && cell.backend == backend && !cell.evidence.is_empty();
        report.cells.iter().find(is_it)
    };
    let mut table = layout::table(width);
    let headings = ["backend", "lost", "least to grant", "kept", "trouble", "least slack"];
    table.set_header(headings.iter().chain(&["guards", "tasks", "connections", "requests"]));
    let mut any = false;
    for backend in &report.backends {
        let [lost, kept, crowd] = [LOST, KEPT, CROWD].map(|case| cell(case, &backend.name));
        any |= lost.or(kept).or(crowd).is_some();
        let figures = [
            figure(lost, "holders").and_then(most).map(|count| count.to_string()),
            figure(lost, "least_time_from_last_permit_to_next_grant_us").and_then(least).map(millis),
            figure(kept, "holders").and_then(most).map(|count| count.to_string()),
            figure(kept, "trouble_ms").and_then(range),
            figure(kept, "least_renewal_slack_ms").and_then(least).map(|slack| format!("{slack} ms")),
            figure(crowd, "guards_at_once").and_then(most).map(|count| count.to_string()),
            figure(crowd, "tasks_at_rest").and_then(most).map(|count| count.to_string()),
            figure(crowd, "connections_at_rest").and_then(most).map(|count| count.to_string()),
            figure(crowd, "renewal_rounds").and_then(requests),
        ];
        let figures = figures.map(|figure| figure.unwrap_or_else(|| "-".to_owned()));
        table.add_row(std::iter::once(backend.name.clone()).chain(figures));
    }
    let explained = layout::wrapped(EXPLAINED, width);
    any.then(|| format!("{}{explained}\n", layout::text(&table)))
}

fn figure<'a>(cell: Option<&'a Cell>, name: &str) -> Option<&'a Value> {
    cell?.evidence.get(name)
}

/// Of several trials the least.
fn least(value: &Value) -> Option<u64> {
    value.get("min").unwrap_or(value).as_u64()
}

/// Of several trials the most.
fn most(value: &Value) -> Option<u64> {
    value.get("max").unwrap_or(value).as_u64()
}

fn range(value: &Value) -> Option<String> {
    let (least, most) = (least(value)?, most(value)?);
    Some(if least == most { format!("{least} ms") } else { format!("{least} to {most} ms") })
}

/// Microseconds as milliseconds with one decimal place.
fn millis(us: u64) -> String {
    let tenths = us.checked_div(100).unwrap_or_default();
    format!("{}.{} ms", tenths.checked_div(10).unwrap_or_default(), tenths.checked_rem(10).unwrap_or_default())
}

/// Requests for each guard, with two decimal places.
fn requests(rounds: &Value) -> Option<String> {
    let sum = |name: &str| {
        let counts = rounds.as_array()?.iter().map(|round| round.get(name)?.as_u64()).collect::<Option<Vec<_>>>()?;
        Some(counts.into_iter().fold(0_u64, u64::saturating_add))
    };
    let hundredths = sum("requests")?.saturating_mul(100).checked_div(sum("guards")?)?;
    let (whole, rest) = (hundredths.checked_div(100)?, hundredths.checked_rem(100)?);
    Some(format!("{whole}.{rest:02} a guard"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{BackendReport, Verdict};
    use serde_json::json;
    use std::collections::BTreeMap;

    fn report(cells: &[(&str, Value)]) -> Report {
        let cell = |(case, evidence): &(&str, Value)| Cell {
            case: (*case).to_owned(),
            backend: "redis".to_owned(),
            destination: None,
            claim: None,
            verdict: Verdict::Kept,
            trials: 1,
            finding: None,
            evidence: serde_json::from_value(evidence.clone()).unwrap(),
            timeline: None,
        };
        let backend = |name: &str| BackendReport {
            name: name.to_owned(),
            server_version: String::new(),
            address: String::new(),
            claims: Vec::new(),
            fence: String::new(),
            limits: BTreeMap::new(),
        };
        let backends = vec![backend("redis"), backend("etcd")];
        Report { backends, cells: cells.iter().map(cell).collect(), ..Report::default() }
    }

    #[test]
    fn figures_of_one_trial_and_of_several_are_shown_and_fit() {
        let spread = json!({ "min": 1_250, "median": 3_000, "max": 9_000 });
        let report = report(&[
            (LOST, json!({ "holders": 240, "least_time_from_last_permit_to_next_grant_us": spread })),
            (
                KEPT,
                json!({ "holders": 200, "trouble_ms": { "min": 401, "median": 5, "max": 699 }, "least_renewal_slack_ms": 1_700 }),
            ),
            (
                CROWD,
                json!({
                    "guards_at_once": 10_000, "tasks_at_rest": 3, "connections_at_rest": 1,
                    "renewal_rounds": [{ "guards": 10_000, "requests": 10_000 }, { "guards": 10_000, "requests": 10_100 }],
                }),
            ),
        ]);
        let text = table(&report, layout::WIDTH).unwrap();
        let row = text.lines().find(|line| line.contains("redis")).unwrap();
        let words: Vec<&str> = row.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        let expected = ["redis", "240", "1.2 ms", "200", "401 to 699 ms", "1700 ms", "10000", "3", "1", "1.00 a guard"];
        assert_eq!(words, expected, "{text}");
        assert!(text.contains("etcd") && text.contains('-'), "{text}");
        for width in [80, layout::WIDTH] {
            let text = table(&report, width).unwrap();
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{text}");
        }
    }

    #[test]
    fn without_figures_there_is_no_table() {
        assert_eq!(table(&report(&[(LOST, json!({})), ("expiry/frees", json!({ "holders": 1 }))]), 80), None);
    }
}
