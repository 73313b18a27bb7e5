//! One pause, step by step. Nothing is judged here.

use super::scene::{About, Step};
use super::seen::{AtRegister, AtTarget, Seen};
use super::steps::{
    LEASE, REGISTER, acquire_command, done, first_touch, hindered, opens, prepare, unexpected, write, wrote,
};
use super::target::{Group, START, Target, Unopened, open_all};
use crate::context::{Stage, Stop, acquire, now, pause_for, release};
use crate::history::{Recorded, Renewed};
use crate::worker::{Answer, Command, How, Reply, Told, Worker};
use lease_core::{Authority, BootInstant, Fence, FencingToken, LeaseBackend, OwnerToken, ResourceName, Stored, Ttl};
use std::sync::Mutex;
use std::time::Duration;

pub(super) async fn run(stage: &Stage, group: &Group) -> Result<Seen, Stop> {
    let observer = stage.client().await?;
    let resource = stage.resource("paused")?;
    let authority = authority(stage, &observer).await?;
    let (targets, unopened) = open_all(stage, group, &resource, authority.as_ref()).await;
    let mut play = Play {
        a: group.worker(&stage.run).await.map_err(hindered("A cannot start"))?,
        b: group.worker(&stage.run).await.map_err(hindered("B cannot start"))?,
        register: observer.fence().register().is_some(),
        unchecked: stage.run.subject.plain_writer().is_some(),
        owners: [OwnerToken::random()?, OwnerToken::random()?],
        ttls: [Duration::ZERO; 2],
        tokens: [None, None],
        steps: Mutex::default(),
        stage,
        observer,
        resource,
        targets,
    };
    let seen = play.run(unopened).await?;
    play.a.end().await.map_err(hindered("A did not end well"))?;
    play.b.end().await.map_err(hindered("B did not end well"))?;
    Ok(seen)
}

/// What orders this backend's tokens: from a grant on another resource, so that the destinations can trust it before A begins.
async fn authority(stage: &Stage, observer: &Recorded) -> Result<Option<Authority>, Stop> {
    let lease = acquire(observer, &stage.resource("authority")?, stage.run.long()).await?;
    let authority = lease.token().map(|token| token.authority().clone());
    release(observer, &lease).await?;
    Ok(authority)
}

pub(super) struct Play<'a> {
    pub(super) stage: &'a Stage,
    observer: Recorded,
    pub(super) resource: ResourceName,
    targets: Vec<Target>,
    register: bool,
    unchecked: bool,
    a: Worker,
    b: Worker,
    /// Of A and B, for the history: workers keep their real ones to themselves.
    pub(super) owners: [OwnerToken; 2],
    pub(super) ttls: [Duration; 2],
    pub(super) tokens: [Option<FencingToken>; 2],
    pub(super) steps: Mutex<Vec<Step>>,
}

/// What B computed at one destination, and what it was told when it wrote that.
struct Fresh {
    value: String,
    told: Option<Told>,
}

/// Every destination, and the register behind the native fence, as the observer read them.
type Contents = (Vec<Stored>, Option<String>);

/// A grant as a worker reported it.
pub(super) struct Granted {
    pub(super) token: Option<FencingToken>,
    pub(super) ttl: Duration,
    pub(super) at_ns: u64,
}

