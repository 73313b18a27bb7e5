//! From what was seen of a pause to what it shows. Landed or refused is decided by content, as an observer read it back
//! from the store; what A was told is evidence too.

use super::scene;
use super::seen::{AtRegister, AtTarget, Seen};
use super::target::{Group, Mode};
use super::{IGNORED, NATIVE_LIVE, NATIVE_MARK, NATIVE_PLAIN, RELEASE, RENEW, TOUCH};
use crate::cases::info;
use crate::context::{Evidence, Run, Stage, Stop, destination_name, evidence, millis};
use crate::history;
use crate::judge::{Observed, Rule};
use crate::report::Cell;
use crate::trials::Outcome;
use crate::worker::{Answer, Told};
use lease_core::{Claim, Claims, FencingToken};

/// Every cell of one pause.
pub(super) fn outcomes(run: &Run, group: &Group, seen: &Seen, stage: &Stage) -> Vec<Outcome> {
    let violation = history::violations(&stage.recorder.events()).into_iter().next();
    let mut outcomes: Vec<Outcome> = seen.targets.iter().map(|at| at_target(run, seen, at)).collect();
    outcomes.extend(seen.unopened.iter().map(|unopened| {
        let untried = Stop::NotTried(unopened.reason.clone());
        let mut outcome = at_no_target(run, unopened.mode, unopened.destination.clone(), untried);
        if unopened.mode.needs_token() && seen.token_a.is_none() {
            // Without tokens nothing can be guarded: whether there should be tokens is what is judged.
            outcome.rule = Rule::Claim(Claim::FencingToken);
        }
        outcome
    }));
    if group.first {
        outcomes.extend(native(run, seen));
        outcomes.push(touch(run, seen));
        outcomes.push(renew(run, seen));
        outcomes.push(release(run, seen, violation));
    }
    outcomes
}

/// Every cell of a pause that could not be made.
pub(super) fn none(run: &Run, group: &Group, stop: &Stop) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for at in &group.places {
        let Some(place) = run.places.get(*at) else { continue };
        for mode in Mode::ALL {
            let destination = destination_name(run, place.as_ref());
            outcomes.push(at_no_target(run, mode, destination, stop.clone()));
        }
    }
    if group.first {
        for case in [NATIVE_LIVE, TOUCH, RENEW, RELEASE] {
            outcomes.push(outcome(run, case, None, Err(stop.clone())));
        }
    }
    outcomes
}

fn outcome(run: &Run, case: &'static str, destination: Option<String>, result: Result<Evidence, Stop>) -> Outcome {
    let (observed, evidence) = match result {
        Ok(evidence) => (Observed::Held { trials: 1 }, evidence),
        Err(Stop::Refuted(finding)) => (Observed::Refuted { trial: 1, finding }, Evidence::new()),
        Err(Stop::NotTried(reason) | Stop::Wants(_, reason)) => (Observed::NotTried { reason }, Evidence::new()),
    };
    Outcome {
        case,
        destination,
        rule: info(case).map_or(Rule::Core, |info| info.rule),
        declared: run.claims.clone(),
        observed,
        evidence,
        timeline: None,
    }
}

/// A cell of a destination that was not reached. What it claims is not known, so it counts as claimed.
fn at_no_target(run: &Run, mode: Mode, destination: String, stop: Stop) -> Outcome {
    let mut outcome = outcome(run, mode.case(), Some(destination), Err(stop));
    if let Rule::Claim(_) = outcome.rule {
        outcome.rule = Rule::Core;
    }
    outcome
}

/// The same, with the evidence kept whatever came of it.
fn judged(
    run: &Run,
    case: &'static str,
    destination: Option<String>,
    evidence: Evidence,
    result: Result<(), Stop>,
) -> Outcome {
    let mut outcome = outcome(run, case, destination, result.map(|()| Evidence::new()));
    outcome.evidence = evidence;
    outcome
}

/// What every cell of the two-worker test shows.
fn common(seen: &Seen) -> Evidence {
    let value = |token: &Option<FencingToken>| token.as_ref().map(ToString::to_string);
    evidence! {
        "mode": seen.mode,
        "pid_a": seen.pid_a,
        "pid_b": seen.pid_b,
        "state_while_stopped": seen.stopped[0],
        "state_before_resume": seen.stopped[1],
        "pause_ms": millis(seen.pause),
        "granted_ttl_ms": millis(seen.granted_ttl),
        "token_a": value(&seen.token_a),
        "token_b": value(&seen.token_b),
        "a_last_live_ns": seen.a_last_live_ns,
        "b_granted_ns": seen.b_granted_ns,
        "resumed_ns": seen.resumed_ns,
        "past_deadline_at_first_touch": seen.past_deadline_at_first_touch,
        "a_renew": told(&seen.a_renew),
        "a_release": told(&seen.a_release),
    }
}

