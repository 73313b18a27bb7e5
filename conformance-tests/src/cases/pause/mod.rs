//! The two-worker test: A holds, prepares its writes and is stopped past its TTL; B takes over; A goes on with what it had
//! prepared. One pause serves every destination at once.

mod judged;
mod notes;
mod scene;
mod seen;
mod steps;
mod target;
mod trial;

use super::{Case, CaseInfo, How};
use crate::context::{Run, Stage, Stop};
use crate::figures;
use crate::judge::{Observed, Rule};
use crate::report::Cell;
use crate::trials::Outcome;
use lease_core::Claim;
use std::sync::Arc;

const fn part(id: &'static str, rule: Rule, title: &'static str, explain: &'static str) -> Case {
    Case { info: CaseInfo { id, rule, title, explain }, how: How::Pause }
}

pub(super) const GUARDED: &str = "fencing/pause-past-ttl/guarded";
pub(super) const SEALED: &str = "fencing/pause-past-ttl/sealed-not-written";
pub(super) const NEITHER: &str = "fencing/pause-past-ttl/neither-sealed-nor-written";
pub(super) const PLAIN: &str = "fencing/pause-past-ttl/plain";
pub(super) const IGNORED: &str = "fencing/pause-past-ttl/refusal-ignored";
pub(super) const NATIVE_LIVE: &str = "fencing/pause-past-ttl/native-live-owner";
pub(super) const NATIVE_MARK: &str = "fencing/pause-past-ttl/native-mark";
pub(super) const NATIVE_PLAIN: &str = "fencing/pause-past-ttl/native-unchecked";
pub(super) const TOUCH: &str = "fencing/pause-past-ttl/knows-at-first-touch";
pub(super) const RENEW: &str = "fencing/pause-past-ttl/cannot-renew";
pub(super) const RELEASE: &str = "fencing/pause-past-ttl/release-leaves-holder-alone";

pub(super) const CASES: &[Case] = &[
    part(
        GUARDED,
        Rule::Core,
        "A guarded destination refuses the write of a worker that was paused past its TTL.",
        "B seals, reads and writes while A is stopped. A's prepared write must be refused, and the content stay B's.",
    ),
    part(
        SEALED,
        Rule::Core,
        "Sealing is enough: the stale write is refused although the new holder has not written yet.",
        "B seals and reads while A is stopped. A's prepared write must be refused, so that what B writes then, from what it read, loses nothing.",
    ),
    part(
        NEITHER,
        Rule::Control,
        "Control: without a seal or a write of the new holder, the stale write lands at a guarded destination too.",
        "B only reads while A is stopped. A's write lands and B's own write, from what it read, overwrites it: why a new holder seals before it reads.",
    ),
    part(
        PLAIN,
        Rule::Control,
        "Control: at a destination without a check the stale write lands.",
        "The same pause, the same prepared write, no check. If it does not land, the test proves nothing.",
    ),
    part(
        IGNORED,
        Rule::Claim(Claim::RefusalUncommittable),
        "A caller that ignores the refusal cannot commit the stale write.",
        "B seals, reads and writes while A is stopped. A asks the guard, is refused, writes all the same in the same transaction and commits.",
    ),
    part(
        NATIVE_LIVE,
        Rule::Claim(Claim::NativeFenceLiveOwner),
        "The store's own fence refuses the stale write (live owner).",
        "B writes the register in the lease's own store through its fence while A is stopped. A's prepared write through the same fence must be refused.",
    ),
    part(
        NATIVE_MARK,
        Rule::Claim(Claim::NativeFenceMark),
        "The store's own fence refuses the stale write (mark).",
        "B writes the register in the lease's own store through its fence while A is stopped. A's prepared write through the same fence must be refused.",
    ),
    part(
        NATIVE_PLAIN,
        Rule::Control,
        "Control: the same register without the fence takes the stale write.",
        "A's prepared write to the register in the lease's own store, without the check. If it does not land, the native cell proves nothing. There is no such cell where the store lets nobody write it unchecked.",
    ),
    part(
        TOUCH,
        Rule::Core,
        "The paused worker's lease says at its first touch that its deadline has passed.",
        "The first thing that A does when it goes on is to look at its lease, without any I/O. Before the pause it was live.",
    ),
    part(RENEW, Rule::Core, "The paused worker cannot renew.", "After the pause A renews; the answer must be `Lost`."),
    part(
        RELEASE,
        Rule::Core,
        "The paused worker's release leaves the new holder's lease alone.",
        "After the pause A releases; the answer must be `NotHeld`, B must still be able to renew, and an observer must see B's grant.",
    ),
];

