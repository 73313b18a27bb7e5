//! The evidence of one cell, for people.

use crate::report::Cell;
use serde_json::Value;
use std::collections::BTreeMap;

/// Evidence of a cell: first what happened, in order of time, then the rest.
pub(crate) fn lines(cell: &Cell) -> Vec<String> {
    let line = |(name, value): (String, String)| match name.strip_suffix(" ms") {
        Some(at) if name.starts_with('+') => format!("+{:>9} ms  {value}", at.trim_start_matches('+')),
        _ => format!("{name}: {value}"),
    };
    entries(&cell.evidence).into_iter().map(line).collect()
}

/// The same as names and values; the name of what happened is the time since the first of it, such as `+12.0 ms`.
pub(crate) fn entries(evidence: &BTreeMap<String, Value>) -> Vec<(String, String)> {
    let mut instants: Vec<(i128, &str)> =
        evidence.iter().filter_map(|(key, value)| Some((instant(value)?, key.strip_suffix("_ns")?))).collect();
    instants.sort_unstable();
    let begin = instants.first().map_or(0, |(at, _)| *at);
    let mut entries: Vec<(String, String)> =
        instants.iter().map(|(at, what)| (format!("+{} ms", millis(at.saturating_sub(begin))), words(what))).collect();
    entries.extend(
        evidence
            .iter()
            .filter(|(key, value)| !(key.ends_with("_ns") && instant(value).is_some()))
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (words(key), text(value))),
    );
    entries
}

fn instant(value: &Value) -> Option<i128> {
    value.as_u64().map(i128::from).or_else(|| value.as_i64().map(i128::from))
}

/// Nanoseconds as milliseconds with one decimal place.
fn millis(ns: i128) -> String {
    let tenths = ns.checked_div(100_000).unwrap_or_default();
    let whole = tenths.checked_div(10).unwrap_or_default();
    let rest = tenths.checked_rem(10).unwrap_or_default();
    format!("{whole}.{rest}")
}

fn words(key: &str) -> String {
    key.replace('_', " ")
}

/// A value in words: without the marks of JSON, and with the figures of several trials in their order.
fn in_words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(in_words).collect::<Vec<_>>().join("; "),
        Value::Object(map) => {
            if let [Some(least), Some(median), Some(most)] = ["min", "median", "max"].map(|name| map.get(name)) {
                return format!("{least} to {most} (median {median})");
            }
            let part = |(name, value): (&String, &Value)| format!("{} {}", words(name), in_words(value));
            map.iter().map(part).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// A value on one line, without what could move the cursor or colour the screen: it may come from a store.
fn text(value: &Value) -> String {
    const MOST: usize = 400;
    let text = in_words(value);
    let mut plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if text.chars().count() > MOST {
        plain.push('…');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;
    use serde_json::json;

    #[test]
    fn instants_come_in_order_and_nothing_moves_the_cursor() {
        let evidence = [
            ("b_granted_ns", json!(3_500_000_000_u64)),
            ("a_last_live_ns", json!(2_000_000_000_u64)),
            ("content_after", json!("x\u{1b}[31m")),
            ("mark_after", Value::Null),
        ];
        let cell = Cell {
            case: "c".into(),
            backend: "b".into(),
            destination: None,
            claim: None,
            verdict: Verdict::Broken,
            trials: 1,
            finding: None,
            evidence: evidence.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            timeline: None,
        };
        assert_eq!(lines(&cell), ["+      0.0 ms  a last live", "+   1500.0 ms  b granted", "content after: x [31m"]);
        let figures = json!({ "holders": 40, "pause_ms": { "min": 4, "median": 6, "max": 9 }, "causes": ["x", "y"] });
        assert_eq!(text(&figures), "causes x; y, holders 40, pause ms 4 to 9 (median 6)");
    }
}
