//! One schedule against a store, beside the reference.

use super::reference::Reference;
use super::{Answer, Blind, Op, Scene, Site};
use crate::model::{FIRST, SECOND};
use lease_core::{Authority, FencingToken, GuardError, Refusal, ResourceName};

/// How often which kind of answer came, and what differed from the reference.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    schedules: u64,
    done: u64,
    refused: u64,
    pub(super) not_landed: u64,
    pub(super) differences: u64,
    first: Option<String>,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { schedules, done, refused, not_landed, differences, first } = self;
        write!(f, "{schedules} schedules; {done} requests done, {refused} refused, {not_landed} not landed")?;
        first.as_ref().map_or(Ok(()), |first| write!(f, "; {differences} differences, first: {first}"))
    }
}

impl Tally {
    pub(super) fn assert_honest(&self) {
        assert!(self.first.is_none() && self.done > 0 && self.refused > 0, "{self}");
    }

    pub(super) async fn schedule(&mut self, site: &Site, scene: &Scene, schedule: &[usize], resource: &ResourceName) {
        self.schedules += 1;
        let mut reference = Reference::new();
        let mut next = vec![0; scene.programs.len()];
        let mut shown = Vec::new();
        for &actor in schedule {
            let Some(&op) = scene.programs[actor].get(next[actor]) else { continue };
            next[actor] += 1;
            let (token, value) = (&scene.tokens[actor], format!("{actor}.{}", next[actor]));
            let answer = carry_out(site, actor, op, token, &value, resource).await;
            let expected = reference.take(actor, op, token, &value);
            match &answer {
                Answer::Done | Answer::Read(_) => self.done += 1,
                Answer::Refused(_) | Answer::Conflict(_) => self.refused += 1,
                Answer::NotLanded => self.not_landed += 1,
            }
            shown.push(format!("{actor}:{op:?}={answer:?}"));
            // A look is no request of the contract: it only ends the program of a writer that sees itself overtaken.
            if answer != expected && op != Op::Look {
                self.difference(format!("{} instead of {expected:?}", shown.join(" ")));
                break;
            }
            if op == Op::Look && answer != Answer::Done {
                next[actor] = scene.programs[actor].len();
            }
        }
        let stored = site.guard.read(resource).await.unwrap();
        let mark = reference.mark();
        if (&stored.value, stored.mark) != (&reference.value, mark) {
            self.difference(format!("{} leaves {stored:?} instead of {:?} {mark:?}", shown.join(" "), reference.value));
        }
        if let Some(own) = &site.own {
            let landed = own.landed(resource).await;
            if landed != reference.own {
                self.difference(format!("{}: {landed:?} landed last instead of {:?}", shown.join(" "), reference.own));
            }
        }
        if reference.trusted == SECOND {
            let [old, new] = [SECOND, FIRST].map(|text| Authority::parse(text).unwrap());
            site.guard.adopt(Some(&old), &new).await.unwrap();
        }
    }

    fn difference(&mut self, what: String) {
        self.differences += 1;
        self.first.get_or_insert(what);
    }
}

async fn carry_out(
    site: &Site,
    actor: usize,
    op: Op,
    token: &FencingToken,
    value: &str,
    resource: &ResourceName,
) -> Answer {
    let answer = match op {
        Op::Read => site.guard.read(resource).await.map(Answer::Read),
        Op::Seal => site.guard.seal(resource, token).await.map(|()| Answer::Done),
        Op::Write => site.guard.write(resource, token, value).await.map(|()| Answer::Done),
        Op::Adopt => {
            let [old, new] = [FIRST, SECOND].map(|text| Authority::parse(text).unwrap());
            site.guard.adopt(Some(&old), &new).await.map(|()| Answer::Done)
        }
        Op::Look => site.guard.read(resource).await.map(|stored| {
            let trusted = Authority::parse(FIRST).unwrap();
            Refusal::judge(Some(&trusted), stored.mark, token).err().map_or(Answer::Done, Answer::Refused)
        }),
        Op::WriteBlindly => match site.blind.as_ref().unwrap() {
            Blind::Edited(blind) => blind.write(resource, token, value).await.map(|()| Answer::Done),
            Blind::Memory(blind) => {
                blind.write_plain(resource, value);
                Ok(Answer::Done)
            }
        },
        Op::Prepare => site.own.as_ref().unwrap().prepare(actor, resource, token).await.map(|()| Answer::Done),
        Op::Land if site.own.as_ref().unwrap().land(actor, resource).await => Ok(Answer::Done),
        Op::Land => Ok(Answer::NotLanded),
    };
    match answer {
        Ok(answer) => answer,
        Err(GuardError::Refused { refusal, .. }) => Answer::Refused(refusal),
        Err(GuardError::AdoptConflict { found }) => Answer::Conflict(found),
        Err(error) => panic!("the store failed: {error}"),
    }
}