fn told(answer: &Answer) -> String {
    match answer {
        Answer::Renewed { .. } => "Renewed".into(),
        Answer::Lost { reason } => format!("Lost ({reason})"),
        Answer::Released { how } => how.clone(),
        Answer::Failed { error } => format!("failed: {error}"),
        other => format!("{other:?}"),
    }
}

/// What makes the pause count, whatever came of the writes.
fn witnessed(seen: &Seen, sent_ns: u64) -> Result<(), Stop> {
    let broken = |why: &str| Err(Stop::NotTried(format!("the test itself failed: {why}")));
    if seen.pause < seen.granted_ttl {
        return broken("the pause was shorter than the granted TTL");
    }
    if sent_ns < seen.resumed_ns || sent_ns < seen.b_granted_ns {
        return broken("A's write was sent before B had the lease");
    }
    Ok(())
}

fn at_target(run: &Run, seen: &Seen, at: &AtTarget) -> Outcome {
    let mark = |mark: Option<(u64, _)>| mark.map(|(value, _): (u64, lease_core::GrantId)| value.to_string());
    let mut evidence = common(seen);
    evidence.extend(evidence! {
        "answer_to_a": at.told.to_string(),
        "answer_to_b": at.told_b.to_string(),
        "a_prepared": at.stale,
        "b_computed": at.fresh,
        "content_before": at.before.value,
        "content_after": at.after.value,
        "content_at_end": at.last.value,
        "mark_before": mark(at.before.mark),
        "mark_after": mark(at.after.mark),
        "a_effect_sent_ns": at.sent_ns,
    });
    let result = witnessed(seen, at.sent_ns).and_then(|()| match at.target.mode {
        Mode::Guarded | Mode::Ignored => refused(at).and_then(|()| mark_is(at, seen.token_b.as_ref())),
        Mode::Sealed => refused(at).and_then(|()| mark_is(at, seen.token_b.as_ref())).and_then(|()| nothing_lost(at)),
        Mode::Neither | Mode::Plain => landed(at),
    });
    let destination = at.target.destination.clone();
    let mut outcome = judged(run, at.target.mode.case(), Some(destination), evidence, result);
    outcome.timeline = Some(scene::at_target(seen, at));
    if at.target.mode.case() == IGNORED {
        outcome.declared = claims_of(at);
    }
    outcome
}

fn claims_of(at: &AtTarget) -> Claims {
    at.target.open.claims()
}

fn refuted(text: String) -> Result<(), Stop> {
    Err(Stop::Refuted(text))
}

/// A's stale write changed nothing, and A was told so.
fn refused(at: &AtTarget) -> Result<(), Stop> {
    if at.target.mode.writes_during() && at.before.value.as_ref() != Some(&at.fresh) {
        return refuted(format!(
            "the new holder's own write did not land: it was told \"{}\" and the content was {:?} instead of {:?}",
            at.told_b, at.before.value, at.fresh
        ));
    }
    if at.after.value != at.before.value {
        return refuted(format!(
            "the stale write landed: the content went from {:?} to {:?}",
            at.before.value, at.after.value
        ));
    }
    match &at.told {
        Told::Refused(_) => Ok(()),
        Told::Written => refuted("the stale write changed nothing, but its writer was told that it was written".into()),
        // A store that aborts the transaction by itself says so in its own words.
        Told::Failed(_) if at.target.mode == Mode::Ignored => Ok(()),
        Told::Failed(why) => {
            Err(Stop::NotTried(format!("the stale write was not refused, it failed for another reason: {why}")))
        }
    }
}

/// The mark is the new holder's, before and after the stale write.
fn mark_is(at: &AtTarget, token: Option<&FencingToken>) -> Result<(), Stop> {
    let expected = token.map(|token| (token.value(), token.grant()));
    if at.before.mark == expected && at.after.mark == expected {
        return Ok(());
    }
    refuted(format!(
        "the mark should be {expected:?}, it was {:?} before and {:?} after the stale write",
        at.before.mark, at.after.mark
    ))
}

/// What the new holder computed before the stale write, and wrote after it, stands.
fn nothing_lost(at: &AtTarget) -> Result<(), Stop> {
    if at.told_b == Told::Written && at.last.value.as_ref() == Some(&at.fresh) {
        return Ok(());
    }
    refuted(format!(
        "the new holder's write was answered \"{}\" and left {:?} instead of {:?}",
        at.told_b, at.last.value, at.fresh
    ))
}

