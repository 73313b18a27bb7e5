//! From the notes of all workers to one history, and what is wrong with it.

use super::note::{Came, Does, Note, Part};
use super::register::{self, Op, OpKind, Outcome};
use crate::history::{self, Event, Renewed, What, Wrote};
use lease_core::{BootInstant, OwnerToken, ResourceName};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The notes of one worker, from its start to its end.
pub(super) type Stream = Vec<Note>;

/// What happened, and what was wrong with it.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) violations: Vec<String>,
}

/// One operation of one worker.
struct Whole<'a> {
    stream: usize,
    resource: ResourceName,
    from: u64,
    /// `None`: it never ended.
    to: Option<u64>,
    does: &'a Does,
    came: &'a Came,
}

/// Judges the histories of all workers together; `last` is what each register held afterwards.
pub(super) fn judge(streams: &[Stream], last: &BTreeMap<ResourceName, Option<String>>) -> Judged {
    let mut judged = Judged::default();
    let mut all = Vec::new();
    for (at, stream) in streams.iter().enumerate() {
        whole(at, stream, &mut all, &mut judged.violations);
    }
    let mut registers: BTreeMap<&ResourceName, Vec<Op>> = last.keys().map(|name| (name, Vec::new())).collect();
    for one in &all {
        count(&mut judged.counts, one);
        if let (Some(op), Some(ops)) = (on_register(one), registers.get_mut(&one.resource)) {
            ops.push(op);
        }
    }
    let events: Vec<Event> = all.iter().filter_map(event).collect();
    judged.violations.extend(history::violations(&events));
    for (name, ops) in registers {
        let last = last.get(name).and_then(Option::as_deref);
        judged.violations.extend(register::violations(name.as_str(), &ops, last));
    }
    judged
}

/// Joins beginnings and ends.
fn whole<'a>(stream: usize, notes: &'a [Note], all: &mut Vec<Whole<'a>>, wrong: &mut Vec<String>) {
    let mut open: HashMap<u64, usize> = HashMap::new();
    for note in notes {
        match &note.part {
            Part::Begins { resource, does } => {
                let Ok(resource) = ResourceName::parse(resource) else {
                    wrong.push(format!("worker {stream} notes a name that is none: {resource:?}"));
                    continue;
                };
                open.insert(note.op, all.len());
                all.push(Whole { stream, resource, from: note.at_ns, to: None, does, came: &Came::Unknown });
            }
            Part::Ends { came } => match open.remove(&note.op).and_then(|at| all.get_mut(at)) {
                Some(one) => (one.to, one.came) = (Some(note.at_ns), came),
                None => wrong.push(format!("worker {stream} notes an end without a beginning: {note:?}")),
            },
        }
    }
}

fn owner(stream: usize, grant: u64) -> Option<OwnerToken> {
    // Stands for the token that never left the worker.
    OwnerToken::from_revealed(&format!("{stream:016x}{grant:016x}"))
}

fn event(one: &Whole<'_>) -> Option<Event> {
    let owner = |grant: &u64| owner(one.stream, *grant);
    let what = match (one.does, one.came) {
        (Does::Acquire { grant }, Came::Granted { token, granted_ttl_ns }) => What::Granted {
            owner: owner(grant)?,
            token: token.clone(),
            granted_ttl: Duration::from_nanos(*granted_ttl_ns),
        },
        (Does::Acquire { .. } | Does::Read, Came::Nothing) | (Does::Read, _) => return None,
        (Does::Acquire { grant }, _) => What::AcquireUnknown { owner: owner(grant)? },
        (Does::Renew { grant, granted_ttl_ns }, came) => What::Renew {
            owner: owner(grant)?,
            granted_ttl: Duration::from_nanos(*granted_ttl_ns),
            outcome: match came {
                Came::Extended { token } => Renewed::Extended(token.clone()),
                Came::Lost => Renewed::Lost,
                _ => Renewed::Unknown,
            },
        },
        (Does::Ends { grant }, came) => What::Ended { owner: owner(grant)?, certain: *came == Came::Ended },
        (Does::Seal { token } | Does::Write { token, .. }, came) => What::Write {
            place: "destination".to_owned(),
            token: token.clone(),
            outcome: match came {
                Came::Admitted => Wrote::Admitted,
                Came::Stale => Wrote::Stale,
                Came::Refused => Wrote::Refused,
                _ => Wrote::Unknown,
            },
        },
    };
    Some(Event {
        resource: one.resource.clone(),
        invoked: BootInstant::from_nanos(one.from),
        returned: BootInstant::from_nanos(one.to.unwrap_or(u64::MAX)),
        what,
    })
}

fn on_register(one: &Whole<'_>) -> Option<Op> {
    let (outcome, to) = match one.came {
        Came::Admitted => (Outcome::Admitted, one.to?),
        Came::Stale | Came::Refused => (Outcome::Refused, one.to?),
        // It may still be on its way.
        _ => (Outcome::Unknown, u64::MAX),
    };
    let (does, to) = match (one.does, one.came) {
        (Does::Write { token, tag, on }, _) => {
            (OpKind::Write { tag: tag.clone(), on: on.clone(), token: token.clone(), outcome }, to)
        }
        (Does::Read, Came::Found { tag }) => (OpKind::Read(tag.clone()), one.to?),
        _ => return None,
    };
    Some(Op { from: one.from, to, does })
}

fn count(counts: &mut BTreeMap<&'static str, u64>, one: &Whole<'_>) {
    let mut add = |name| {
        let count: &mut u64 = counts.entry(name).or_default();
        *count = count.saturating_add(1);
    };
    add("operations");
    match (one.does, one.came) {
        (_, Came::Unknown) => add("outcomes_unknown"),
        (_, Came::Granted { .. }) => add("grants"),
        (_, Came::Extended { .. }) => add("renewals"),
        (_, Came::Lost) => add("renewals_lost"),
        (_, Came::Ended) => add("releases"),
        (Does::Write { .. }, Came::Admitted) => add("commits"),
        (_, Came::Stale) => add("stale_refused"),
        (_, Came::Refused) => add("otherwise_refused"),
        _ => {}
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
