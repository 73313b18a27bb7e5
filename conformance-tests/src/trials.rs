//! Tries one case, and gathers what was seen until it is judged.

use crate::cases::{self, AtPlace, Case, How};
use crate::context::{CONNECTING, Evidence, Run, Stage, Stop, destination_name};
use crate::figures;
use crate::history;
use crate::judge::{Observed, Rule, judge};
use crate::report::Cell;
use crate::subject::Place;
use crate::task::Task;
use crate::timeline::Timeline;
use lease_core::Claims;
use std::sync::Arc;

/// What became of one case at one destination, before it is judged.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) case: &'static str,
    pub(crate) destination: Option<String>,
    /// Other than the case's own, where the case cannot be tried for want of another guarantee.
    pub(crate) rule: Rule,
    /// Whose claims the rule is judged with: the backend's, or the destination's.
    pub(crate) declared: Claims,
    pub(crate) observed: Observed,
    pub(crate) evidence: Evidence,
    pub(crate) timeline: Option<Timeline>,
}

impl Outcome {
    /// A case that ended by a panic outside of its trials; whatever it would have decided about is not kept.
    pub(crate) fn of_panic(case: &Case, text: &str) -> Self {
        Self {
            case: case.info.id,
            destination: None,
            rule: Rule::Core,
            declared: Claims::of(&[]),
            observed: Observed::Refuted { trial: 1, finding: format!("a panic: {text}") },
            evidence: Evidence::new(),
            timeline: None,
        }
    }

    pub(crate) fn into_cell(self, backend: &str) -> Cell {
        let verdict = judge(self.rule, &self.declared, &self.observed);
        let (trials, finding) = match self.observed {
            Observed::Held { trials } => (trials, None),
            Observed::Refuted { trial, finding } => (trial, Some(finding)),
            Observed::NotTried { reason } => (0, Some(reason)),
        };
        Cell {
            case: self.case.to_owned(),
            backend: backend.to_owned(),
            destination: self.destination,
            claim: match self.rule {
                Rule::Claim(claim) => Some(claim.id().to_owned()),
                Rule::Core | Rule::Control => None,
            },
            verdict,
            trials,
            finding,
            evidence: self.evidence,
            timeline: self.timeline,
        }
    }
}

/// Every cell of a case: one, or one for each destination.
pub(crate) async fn outcomes(run: Arc<Run>, case: &'static Case) -> Vec<Outcome> {
    match case.how {
        How::Pause => Vec::new(),
        How::Together(trial) | How::Alone(trial) => {
            let Shown { rule, observed, evidence } = trials(&run, case.info.rule, trial).await;
            vec![Outcome {
                case: case.info.id,
                destination: None,
                rule,
                declared: run.claims.clone(),
                observed,
                evidence,
                timeline: None,
            }]
        }
        How::AtPlace(trial) => at_places(&run, case, guarded_places(&run), trial).await,
        How::AtUnfenced(trial) => at_places(&run, case, unfenced_places(&run), trial).await,
    }
}

async fn at_places(
    run: &Arc<Run>,
    case: &Case,
    places: Vec<&Arc<dyn Place>>,
    trial: fn(AtPlace) -> cases::Trial,
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for place in places {
        outcomes.push(at_place(run, case, place, trial).await);
    }
    outcomes
}

/// Where the plain alternatives run: wherever there are any. Nothing is made under the namespace that is asked with, so it is always the same one.
fn unfenced_places(run: &Run) -> Vec<&Arc<dyn Place>> {
    run.places.iter().filter(|place| place.unfenced("asked_only").is_some()).collect()
}

/// Where destination cases run: at the lease's own store, since every kind is some backend's own; where none of the places is that, at
/// every place.
fn guarded_places(run: &Run) -> Vec<&Arc<dyn Place>> {
    let own = |place: &&Arc<dyn Place>| place.store_of() == Some(run.subject.name());
    let own: Vec<_> = run.places.iter().filter(own).collect();
    if own.is_empty() { run.places.iter().collect() } else { own }
}

async fn at_place(run: &Arc<Run>, case: &Case, place: &Arc<dyn Place>, trial: fn(AtPlace) -> cases::Trial) -> Outcome {
    // A claim at a destination is the destination's own.
    let opening = tokio::time::timeout(CONNECTING, place.open(&run.namespace())).await;
    let declared = opening.map(|open| open.map(|open| open.claims()));
    let (declared, shown) = match declared {
        Ok(Ok(declared)) => {
            let shown = trials(run, case.info.rule, |stage| {
                let place = Arc::clone(place);
                trial(AtPlace { stage, place })
            });
            (declared, shown.await)
        }
        other => {
            let reason = format!("the destination cannot be opened: {other:?}");
            let observed = Observed::NotTried { reason };
            // What it would have declared is not known, so it counts as wanted.
            (Claims::of(&[]), Shown { rule: Rule::Core, observed, evidence: Evidence::new() })
        }
    };
    let Shown { rule, observed, evidence } = shown;
    Outcome {
        case: case.info.id,
        destination: Some(destination_name(run, place.as_ref())),
        rule,
        declared,
        observed,
        evidence,
        timeline: None,
    }
}

/// What all trials of a case showed together, and by what rule that is judged.
struct Shown {
    rule: Rule,
    observed: Observed,
    evidence: Evidence,
}

/// Tries until it is refuted or all trials are done. One that could not be tried does not keep the next from being refuted.
async fn trials(run: &Arc<Run>, rule: Rule, trial: impl Fn(Stage) -> cases::Trial) -> Shown {
    let (mut seen, mut rules) = (Vec::new(), Vec::new());
    for number in 1..=run.trials {
        let stage = Stage::new(Arc::clone(run));
        let (observed, evidence, judged_by) = match caught(run, &stage, trial(stage.clone())).await {
            Ok(evidence) => (Observed::Held { trials: 1 }, evidence, rule),
            Err(Stop::Refuted(finding)) => (Observed::Refuted { trial: number, finding }, Evidence::new(), rule),
            Err(Stop::NotTried(reason)) => (Observed::NotTried { reason }, Evidence::new(), rule),
            Err(Stop::Wants(claim, reason)) => (Observed::NotTried { reason }, Evidence::new(), Rule::Claim(claim)),
        };
        let is_refuted = matches!(observed, Observed::Refuted { .. });
        seen.push((observed, evidence));
        rules.push(judged_by);
        if is_refuted {
            break;
        }
    }
    let (at, observed, evidence) = figures::joined(seen);
    Shown { rule: rules.get(at).copied().unwrap_or(rule), observed, evidence }
}

/// Runs one trial on a task of its own, so that a panic is a finding, and checks its history afterwards.
async fn caught(
    run: &Run,
    stage: &Stage,
    trial: impl Future<Output = Result<Evidence, Stop>> + Send + 'static,
) -> Result<Evidence, Stop> {
    let result = match tokio::time::timeout(run.patience(), Task::spawn(trial)).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(Stop::Refuted(format!("a panic: {}", panic_text(error)))),
        Err(_) => Err(Stop::Refuted(format!("the case did not end within {:?}", run.patience()))),
    };
    match (result, history::violations(&stage.recorder.events()).into_iter().next()) {
        (Err(Stop::Refuted(finding)), Some(violation)) => {
            Err(Stop::Refuted(format!("{finding}; its history: {violation}")))
        }
        (_, Some(violation)) => Err(Stop::Refuted(format!("its history: {violation}"))),
        (result, None) => result,
    }
}

pub(crate) fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else {
        return "the task was cancelled".into();
    };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "without a message".into())
}
