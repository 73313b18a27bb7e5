//! From what was seen in one scene to what became of each guarantee. No I/O and no clock here.

use super::cell::Outcome;
use lease_core::{FencingToken, LossReason, Refusal};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// What became of one guarantee in one trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) outcome: Outcome,
    pub(super) says: String,
    pub(super) evidence: BTreeMap<String, Value>,
}

impl Finding {
    pub(super) fn new(outcome: Outcome, says: impl Into<String>) -> Self {
        Self { outcome, says: says.into(), evidence: BTreeMap::new() }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.evidence.insert(name.to_owned(), value.into());
        self
    }
}

/// The machine was too busy to see it: a longer TTL may help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TooSlow(pub(super) String);

/// What became of B's wish.
#[derive(Clone, Debug, Default)]
pub(super) struct Contest {
    pub(super) won: Option<Won>,
    /// How often B asked.
    pub(super) tries: u32,
    /// How often B asked before A's deadline.
    pub(super) sent_in_time: u32,
    /// How often B asked after the fault and was told before A's deadline that the resource is held.
    pub(super) held_after: u32,
    /// What B was told last besides.
    pub(super) last_error: Option<String>,
}

/// B's grant.
#[derive(Clone, Debug)]
pub(super) struct Won {
    pub(super) token: FencingToken,
    /// What was left of A's time when B had the grant in hand; zero after A's deadline.
    pub(super) spare: Duration,
    /// How long after the fault's end and A's deadline, whichever was later.
    pub(super) waited: Duration,
}

/// Whether B was kept out until A's deadline.
pub(super) fn exclusion(contest: &Contest, outlasts: bool) -> Result<Finding, TooSlow> {
    let asked = |finding: Finding| {
        finding
            .with("b_tries", contest.tries)
            .with("b_tries_before_deadline", contest.sent_in_time)
            .with("b_held_answers_after_fault", contest.held_after)
    };
    if let Some(won) = contest.won.as_ref().filter(|won| !won.spare.is_zero()) {
        let spare = ms(won.spare);
        let finding = Finding::new(Outcome::Breaks, format!("B was granted {spare} ms before A's own deadline"));
        return Ok(asked(finding).with("spare_ms", spare));
    }
    if contest.held_after == 0 && !(outlasts && contest.sent_in_time > 0) {
        let why = contest.last_error.as_ref().map_or_else(String::new, |error| format!("; it was told: {error}"));
        return Err(TooSlow(format!("B had no answer between the fault's end and A's deadline{why}")));
    }
    let says = if outlasts {
        format!("B asked {} times before A's deadline and got nothing", contest.sent_in_time)
    } else {
        format!(
            "B was told {} times after the fault that it is held, and got nothing before A's deadline",
            contest.held_after
        )
    };
    Ok(asked(Finding::new(Outcome::Survives, says)))
}

/// Whether the resource was granted again within the bound.
pub(super) fn granting(contest: &Contest, bound: Duration) -> Finding {
    let bound_ms = ms(bound);
    let finding = if let Some(won) = &contest.won {
        let waited = ms(won.waited);
        Finding::new(Outcome::Survives, format!("granted again {waited} ms after it could be"))
            .with("waited_ms", waited)
    } else {
        let why = contest.last_error.as_deref().unwrap_or("it is held");
        Finding::new(Outcome::Breaks, format!("not granted within {bound_ms} ms; B was told: {why}"))
    };
    finding.with("bound_ms", bound_ms)
}

/// What became of A's renewal after the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Renewed {
        after: Duration,
    },
    Lost(LossReason),
    /// Nobody said no, and nobody said yes before its deadline; with the last answer.
    Unanswered(String),
    /// The fault was over only after the deadline.
    TooLate,
}

/// Whether A could still renew.
pub(super) fn kept(kept: &Kept, outlasts: bool) -> Result<Finding, TooSlow> {
    match kept {
        Kept::Renewed { after } => {
            let after = ms(*after);
            Ok(Finding::new(Outcome::Survives, format!("A renewed {after} ms after the fault"))
                .with("renewed_after_ms", after))
        }
        Kept::Lost(reason) => Ok(Finding::new(Outcome::Breaks, format!("A's renewal was answered: lost ({reason:?})"))),
        Kept::Unanswered(last) => {
            Ok(Finding::new(Outcome::Breaks, format!("A's renewals failed until its deadline: {last}")))
        }
        Kept::TooLate if outlasts => {
            Ok(Finding::new(Outcome::Breaks, "A's deadline passed before anything answered again"))
        }
        Kept::TooLate => Err(TooSlow("A's deadline had passed when the fault was over".to_owned())),
    }
}

