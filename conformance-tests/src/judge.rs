//! From what was declared and what was seen to a verdict.

use crate::report::Verdict;
use lease_core::{Claim, Claims};

/// What a case decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Must hold on every backend.
    Core,
    /// Must hold where it is declared, and must be declared where it holds.
    Claim(Claim),
    /// A negative control: *held* means that the stale write landed.
    Control,
}

/// What the trials showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Not refuted in so many trials.
    Held {
        /// How many.
        trials: u32,
    },
    /// Refuted.
    Refuted {
        /// In which trial, counted from 1.
        trial: u32,
        /// What was expected and what was seen instead.
        finding: String,
    },
    /// Could not be tried.
    NotTried {
        /// What was missing.
        reason: String,
    },
}

/// Judges what was observed against what is declared.
#[must_use]
pub fn judge(rule: Rule, declared: &Claims, observed: &Observed) -> Verdict {
    let claimed = match rule {
        Rule::Core => true,
        Rule::Claim(claim) => declared.has(claim),
        Rule::Control => {
            return match observed {
                Observed::Held { .. } => Verdict::ControlLanded,
                Observed::Refuted { .. } => Verdict::ControlFailed,
                Observed::NotTried { .. } => Verdict::Unproven,
            };
        }
    };
    match (claimed, observed) {
        (true, Observed::Held { .. }) => Verdict::Kept,
        (true, Observed::Refuted { .. }) => Verdict::Broken,
        (true, Observed::NotTried { .. }) => Verdict::Unproven,
        (false, Observed::Held { .. }) => Verdict::Unclaimed,
        (false, Observed::Refuted { .. }) => Verdict::HonestNo,
        (false, Observed::NotTried { .. }) => Verdict::Untested,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions() {
        let claim = Claim::ListByPrefix;
        let (with, without) = (Claims::of(&[claim]), Claims::of(&[]));
        let held = Observed::Held { trials: 3 };
        let refuted = Observed::Refuted { trial: 1, finding: "x".into() };
        let not_tried = Observed::NotTried { reason: "x".into() };
        let row = |rule, claims| [&held, &refuted, &not_tried].map(|observed| judge(rule, claims, observed));
        assert_eq!(row(Rule::Core, &without), [Verdict::Kept, Verdict::Broken, Verdict::Unproven]);
        assert_eq!(row(Rule::Claim(claim), &with), [Verdict::Kept, Verdict::Broken, Verdict::Unproven]);
        assert_eq!(row(Rule::Claim(claim), &without), [Verdict::Unclaimed, Verdict::HonestNo, Verdict::Untested]);
        assert_eq!(row(Rule::Control, &without), [Verdict::ControlLanded, Verdict::ControlFailed, Verdict::Unproven]);
    }
}
