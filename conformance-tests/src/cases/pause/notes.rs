//! What is noted of each step of a pause: for the history, whose invariants are checked, and for the pictures.

use super::scene::{About, Step};
use super::steps::unexpected;
use super::target::Target;
use super::trial::{Granted, Play};
use crate::context::Stop;
use crate::history::{Event, Renewed, What, Wrote};
use crate::worker::{Answer, Reply, Told};
use lease_core::BootInstant;
use std::sync::PoisonError;
use std::time::Duration;

impl Play<'_> {
    /// Keeps a step for the pictures.
    pub(super) fn saw(&self, who: usize, about: About, reply: &Reply) {
        let step = Step { who, about, reply: reply.clone() };
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// The steps so far, in order of time.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        steps.sort_by_key(|step| (step.reply.began_ns, step.reply.ended_ns));
        steps
    }

    pub(super) fn granted(&mut self, who: usize, reply: &Reply) -> Result<Granted, Stop> {
        let Answer::Acquired { token, granted_ttl_ms } = &reply.answer else {
            return Err(unexpected("a worker that acquires", &reply.answer));
        };
        let ttl = Duration::from_millis(*granted_ttl_ms);
        self.ttls[who & 1] = ttl;
        self.tokens[who & 1].clone_from(token);
        let what = What::Granted { owner: self.owners[who & 1], token: token.clone(), granted_ttl: ttl };
        self.note(reply, what);
        self.saw(who, About::Lease, reply);
        Ok(Granted { token: token.clone(), ttl, at_ns: reply.ended_ns })
    }

    pub(super) fn note_renew(&self, who: usize, reply: &Reply, outcome: Renewed) {
        let what = What::Renew { owner: self.owners[who & 1], granted_ttl: self.ttls[who & 1], outcome };
        self.note(reply, what);
        self.saw(who, About::Lease, reply);
    }

    pub(super) fn note_write(&self, who: usize, target: &Target, reply: &Reply) {
        self.saw(who, About::At(target.key.clone()), reply);
        let Some(token) = self.tokens[who & 1].clone() else { return };
        if !target.mode.is_guarded(who == 0) {
            return;
        }
        let outcome = match &reply.answer {
            Answer::Done | Answer::Wrote { told: Told::Written, .. } => Wrote::Admitted,
            Answer::Wrote { told: Told::Refused(why), .. } if why.starts_with("stale") => Wrote::Stale,
            Answer::Wrote { told: Told::Refused(_), .. } => Wrote::Refused,
            _ => Wrote::Unknown,
        };
        let place = target.key.clone();
        self.note(reply, What::Write { place, token, outcome });
    }

    fn note(&self, reply: &Reply, what: What) {
        self.stage.recorder.push(Event {
            resource: self.resource.clone(),
            invoked: BootInstant::from_nanos(reply.began_ns),
            returned: BootInstant::from_nanos(reply.ended_ns),
            what,
        });
    }
}