impl Play<'_> {
    async fn run(&mut self, unopened: Vec<Unopened>) -> Result<Seen, Stop> {
        let a = self.a_holds_and_prepares().await?;
        let a_last_live_ns = self.a_is_live().await?;

        let stopped = self.a.pause().await.map_err(hindered("A cannot be stopped"))?;
        let stopped_at = now();
        let b = self.b_takes_over(stopped_at, a.ttl).await?;
        let mut works = self.b_works().await?;
        let before = (self.read_all().await?, self.read_register().await?);
        self.wait_out(stopped_at, a.ttl).await;
        let sent = self.queue_stale_writes().await?;
        let still = self.a.stopped_state().await;
        let still = still.map_err(hindered("A was not stopped all the time"))?;
        let resumed_at = now();
        self.a.resume().map_err(hindered("A cannot be resumed"))?;

        let replies = self.a.answers(sent).await.map_err(hindered("A did not go on"))?;
        let after = (self.read_all().await?, self.read_register().await?);
        self.b_writes_late(&mut works).await?;
        let last = self.read_all().await?;
        let unchecked = self.a_writes_unchecked().await?;
        let a_renew = self.a_renews().await?;
        let a_release = self.a_releases().await?;
        let b_renew = self.call_b(Command::Renew { lease: LEASE.into() }).await?.answer;
        let held = self.observer.inspect(&self.resource).await?.held;
        let b_release = self.call_b(Command::Release { lease: LEASE.into() }).await?;
        self.saw(1, About::Lease, &b_release);

        let past_deadline_at_first_touch = first_touch(&replies)?;
        let (native, targets) = self.sort_out(replies, works, before, after, last, unchecked)?;
        Ok(Seen {
            backend: self.stage.run.subject.name().to_owned(),
            mode: self.a.mode(),
            pid_a: self.a.pid(),
            pid_b: self.b.pid(),
            stopped: [stopped, still],
            pause: resumed_at.saturating_since(stopped_at),
            granted_ttl: a.ttl,
            token_a: a.token,
            token_b: b.token,
            a_last_live_ns,
            b_granted_ns: b.at_ns,
            resumed_ns: resumed_at.as_nanos(),
            past_deadline_at_first_touch,
            targets,
            unopened,
            native,
            a_renew,
            a_release,
            b_renew,
            holder: held,
            steps: self.steps(),
        })
    }

    /// Puts what was seen at each destination together.
    fn sort_out(
        &self,
        replies: Vec<Reply>,
        works: Vec<Fresh>,
        before: Contents,
        after: Contents,
        last: Vec<Stored>,
        unchecked: Option<(Told, Option<String>)>,
    ) -> Result<(Option<AtRegister>, Vec<AtTarget>), Stop> {
        let mut replies = replies.into_iter();
        let mut native = None;
        if let Some(reply) = self.register.then(|| replies.next()).flatten() {
            let (told, sent_ns) = wrote(&reply)?;
            self.saw(0, About::Register, &reply);
            native = Some(AtRegister {
                mark: self.is_mark(),
                stale: format!("{START}+A"),
                before: before.1,
                after: after.1,
                told,
                sent_ns,
                unchecked,
            });
        }
        let mut targets = Vec::new();
        let contents = before.0.into_iter().zip(after.0).zip(last);
        let writes = self.targets.iter().zip(works).zip(replies);
        for (((target, work), reply), ((before, after), last)) in writes.zip(contents) {
            let (told, sent_ns) = wrote(&reply)?;
            self.note_write(0, target, &reply);
            targets.push(AtTarget {
                target: target.clone(),
                stale: format!("{START}+A"),
                fresh: work.value,
                before,
                after,
                last,
                told,
                told_b: work.told.unwrap_or(Told::Failed("it was not written".into())),
                sent_ns,
            });
        }
        Ok((native, targets))
    }

    /// A acquires, and for every destination reads and computes what it will write.
    async fn a_holds_and_prepares(&mut self) -> Result<Granted, Stop> {
        let opens = opens(&self.targets);
        done(self.a.all(opens.clone()).await.map_err(hindered("A"))?)?;
        done(self.b.all(opens).await.map_err(hindered("B"))?)?;
        let limits = self.stage.run.limits;
        let asked = Duration::from_secs(2).max(limits.min_ttl).min(limits.max_ttl);
        let command = acquire_command(&self.resource, Ttl::parse(asked)?);
        let reply = self.a.call(command).await.map_err(hindered("A cannot acquire"))?;
        let granted = self.granted(0, &reply)?;
        let mut commands = Vec::new();
        if self.register {
            commands.push(prepare("first", None, START));
            commands.push(write("first", How::Native));
            commands.push(prepare(REGISTER, None, "+A"));
        }
        for target in &self.targets {
            commands.push(prepare(&target.key, Some(&target.key), "+A"));
        }
        let prepared = done(self.a.all(commands).await.map_err(hindered("A cannot prepare"))?)?;
        let mut prepared = prepared.iter();
        if self.register {
            // The first two only put something there.
            prepared.nth(2).into_iter().for_each(|reply| self.saw(0, About::Register, reply));
        }
        for (target, reply) in self.targets.iter().zip(prepared) {
            self.saw(0, About::At(target.key.clone()), reply);
        }
        Ok(granted)
    }

    /// A renews, which it still can, and says that its lease is live; returns when it said so.
    async fn a_is_live(&mut self) -> Result<u64, Stop> {
        let renewed = self.a.call(Command::Renew { lease: LEASE.into() }).await;
        let renewed = renewed.map_err(hindered("A cannot renew while it holds"))?;
        let Answer::Renewed { token } = &renewed.answer else {
            return Err(unexpected("A, renewing before the pause,", &renewed.answer));
        };
        self.note_renew(0, &renewed, Renewed::Extended(token.clone()));
        let touch = self.a.call(Command::Touch { lease: LEASE.into() }).await;
        let touch = touch.map_err(hindered("A cannot look at its lease"))?;
        self.saw(0, About::Lease, &touch);
        match touch.answer {
            Answer::Touched { past_deadline: false, .. } => Ok(touch.ended_ns),
            other => Err(unexpected("A, live until now,", &other)),
        }
    }

    /// B polls until it is granted the lease.
    async fn b_takes_over(&mut self, stopped_at: BootInstant, ttl: Duration) -> Result<Granted, Stop> {
        let limit = self.stage.run.freed_within(ttl);
        loop {
            let command = acquire_command(&self.resource, self.stage.run.long());
            let reply = self.b.call(command).await.map_err(hindered("B cannot acquire"))?;
            if reply.answer != Answer::Held {
                return self.granted(1, &reply);
            }
            if now() >= stopped_at.saturating_add(limit) {
                let why = format!("B could not acquire within {limit:?} after A was stopped");
                return Err(Stop::NotTried(why));
            }
            pause_for(Duration::from_millis(10)).await;
        }
    }

    /// B does its part of every mode while A is stopped.
    async fn b_works(&mut self) -> Result<Vec<Fresh>, Stop> {
        let mut commands = Vec::new();
        for target in &self.targets {
            if target.mode.seals() {
                commands.push(Command::Seal { lease: LEASE.into(), at: target.key.clone() });
            }
            commands.push(prepare(&target.key, Some(&target.key), "+B"));
            if target.mode.writes_during() {
                commands.push(write(&target.key, target.mode.fresh_how()));
            }
        }
        if self.register {
            commands.push(prepare(REGISTER, None, "+B"));
            commands.push(write(REGISTER, How::Native));
        }
        let replies = done(self.b.all(commands).await.map_err(hindered("B"))?)?;
        let mut replies = replies.into_iter();
        let mut works = Vec::new();
        for target in self.targets.clone() {
            let seal = target.mode.seals().then(|| replies.next()).flatten();
            let read = replies.next();
            let value = match read.as_ref().map(|reply| &reply.answer) {
                Some(Answer::Prepared { value }) => value.clone(),
                other => return Err(Stop::NotTried(format!("B's preparation was answered by {other:?}"))),
            };
            if let Some(read) = &read {
                self.saw(1, About::At(target.key.clone()), read);
            }
            let write = target.mode.writes_during().then(|| replies.next()).flatten();
            for reply in seal.iter().chain(&write) {
                self.note_write(1, &target, reply);
            }
            let told = write.as_ref().map(wrote).transpose()?.map(|(told, _)| told);
            works.push(Fresh { value, told });
        }
        replies.for_each(|reply| self.saw(1, About::Register, &reply));
        Ok(works)
    }

    /// Waits until A was stopped for longer than its grant and the store's lag.
    async fn wait_out(&self, stopped_at: BootInstant, ttl: Duration) {
        let until = stopped_at
            .saturating_add(ttl)
            .saturating_add(self.stage.run.limits.expiry_lag)
            .saturating_add(Duration::from_millis(20));
        pause_for(until.saturating_since(now())).await;
    }

    /// Puts A's prepared writes into its queue while it is stopped, so that it goes straight on with them. Returns how many answers will come.
    async fn queue_stale_writes(&mut self) -> Result<usize, Stop> {
        let mut commands = Vec::new();
        if self.register {
            commands.push(write(REGISTER, How::Native));
        }
        for target in &self.targets {
            commands.push(write(&target.key, target.mode.stale_how()));
        }
        commands.push(Command::Touch { lease: LEASE.into() });
        let count = commands.len();
        for command in commands {
            let sent = self.a.send(command).await;
            sent.map_err(hindered("A's queue takes nothing"))?;
        }
        Ok(count)
    }

    /// B writes what it computed before A's attempt, in the modes in which it waited with that.
    async fn b_writes_late(&mut self, works: &mut [Fresh]) -> Result<(), Stop> {
        for (target, work) in self.targets.clone().into_iter().zip(works) {
            if work.told.is_none() {
                let reply = self.call_b(write(&target.key, target.mode.fresh_how())).await?;
                self.note_write(1, &target, &reply);
                work.told = Some(wrote(&reply)?.0);
            }
        }
        Ok(())
    }

    /// The control of the native fence: the same prepared write without the check.
    async fn a_writes_unchecked(&mut self) -> Result<Option<(Told, Option<String>)>, Stop> {
        if !(self.register && self.unchecked) {
            return Ok(None);
        }
        let reply = self.a.call(write(REGISTER, How::PlainNative)).await;
        let reply = reply.map_err(hindered("A"))?;
        let (told, _) = wrote(&reply)?;
        self.saw(0, About::Unchecked, &reply);
        Ok(Some((told, self.read_register().await?)))
    }

    async fn a_renews(&mut self) -> Result<Answer, Stop> {
        let reply = self.a.call(Command::Renew { lease: LEASE.into() }).await;
        let reply = reply.map_err(hindered("A's renewal failed"))?;
        let outcome = match &reply.answer {
            Answer::Renewed { token } => Renewed::Extended(token.clone()),
            _ => Renewed::Lost,
        };
        self.note_renew(0, &reply, outcome);
        Ok(reply.answer)
    }

    async fn a_releases(&mut self) -> Result<Answer, Stop> {
        let reply = self.a.call(Command::Release { lease: LEASE.into() }).await;
        Ok(reply.map_err(hindered("A's release failed"))?.answer)
    }

    async fn call_b(&mut self, command: Command) -> Result<Reply, Stop> {
        self.b.call(command).await.map_err(hindered("B"))
    }

    async fn read_all(&self) -> Result<Vec<Stored>, Stop> {
        let mut contents = Vec::new();
        for target in &self.targets {
            contents.push(target.open.read(&self.resource).await?);
        }
        Ok(contents)
    }

    async fn read_register(&self) -> Result<Option<String>, Stop> {
        match self.observer.fence().register() {
            Some(register) => Ok(register.read(&self.resource).await?),
            None => Ok(None),
        }
    }

    fn is_mark(&self) -> bool {
        matches!(self.observer.fence(), Fence::Mark(_))
    }
}
