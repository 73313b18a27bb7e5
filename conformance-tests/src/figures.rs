//! Joins what several trials of one case showed: the verdict of the worst one, and their figures.
//!
//! What a number in the evidence is, its name tells; [`Cell::evidence`](crate::Cell) says the same to readers.

use crate::context::Evidence;
use crate::judge::Observed;
use serde_json::{Map, Value, json};

/// What is done with the numbers of several trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A time, a length or a share: the least, the median and the most of them.
    Measure,
    /// How many there were at one time, at most: the most of them.
    Most,
    /// An instant, a process id, a token's value: it means something in its own trial only, so the last one stays.
    Own,
    /// A count: their sum.
    Count,
}

impl Kind {
    fn of(name: &str) -> Self {
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        if ends(&["_ms", "_us", "_bytes"]) {
            Self::Measure
        } else if ends(&["_at_once", "_at_rest"]) {
            Self::Most
        } else if ends(&["_ns", "_value"]) || name.split('_').any(|word| word == "pid") {
            Self::Own
        } else {
            Self::Count
        }
    }
}

/// Joins the trials of one case, in their order: which of them decides, what was observed in all, and the evidence.
///
/// One that was refuted decides; else one that could not be tried, so that nothing is green that was not tried; else they held. A
/// counter-example keeps its own evidence, where it has any.
pub(crate) fn joined(trials: Vec<(Observed, Evidence)>) -> (usize, Observed, Evidence) {
    let first = |is: fn(&Observed) -> bool| trials.iter().position(|(observed, _)| is(observed));
    let held = |observed: &Observed| matches!(observed, Observed::Held { .. });
    let count = trials.iter().filter(|(observed, _)| held(observed)).count();
    let all = trials.len();
    let decides = first(|observed| matches!(observed, Observed::Refuted { .. }))
        .or_else(|| first(|observed| matches!(observed, Observed::NotTried { .. })));
    let Some(at) = decides else {
        let trials: Vec<Evidence> = trials.into_iter().map(|(_, evidence)| evidence).collect();
        let observed = Observed::Held { trials: u32::try_from(count).unwrap_or(u32::MAX) };
        return (all.saturating_sub(1), observed, merged(&trials));
    };
    let number = at.saturating_add(1);
    let (seen, evidence): (Vec<Observed>, Vec<Evidence>) = trials.into_iter().unzip();
    let own = evidence.get(at).filter(|own| !own.is_empty()).cloned();
    match seen.into_iter().nth(at) {
        Some(refuted @ Observed::Refuted { .. }) => (at, refuted, own.unwrap_or_else(|| merged(&evidence))),
        Some(Observed::NotTried { reason }) if all > 1 => {
            let reason = format!("trial {number} of {all}, {count} of which held: {reason}");
            (at, Observed::NotTried { reason }, merged(&evidence))
        }
        other => (at, other.unwrap_or(Observed::Held { trials: 0 }), own.unwrap_or_default()),
    }
}

