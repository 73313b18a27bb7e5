//! The two-worker test: A holds, prepares its writes and is stopped past its TTL; B takes over; A goes on with what it had
//! prepared. One pause serves every destination at once.

mod judged;
mod seen;
mod steps;
mod target;
mod trial;

use super::{Case, CaseInfo, How};
use crate::context::{Run, Stage, Stop};
use crate::judge::{Observed, Rule};
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
    let mut merged: Vec<Outcome> = Vec::new();
    for number in 1..=run.trials {
        for group in target::groups(run) {
            for outcome in one(run, &group).await {
                merge(&mut merged, outcome, number);
            }
        }
    }
    merged
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

/// Joins the outcome of one more trial: the first that was not held stays.
fn merge(merged: &mut Vec<Outcome>, mut outcome: Outcome, number: u32) {
    if let Observed::Refuted { trial, .. } = &mut outcome.observed {
        *trial = number;
    }
    let same = |other: &&mut Outcome| other.case == outcome.case && other.destination == outcome.destination;
    match merged.iter_mut().find(same) {
        None => merged.push(outcome),
        Some(known) => {
            let held = matches!(known.observed, Observed::Held { .. });
            if held && !matches!(outcome.observed, Observed::Held { .. }) {
                *known = outcome;
            } else if let (Observed::Held { trials }, Observed::Held { .. }) = (&mut known.observed, &outcome.observed)
            {
                *trials = number;
            }
        }
    }
}