/// Runs the two-worker test: every trial is one pause per kind of worker, with all places at once.
pub(crate) async fn run_pause(run: &Arc<Run>) -> Vec<Outcome> {
    let mut seen: Vec<Vec<Outcome>> = Vec::new();
    for number in 1..=run.trials {
        for group in target::groups(run) {
            for outcome in one(run, &group).await {
                sort_in(&mut seen, outcome, number);
            }
        }
    }
    let mut outcomes: Vec<Outcome> = seen.into_iter().filter_map(join).collect();
    keep_pictures(&mut outcomes);
    outcomes
}

/// Keeps the timelines of the cells in which a stale write landed or something was refuted, and, to compare them with, that of one guarded
/// destination: a separate one, if there is any.
fn keep_pictures(outcomes: &mut [Outcome]) {
    let is_guarded = |outcome: &Outcome| outcome.case == GUARDED && outcome.timeline.is_some();
    let is_separate = |outcome: &Outcome| outcome.destination.as_deref() != Some(Cell::SAME_STORE);
    let separate = outcomes.iter().position(|outcome| is_guarded(outcome) && is_separate(outcome));
    let compared = separate.or_else(|| outcomes.iter().position(is_guarded));
    for (at, outcome) in outcomes.iter_mut().enumerate() {
        let is_wanted = outcome.rule == Rule::Control || matches!(outcome.observed, Observed::Refuted { .. });
        if !is_wanted && compared != Some(at) {
            outcome.timeline = None;
        }
    }
}

async fn one(run: &Arc<Run>, group: &target::Group) -> Vec<Outcome> {
    let stage = Stage::new(Arc::clone(run));
    let task = tokio::spawn({
        let (stage, group) = (stage.clone(), group.clone());
        async move { trial::run(&stage, &group).await }
    });
    let abort = task.abort_handle();
    let seen = match tokio::time::timeout(run.patience(), task).await {
        Ok(Ok(seen)) => seen,
        Ok(Err(_)) => Err(Stop::Refuted("the two-worker test panicked".into())),
        Err(_) => {
            abort.abort();
            Err(Stop::NotTried(format!("the two-worker test did not end within {:?}", run.patience())))
        }
    };
    match seen {
        Ok(seen) => judged::outcomes(run, group, &seen, &stage),
        Err(stop) => judged::none(run, group, &stop),
    }
}

/// Puts the outcome of one more trial to those of the same cell.
fn sort_in(seen: &mut Vec<Vec<Outcome>>, mut outcome: Outcome, number: u32) {
    if let Observed::Refuted { trial, .. } = &mut outcome.observed {
        *trial = number;
    }
    let is_same = |other: &Outcome| other.case == outcome.case && other.destination == outcome.destination;
    match seen.iter_mut().find(|cell| cell.first().is_some_and(is_same)) {
        None => seen.push(vec![outcome]),
        Some(cell) => cell.push(outcome),
    }
}