/// The evidence of several trials as one.
pub(crate) fn merged<'a>(trials: impl IntoIterator<Item = &'a Evidence>) -> Evidence {
    let maps: Vec<&Evidence> = trials.into_iter().collect();
    let mut names: Vec<&String> = maps.iter().flat_map(|map| map.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let join =
        |name: &String| (name.clone(), join(name, &maps.iter().filter_map(|map| map.get(name)).collect::<Vec<_>>()));
    names.into_iter().map(join).collect()
}

/// The values that several trials have under one name.
fn join(name: &str, values: &[&Value]) -> Value {
    let Some((last, rest)) = values.split_last() else { return Value::Null };
    if rest.is_empty() {
        return (*last).clone();
    }
    let all = |is: fn(&Value) -> bool| values.iter().all(|value| is(value));
    if Kind::of(name) == Kind::Measure
        && let Some(measures) = values.iter().map(|value| measure(value)).collect::<Option<Vec<_>>>()
    {
        return together(&measures);
    }
    if all(Value::is_u64) {
        return numbers(name, &values.iter().filter_map(|value| value.as_u64()).collect::<Vec<_>>());
    }
    if all(Value::is_object) {
        return objects(&values.iter().filter_map(|value| value.as_object()).collect::<Vec<_>>());
    }
    if all(Value::is_array) {
        return lists(name, &values.iter().filter_map(|value| value.as_array()).collect::<Vec<_>>());
    }
    (*last).clone()
}

fn numbers(name: &str, numbers: &[u64]) -> Value {
    match Kind::of(name) {
        Kind::Count => json!(numbers.iter().fold(0_u64, |sum, number| sum.saturating_add(*number))),
        Kind::Most => json!(numbers.iter().max()),
        Kind::Own => json!(numbers.last()),
        Kind::Measure => spread(numbers),
    }
}

/// A measure, or several of them as [`spread`] shows them: their least, median and most.
fn measure(value: &Value) -> Option<[u64; 3]> {
    let of = |name: &str| value.get(name).and_then(Value::as_u64);
    value.as_u64().map(|one| [one; 3]).or_else(|| Some([of("min")?, of("median")?, of("max")?]))
}

/// Several measures together; the median is that of their medians.
fn together(measures: &[[u64; 3]]) -> Value {
    let mut medians: Vec<u64> = measures.iter().map(|[_, median, _]| *median).collect();
    medians.sort_unstable();
    let min = measures.iter().map(|[least, ..]| *least).min();
    let max = measures.iter().map(|[.., most]| *most).max();
    if min == max { json!(min) } else { json!({ "min": min, "median": middle(&medians), "max": max }) }
}

fn middle(sorted: &[u64]) -> Option<&u64> {
    sorted.get(sorted.len().saturating_sub(1).checked_div(2).unwrap_or_default())
}

/// The least, the median and the most of several measures; a plain number where they are all the same.
pub(crate) fn spread(measures: &[u64]) -> Value {
    together(&measures.iter().map(|one| [*one; 3]).collect::<Vec<_>>())
}

fn objects(objects: &[&Map<String, Value>]) -> Value {
    let evidence: Vec<Evidence> =
        objects.iter().map(|map| map.iter().map(|(name, value)| (name.clone(), value.clone())).collect()).collect();
    json!(merged(&evidence))
}

/// Lists of texts are put together, each text once; lists of the same things in the same order one by one.
fn lists(name: &str, lists: &[&Vec<Value>]) -> Value {
    if lists.iter().all(|list| list.iter().all(Value::is_string)) {
        let mut texts: Vec<&Value> = Vec::new();
        for text in lists.iter().flat_map(|list| list.iter()) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        return json!(texts);
    }
    let length = lists.iter().map(|list| list.len()).max().unwrap_or_default();
    let at = |at: usize| join(name, &lists.iter().filter_map(|list| list.get(at)).collect::<Vec<_>>());
    (0..length).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::evidence;

    fn held(evidence: Evidence) -> (Observed, Evidence) {
        (Observed::Held { trials: 1 }, evidence)
    }

    fn refuted(trial: u32) -> (Observed, Evidence) {
        (Observed::Refuted { trial, finding: "both".to_owned() }, Evidence::new())
    }

    fn not_tried(reason: &str) -> (Observed, Evidence) {
        (Observed::NotTried { reason: reason.to_owned() }, Evidence::new())
    }

    #[test]
    fn counts_are_summed_and_times_have_a_least_a_median_and_a_most() {
        let trial = |holders: u32, least_us: u32, kind_ms: u32, pid: u32| {
            held(evidence! {
                "holders": holders,
                "least_time_us": least_us,
                "granted_ttl_ms": 300,
                "pid_a": pid,
                "tasks_at_once": pid,
                "seen_at_ns": pid,
                "named_value": pid,
                "black hole": serde_json::json!({ "holders": 4, "trouble_ms": kind_ms, "causes": [format!("c{pid}"), "c"] }),
            })
        };
        let trials = vec![trial(20, 9, 400, 7), trial(19, 5, 500, 8), trial(20, 7, 700, 3)];
        let (at, observed, evidence) = joined(trials);
        assert_eq!((at, observed), (2, Observed::Held { trials: 3 }));
        let expected = evidence! {
            "holders": 59,
            "least_time_us": serde_json::json!({ "min": 5, "median": 7, "max": 9 }),
            "granted_ttl_ms": 300,
            "pid_a": 3,
            "tasks_at_once": 8,
            "seen_at_ns": 3,
            "named_value": 3,
            "black hole": serde_json::json!({
                "holders": 12,
                "trouble_ms": { "min": 400, "median": 500, "max": 700 },
                "causes": ["c7", "c", "c8", "c3"],
            }),
        };
        assert_eq!(evidence, expected);
    }

    #[test]
    fn what_only_some_trials_have_is_kept_and_lists_are_joined_one_by_one() {
        let rounds =
            |requests: u32| serde_json::json!([{ "requests": requests, "took_ms": requests }, { "requests": 1 }]);
        let first = evidence! { "rounds": rounds(3), "fewer_because": "slow" };
        let second = evidence! { "rounds": rounds(5), "server frozen": serde_json::json!({ "holders": 2 }) };
        let expected = evidence! {
            "rounds": serde_json::json!([{ "requests": 8, "took_ms": { "min": 3, "median": 3, "max": 5 } }, { "requests": 2 }]),
            "fewer_because": "slow",
            "server frozen": serde_json::json!({ "holders": 2 }),
        };
        assert_eq!(merged([&first, &second]), expected);
    }

    #[test]
    fn figures_that_are_joined_already_are_joined_again() {
        let trouble = |measures: &[u64]| evidence! { "trouble_ms": spread(measures) };
        let expected = serde_json::json!({ "min": 3, "median": 6, "max": 30 });
        let trials = [trouble(&[5, 6, 9]), trouble(&[8]), trouble(&[3, 4, 30])];
        assert_eq!(merged(&trials), evidence! { "trouble_ms": expected });
    }

    #[test]
    fn one_trial_is_shown_as_it_was() {
        let evidence = evidence! { "holders": 20, "took_ms": 5, "causes": ["x"] };
        assert_eq!(joined(vec![held(evidence.clone())]), (0, Observed::Held { trials: 1 }, evidence));
        assert_eq!(joined(vec![not_tried("no server")]).1, Observed::NotTried { reason: "no server".into() });
    }

    #[test]
    fn a_refutation_counts_wherever_it_comes() {
        let seen = |holders: u32| held(evidence! { "holders": holders });
        for (at, trials) in [
            (1, vec![not_tried("slow"), refuted(2), seen(20)]),
            (1, vec![seen(20), refuted(2), not_tried("slow")]),
            (0, vec![refuted(1), refuted(2), not_tried("slow")]),
        ] {
            let expected = trials.get(at).unwrap().0.clone();
            let (decides, observed, _) = joined(trials);
            assert_eq!((decides, observed), (at, expected));
        }
        let own = (refuted(2).0, evidence! { "content": "A" });
        assert_eq!(joined(vec![seen(20), own]).2, evidence! { "content": "A" }, "a counter-example is shown by itself");
        assert_eq!(joined(vec![seen(20), seen(9), refuted(3)]).2, evidence! { "holders": 29 }, "one without evidence");
    }

    #[test]
    fn one_that_could_not_be_tried_is_not_green_and_the_others_figures_stay() {
        let seen = |holders: u32| held(evidence! { "holders": holders });
        let (at, observed, evidence) = joined(vec![seen(20), not_tried("too slow"), seen(18)]);
        let reason = "trial 2 of 3, 2 of which held: too slow".to_owned();
        assert_eq!((at, observed), (1, Observed::NotTried { reason }));
        assert_eq!(evidence, evidence! { "holders": 38 });
    }
}
