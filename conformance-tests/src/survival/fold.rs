//! Several trials of one scene as one outcome for each guarantee.

use super::cell::{Guarantee, Outcome, SurvivalCell};
use super::judge::Finding;
use super::play::Played;
use super::scene::{Scene, Trouble};
use serde_json::Value;
use std::collections::BTreeMap;

/// What several trials showed together: of each guarantee the trial with the greatest outcome.
#[derive(Default)]
pub(super) struct Folded {
    best: BTreeMap<Guarantee, Kept>,
    trials: u32,
}

/// What is kept of a trial.
struct Kept {
    trial: u32,
    finding: Finding,
    witness: BTreeMap<String, Value>,
    timeline: crate::timeline::Timeline,
}

impl Folded {
    /// Takes one more trial in.
    pub(super) fn add(&mut self, played: &Played) {
        self.trials = self.trials.saturating_add(1);
        for (guarantee, finding) in &played.findings {
            let is_greater = self.best.get(guarantee).is_none_or(|kept| finding.outcome > kept.finding.outcome);
            if is_greater {
                let kept = Kept {
                    trial: self.trials,
                    finding: finding.clone(),
                    witness: played.witness.facts().clone(),
                    timeline: played.timeline.clone(),
                };
                self.best.insert(*guarantee, kept);
            }
        }
    }

    /// Whether nothing was played.
    pub(super) fn is_empty(&self) -> bool {
        self.trials == 0
    }

    /// Whether the outcomes so far are these.
    pub(super) fn are(&self, expected: &BTreeMap<Guarantee, Outcome>) -> bool {
        Guarantee::ALL.iter().all(|guarantee| {
            let seen = self.best.get(guarantee).map(|kept| kept.finding.outcome);
            expected.get(guarantee).copied() == seen
        })
    }

    /// The cells of the scene.
    pub(super) fn cells(self, scene: &Scene, expected: &BTreeMap<Guarantee, Outcome>) -> Vec<SurvivalCell> {
        let cell = |(guarantee, kept): (Guarantee, Kept)| {
            let outcome = kept.finding.outcome;
            let mut evidence = kept.finding.evidence;
            if matches!(outcome, Outcome::Breaks | Outcome::Noticed) {
                evidence.insert("shown_in_trial".to_owned(), kept.trial.into());
            }
            SurvivalCell {
                finding: kept.finding.says,
                trials: self.trials,
                witness: kept.witness,
                evidence,
                timeline: matches!(outcome, Outcome::Breaks | Outcome::Noticed).then_some(kept.timeline),
                ..empty(scene, guarantee, outcome, expected)
            }
        };
        self.best.into_iter().map(cell).collect()
    }
}

/// The cells of a scene that could not be played.
pub(super) fn not_tried(
    scene: &Scene,
    expected: &BTreeMap<Guarantee, Outcome>,
    trouble: &Trouble,
) -> Vec<SurvivalCell> {
    let cell = |guarantee: &Guarantee| SurvivalCell {
        finding: trouble.to_string(),
        ..empty(scene, *guarantee, Outcome::NotTried, expected)
    };
    Guarantee::ALL.iter().map(cell).collect()
}

fn empty(
    scene: &Scene,
    guarantee: Guarantee,
    outcome: Outcome,
    expected: &BTreeMap<Guarantee, Outcome>,
) -> SurvivalCell {
    SurvivalCell {
        setup: scene.setup.to_owned(),
        backend: scene.backend.name().to_owned(),
        fault: scene.fault.to_owned(),
        guarantee,
        outcome,
        expected: expected.get(&guarantee).copied(),
        finding: String::new(),
        trials: 0,
        witness: BTreeMap::new(),
        evidence: BTreeMap::new(),
        timeline: None,
    }
}
