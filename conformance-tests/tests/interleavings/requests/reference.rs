//! The reference: what a guard answers, and what it holds afterwards, when requests come one after the other.

use super::{Answer, Op};
use crate::model::{FIRST, SECOND};
use lease_core::{Authority, FencingToken, GrantId, Refusal, Stored};
use std::collections::{BTreeMap, BTreeSet};

/// The reference.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) trusted: String,
    marks: BTreeMap<String, (u64, GrantId)>,
    pub(super) value: Option<String>,
    /// Whose own transaction landed last.
    pub(super) own: Option<usize>,
    prepared: BTreeSet<usize>,
}

impl Reference {
    /// A destination that trusts the first authority and has no mark.
    pub(super) fn new() -> Self {
        Self { trusted: FIRST.into(), marks: BTreeMap::new(), value: None, own: None, prepared: BTreeSet::new() }
    }

    pub(super) fn mark(&self) -> Option<(u64, GrantId)> {
        self.marks.get(&self.trusted).copied()
    }

    fn admit(&mut self, token: &FencingToken) -> Result<(), Refusal> {
        // Written out here, not asked of the library.
        if token.authority().as_str() != self.trusted {
            let trusted = Some(Authority::parse(&self.trusted).unwrap());
            return Err(Refusal::UnknownAuthority { presented: token.authority().clone(), trusted });
        }
        let (value, grant) = (token.value(), token.grant());
        if let Some((mark, owner)) = self.mark() {
            if value < mark {
                return Err(Refusal::Stale { presented: value, mark });
            }
            if value == mark && grant != owner {
                return Err(Refusal::Conflict { value });
            }
        }
        self.marks.insert(self.trusted.clone(), (value, grant));
        Ok(())
    }

    pub(super) fn take(&mut self, actor: usize, op: Op, token: &FencingToken, value: &str) -> Answer {
        let admitted = |admitted: Result<(), Refusal>| admitted.err().map_or(Answer::Done, Answer::Refused);
        match op {
            Op::Read => Answer::Read(Stored::new(self.value.clone(), self.mark())),
            Op::Seal => admitted(self.admit(token)),
            Op::Prepare => {
                let answer = self.admit(token);
                if answer.is_ok() {
                    self.prepared.insert(actor);
                }
                admitted(answer)
            }
            // What was looked at before does not matter: a write has to be admitted when it is made.
            Op::Look => Answer::Done,
            Op::Write | Op::WriteBlindly => {
                let answer = self.admit(token);
                if answer.is_ok() {
                    self.value = Some(value.to_owned());
                }
                admitted(answer)
            }
            Op::Land => {
                let mark = self.mark();
                let holds = token.authority().as_str() == self.trusted && mark == Some((token.value(), token.grant()));
                if !(holds && self.prepared.contains(&actor)) {
                    return Answer::NotLanded;
                }
                self.own = Some(actor);
                Answer::Done
            }
            Op::Adopt if self.trusted == FIRST => {
                self.trusted = SECOND.into();
                Answer::Done
            }
            Op::Adopt => Answer::Conflict(Some(Authority::parse(&self.trusted).unwrap())),
        }
    }
}
