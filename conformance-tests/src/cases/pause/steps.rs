//! The commands of the two-worker test, and what may be read from their answers.

use super::target::Target;
use crate::context::Stop;
use crate::worker::{Answer, Command, How, Reply, Told};
use lease_core::{ResourceName, Ttl};

/// The name of the lease in both workers.
pub(super) const LEASE: &str = "lease";
/// The slot of the write to the register behind the native fence.
pub(super) const REGISTER: &str = "register";

pub(super) fn hindered(what: &'static str) -> impl Fn(String) -> Stop {
    move |why| Stop::NotTried(format!("{what}: {why}"))
}

pub(super) fn unexpected(who: &str, answer: &Answer) -> Stop {
    Stop::NotTried(format!("{who} had an unexpected answer: {answer:?}"))
}

pub(super) fn acquire_command(resource: &ResourceName, ttl: Ttl) -> Command {
    Command::Acquire { lease: LEASE.into(), resource: resource.as_str().into(), ttl_ms: ttl.as_millis() }
}

pub(super) fn opens(targets: &[Target]) -> Vec<Command> {
    let open = |target: &Target| Command::Open { at: target.key.clone(), url: target.url.clone() };
    targets.iter().map(open).collect()
}

pub(super) fn prepare(slot: &str, at: Option<&str>, add: &str) -> Command {
    Command::Prepare { slot: slot.into(), lease: LEASE.into(), at: at.map(ToOwned::to_owned), add: add.into() }
}

pub(super) fn write(slot: &str, how: How) -> Command {
    Command::WritePrepared { slot: slot.into(), how }
}

/// The same replies, when none of them is a failure.
pub(super) fn done(replies: Vec<Reply>) -> Result<Vec<Reply>, Stop> {
    let failed = replies.iter().find_map(|reply| match &reply.answer {
        Answer::Failed { error } => Some(error),
        _ => None,
    });
    match failed {
        Some(error) => Err(Stop::NotTried(format!("a worker's step failed: {error}"))),
        None => Ok(replies),
    }
}

pub(super) fn wrote(reply: &Reply) -> Result<(Told, u64), Stop> {
    match &reply.answer {
        Answer::Wrote { told, sent_ns, .. } => Ok((told.clone(), *sent_ns)),
        Answer::Failed { error } => Ok((Told::Failed(error.clone()), reply.began_ns)),
        other => Err(unexpected("a worker that writes", other)),
    }
}

/// What A's lease said when A first looked at it after the pause: before its first write was sent.
pub(super) fn first_touch(replies: &[Reply]) -> Result<bool, Stop> {
    let touch = replies.iter().find_map(|reply| match &reply.answer {
        Answer::Wrote { past_deadline, .. } | Answer::Touched { past_deadline, .. } => Some(*past_deadline),
        _ => None,
    });
    touch.ok_or_else(|| Stop::NotTried("A never looked at its lease".into()))
}