/// The control: the stale write is there.
fn landed(at: &AtTarget) -> Result<(), Stop> {
    if at.after.value.as_ref() == Some(&at.stale) {
        return Ok(());
    }
    refuted(format!(
        "the stale write should land where nothing stops it; its writer was told \"{}\" and the content is {:?}",
        at.told, at.after.value
    ))
}

fn native(run: &Run, seen: &Seen) -> Vec<Outcome> {
    let same_store = || Some(Cell::SAME_STORE.to_owned());
    let Some(at) = &seen.native else {
        let none = Stop::NotTried("the backend has no native fence".into());
        return vec![outcome(run, NATIVE_LIVE, same_store(), Err(none))];
    };
    let mut evidence = common(seen);
    evidence.extend(evidence! {
        "answer_to_a": at.told.to_string(),
        "content_before": at.before,
        "content_after": at.after,
        "a_effect_sent_ns": at.sent_ns,
        "unchecked_control": if at.unchecked.is_some() { "see native-unchecked" } else { "nobody can write it unchecked" },
    });
    let result = witnessed(seen, at.sent_ns).and_then(|()| register_refused(at));
    let case = if at.mark { NATIVE_MARK } else { NATIVE_LIVE };
    let mut fenced = judged(run, case, same_store(), evidence, result);
    fenced.timeline = Some(scene::at_register(seen, at, false));
    let mut outcomes = vec![fenced];
    if let Some((answer, content)) = &at.unchecked {
        let mut evidence = common(seen);
        evidence.extend(evidence! {
            "answer_to_a": answer.to_string(),
            "content_before": at.after,
            "content_after": content,
        });
        let landed = if content.as_ref() == Some(&at.stale) {
            Ok(())
        } else {
            refuted(format!(
                "the unchecked write should land; its writer was told \"{answer}\" and the content is {content:?}"
            ))
        };
        let mut unfenced = judged(run, NATIVE_PLAIN, same_store(), evidence, landed);
        unfenced.timeline = Some(scene::at_register(seen, at, true));
        outcomes.push(unfenced);
    }
    outcomes
}

fn register_refused(at: &AtRegister) -> Result<(), Stop> {
    let fresh = format!("{}+B", super::target::START);
    if at.before.as_ref() != Some(&fresh) {
        return refuted(format!("the new holder's own write did not land: {:?}", at.before));
    }
    if at.after != at.before {
        return refuted(format!("the stale write landed: the content went from {:?} to {:?}", at.before, at.after));
    }
    match &at.told {
        Told::Refused(_) => Ok(()),
        Told::Written => refuted("the stale write changed nothing, but its writer was told that it was written".into()),
        Told::Failed(why) => {
            Err(Stop::NotTried(format!("the stale write was not refused, it failed for another reason: {why}")))
        }
    }
}

fn touch(run: &Run, seen: &Seen) -> Outcome {
    let result = if seen.past_deadline_at_first_touch {
        Ok(())
    } else {
        refuted("after the pause the lease said that its deadline had not passed".into())
    };
    judged(run, TOUCH, None, common(seen), result)
}

fn renew(run: &Run, seen: &Seen) -> Outcome {
    let result = match &seen.a_renew {
        Answer::Lost { .. } => Ok(()),
        other => refuted(format!("A's renewal should be lost; it was answered by {}", told(other))),
    };
    judged(run, RENEW, None, common(seen), result)
}

fn release(run: &Run, seen: &Seen, violation: Option<String>) -> Outcome {
    let b_value = seen.token_b.as_ref().map(FencingToken::value);
    let mut evidence = common(seen);
    evidence.extend(evidence! {
        "b_renew": told(&seen.b_renew),
        "observer_sees": match &seen.holder {
            None => "free".to_owned(),
            Some(held) => format!("held, value {:?}", held.value),
        },
    });
    let not_held = matches!(&seen.a_release, Answer::Released { how } if how == "NotHeld");
    let b_holds = matches!(&seen.b_renew, Answer::Renewed { token } if *token == seen.token_b);
    let result = if !not_held {
        refuted(format!("A's release should be `NotHeld`; it was answered by {}", told(&seen.a_release)))
    } else if !b_holds {
        refuted(format!("after A's release B could not renew: {}", told(&seen.b_renew)))
    } else if seen.holder.as_ref().map(|held| held.value) != Some(b_value) {
        refuted(format!("the observer should see B's grant {b_value:?}, it saw {:?}", seen.holder))
    } else if let Some(violation) = violation {
        refuted(format!("the history of the pause: {violation}"))
    } else {
        Ok(())
    };
    judged(run, RELEASE, None, evidence, result)
}