/// A grant that its holder was told of, and of which resource it is.
pub(super) type Told = (String, FencingToken);

/// Whether each grant after the fault is larger than each one of its resource before it.
pub(super) fn order(before: &[Told], after: &[Told]) -> Finding {
    let mut noticed = None;
    for (name, token) in after {
        for (_, earlier) in before.iter().filter(|(other, _)| other == name) {
            if token.authority() != earlier.authority() {
                let says = format!("{name}: the grant after the fault is of a new authority, {}", token.authority());
                noticed.get_or_insert(says);
            } else if token.value() <= earlier.value() {
                let how = if token.value() == earlier.value() { "came again" } else { "went back" };
                let (old, new) = (earlier.value(), token.value());
                let says = format!("{name}: the value {how}, from {old} to {new}, in the same authority");
                return tokens(Finding::new(Outcome::Breaks, says), before, after);
            }
        }
    }
    let finding = match (after.len(), noticed) {
        (0, _) => Finding::new(Outcome::NotTried, "nothing was granted after the fault"),
        (_, Some(says)) => Finding::new(Outcome::Noticed, says),
        (count, None) => Finding::new(Outcome::Survives, format!("{count} grants after the fault, each one larger")),
    };
    tokens(finding, before, after)
}

fn tokens(finding: Finding, before: &[Told], after: &[Told]) -> Finding {
    let list = |told: &[Told]| -> Value { told.iter().map(|(name, token)| json!(format!("{name} {token}"))).collect() };
    finding.with("tokens_before", list(before)).with("tokens_after", list(after))
}

/// What a destination answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Refused(Refusal),
    Failed(String),
}

impl Answer {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Done => "done".to_owned(),
            Self::Refused(refusal) => format!("refused, {refusal}"),
            Self::Failed(error) => format!("failed: {error}"),
        }
    }
}

/// What happened at one destination after B's grant.
#[derive(Clone, Debug)]
pub(super) struct Story {
    /// B's first seal and write.
    pub(super) b_first: Answer,
    /// B's seal and write once the new authority was adopted, where that was what was missing.
    pub(super) b_adopted: Option<Answer>,
    /// A's stale write after them.
    pub(super) a_stale: Answer,
    /// What is there at the end.
    pub(super) end: Option<String>,
}

/// What B and the stale A write.
pub(super) const BY_B: &str = "B's";
pub(super) const BY_STALE_A: &str = "A's, stale";

/// What became of a write that nothing checks.
pub(super) fn control(story: &Story) -> Finding {
    let finding = match (&story.a_stale, story.end.as_deref()) {
        (Answer::Failed(error), _) => {
            Finding::new(Outcome::NotTried, format!("the destination itself failed: {error}"))
        }
        (_, Some(BY_STALE_A)) => {
            Finding::new(Outcome::Breaks, "A's stale write landed on B's, as it must where nothing checks it")
        }
        _ => Finding::new(Outcome::Survives, "A's stale write did not land, although nothing is to check it"),
    };
    finding.with("b_answer", story.b_first.text()).with("end", story.end.clone())
}

/// What the guard did.
pub(super) fn fence(story: &Story) -> Finding {
    let b_wrote = story.b_adopted.as_ref().unwrap_or(&story.b_first) == &Answer::Done;
    let stale_landed = story.end.as_deref() == Some(BY_STALE_A);
    let finding = match (&story.b_first, &story.a_stale) {
        (Answer::Failed(error), _) | (_, Answer::Failed(error)) => {
            Finding::new(Outcome::NotTried, format!("the destination itself failed: {error}"))
        }
        _ if stale_landed && b_wrote => Finding::new(Outcome::Breaks, "A's stale write landed on B's"),
        (Answer::Refused(Refusal::UnknownAuthority { .. }), _) if b_wrote => Finding::new(
            Outcome::Noticed,
            "B was refused until its new authority was adopted; then A's stale write was refused",
        ),
        (Answer::Refused(refusal), _) => {
            Finding::new(Outcome::Noticed, format!("B was refused, so that nothing of it could be lost: {refusal}"))
        }
        (Answer::Done, Answer::Refused(_)) if story.end.as_deref() == Some(BY_B) => {
            Finding::new(Outcome::Survives, "A's stale write was refused")
        }
        _ => Finding::new(Outcome::Breaks, "what is there at the end is not what was answered"),
    };
    let finding = match &story.b_adopted {
        Some(answer) => finding.with("b_after_adoption", answer.text()),
        None => finding,
    };
    finding
        .with("b_answer", story.b_first.text())
        .with("a_stale_answer", story.a_stale.text())
        .with("end", story.end.clone())
        .with("stale_landed", stale_landed)
}

/// Milliseconds, for evidence.
pub(super) fn ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