/// The outcome of all trials of one cell: what the deciding one says, with the figures of all.
fn join(trials: Vec<Outcome>) -> Option<Outcome> {
    let seen = trials.iter().map(|outcome| (outcome.observed.clone(), outcome.evidence.clone())).collect();
    let (at, observed, evidence) = figures::joined(seen);
    trials.into_iter().nth(at).map(|decides| Outcome { observed, evidence, ..decides })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Evidence, evidence};
    use crate::timeline::Timeline;
    use lease_core::Claims;

    fn outcome(rule: Rule, observed: Observed, evidence: Evidence) -> Outcome {
        let destination = Some("sqlite".to_owned());
        Outcome { case: IGNORED, destination, rule, declared: Claims::of(&[]), observed, evidence, timeline: None }
    }

    fn all(trials: Vec<Outcome>) -> Outcome {
        let mut seen = Vec::new();
        for (number, outcome) in (1..).zip(trials) {
            sort_in(&mut seen, outcome, number);
        }
        assert_eq!(seen.len(), 1, "one cell");
        join(seen.pop().unwrap()).unwrap()
    }

    #[test]
    fn a_refuted_pause_counts_although_another_one_could_not_be_made() {
        let claim = Rule::Claim(Claim::RefusalUncommittable);
        // Where a destination cannot be opened, what it claims is not known, so it counts as claimed.
        let not_tried = || outcome(Rule::Core, Observed::NotTried { reason: "no server".into() }, Evidence::new());
        let refuted =
            || outcome(claim, Observed::Refuted { trial: 1, finding: "landed".into() }, evidence! { "pause_ms": 7 });
        let held = || outcome(claim, Observed::Held { trials: 1 }, evidence! { "pause_ms": 5 });
        for (number, trials) in [(2, vec![not_tried(), refuted(), held()]), (1, vec![refuted(), not_tried()])] {
            let joined = all(trials);
            assert_eq!(joined.observed, Observed::Refuted { trial: number, finding: "landed".into() });
            assert_eq!((joined.rule, joined.evidence), (claim, evidence! { "pause_ms": 7 }));
        }
        let joined = all(vec![held(), not_tried()]);
        assert!(matches!(joined.observed, Observed::NotTried { .. }) && joined.rule == Rule::Core, "{joined:?}");
    }

    #[test]
    fn pictures_are_kept_of_what_landed_of_what_was_refuted_and_of_one_guarded_destination() {
        let drawn = |case: &'static str, destination: &str, rule: Rule, observed: Observed| Outcome {
            case,
            destination: Some(destination.to_owned()),
            timeline: Some(Timeline::default()),
            ..outcome(rule, observed, Evidence::new())
        };
        let held = || Observed::Held { trials: 1 };
        let refuted = Observed::Refuted { trial: 1, finding: "landed".into() };
        let mut outcomes = vec![
            drawn(GUARDED, Cell::SAME_STORE, Rule::Core, held()),
            drawn(GUARDED, "sqlite", Rule::Core, held()),
            drawn(GUARDED, "redis", Rule::Core, held()),
            drawn(GUARDED, "etcd", Rule::Core, refuted),
            drawn(PLAIN, "sqlite", Rule::Control, held()),
            drawn(SEALED, "sqlite", Rule::Core, held()),
        ];
        let kept = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| outcome.timeline.is_some()).collect::<Vec<_>>();
        keep_pictures(&mut outcomes);
        assert_eq!(kept(&outcomes), [false, true, false, true, true, false]);
        let mut only = vec![drawn(GUARDED, Cell::SAME_STORE, Rule::Core, held())];
        keep_pictures(&mut only);
        assert_eq!(kept(&only), [true], "where there is no other, the own store");
    }

    #[test]
    fn pauses_that_held_have_the_figures_of_all() {
        let held = |pause: u32| {
            let evidence = evidence! { "pause_ms": pause, "pid_a": pause };
            outcome(Rule::Core, Observed::Held { trials: 1 }, evidence)
        };
        let joined = all(vec![held(6), held(9), held(7)]);
        assert_eq!(joined.observed, Observed::Held { trials: 3 });
        let pause = serde_json::json!({ "min": 6, "median": 7, "max": 9 });
        assert_eq!(joined.evidence, evidence! { "pause_ms": pause, "pid_a": 7 });
    }
}
