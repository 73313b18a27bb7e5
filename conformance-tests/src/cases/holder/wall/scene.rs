//! A worker whose wall clock is moved, and those that it has to exclude.

use crate::context::{Evidence, Stage, Stop, evidence, millis, release};
use crate::history::Recorded;
use crate::worker::{Answer, Command, Reply, Seen, WallClock, Worker, now_ns};
use lease_core::{Acquisition, Attempt, Claim, FencingToken, LeaseBackend as _, ResourceName, Ttl, safety_margin};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// How far the wall clock jumps, in seconds.
pub(super) const THREE_HOURS: i64 = 3 * 3_600;

/// How much the worker's clocks may disagree with the jump that was made: what passes between two readings.
const UNSURE: u64 = 60_000_000_000;

const SECOND: i64 = 1_000_000_000;

const HERE: &str = "another process";
const AHEAD: &str = "a worker process whose wall clock is three hours ahead";
const INSIDE: &str = "another attempt in the holder's process, where the store is";

pub(super) struct Scene {
    pub(super) stage: Stage,
    pub(super) clock: Arc<WallClock>,
    pub(super) holder: Worker,
    pub(super) ttl: Ttl,
    pub(super) granted: Duration,
    rivals: Rivals,
    /// Where the wall clock is, in seconds ahead.
    ahead: i64,
    jumps: Vec<Value>,
    /// How often the rivals with a worker's name have tried.
    tries: u64,
    last_token: Option<FencingToken>,
    /// The longest that the store took to answer a client whose wall clock nobody moves.
    slowest_ns: u64,
}

/// Who tries to get the lease while it is held.
enum Rivals {
    /// A client in this process, and a worker process whose wall clock is three hours ahead.
    Outside { here: Recorded, ahead: Box<Worker> },
    /// The store is inside the holder's process, and so is the rival.
    Inside,
}

/// Whom it was granted, and by when.
pub(super) struct Taken {
    pub(super) by: &'static str,
    pub(super) returned_ns: u64,
    pub(super) token: Option<FencingToken>,
}

impl Scene {
    /// Starts the workers.
    pub(super) async fn start(stage: Stage, wanted: Duration) -> Result<Self, Stop> {
        let subject = &stage.run.subject;
        let outside = subject.worker_url();
        let url = outside.clone().or_else(|| subject.own_store_url());
        let (Some(program), Some(url)) = (&stage.run.program, url) else {
            let missing = "the wall clock of this process cannot be moved; it takes a worker program \
                           (`Suite::worker_program`) and a URL (`Subject::worker_url`)";
            return Err(Stop::Wants(Claim::CrossProcess, missing.into()));
        };
        let clock = WallClock::build().await.map_err(Stop::NotTried)?;
        let start = |clock: &WallClock| Worker::on_clock(program, clock).map_err(Stop::NotTried);
        let mut holder = start(&clock)?;
        connect(&mut holder, &url).await?;
        let rivals = match outside {
            None => Rivals::Inside,
            Some(url) => {
                let other = clock.another().map_err(Stop::NotTried)?;
                other.set(THREE_HOURS).map_err(Stop::NotTried)?;
                let mut ahead = start(&other)?;
                connect(&mut ahead, &url).await?;
                Rivals::Outside { here: stage.client().await?, ahead: Box::new(ahead) }
            }
        };
        let limits = stage.run.limits;
        let ttl = Ttl::parse(wanted.max(limits.min_ttl).min(limits.max_ttl))?;
        let granted = limits.granted_ttl(ttl)?;
        let clock = Arc::new(clock);
        Ok(Self {
            stage,
            clock,
            holder,
            ttl,
            granted,
            rivals,
            ahead: 0,
            jumps: Vec::new(),
            tries: 0,
            last_token: None,
            slowest_ns: 0,
        })
    }

    /// Moves the holder's wall clock, and lets the holder witness it.
    pub(super) async fn jump(&mut self, to: i64, when: &str) -> Result<(), Stop> {
        let before = self.clocks().await?;
        self.clock.set(to).map_err(Stop::NotTried)?;
        let after = self.clocks().await?;
        let passed = after.boot_ns.saturating_sub(before.boot_ns);
        let difference = after.wall_ns.checked_signed_diff(before.wall_ns).unwrap_or_default();
        let moved = difference.saturating_sub_unsigned(passed);
        let wanted = to.saturating_sub(self.ahead).saturating_mul(SECOND);
        if moved.abs_diff(wanted) > UNSURE {
            return Err(Stop::NotTried(format!(
                "the worker's wall clock moved by {moved} ns instead of {wanted} ns: the system preloads nothing into it \
                 (a static program?), or it was set meanwhile"
            )));
        }
        self.ahead = to;
        let jump = evidence! {
            "when": when,
            "worker_says_before_ns": before.wall_ns,
            "worker_says_after_ns": after.wall_ns,
            "moved_ms": moved.checked_div(SECOND / 1_000),
        };
        self.jumps.push(serde_json::json!(jump));
        Ok(())
    }

    /// After something else has moved it.
    pub(super) fn is_now_at(&mut self, to: i64) -> Result<(), Stop> {
        self.clock.set(to).map_err(Stop::NotTried)?;
        self.ahead = to;
        Ok(())
    }

    async fn clocks(&mut self) -> Result<Clocks, Stop> {
        match self.tell(Command::Clocks).await?.answer {
            Answer::Clocks { wall_ns, boot_ns } => Ok(Clocks { wall_ns, boot_ns }),
            other => Err(Stop::NotTried(format!("the worker was asked for its clocks and said {other:?}"))),
        }
    }

    /// A command whose failure shows nothing of the clock.
    pub(super) async fn tell(&mut self, command: Command) -> Result<Reply, Stop> {
        self.holder.call(command).await.map_err(Stop::NotTried)
    }

    /// What the thread of the holder that asks for permits has seen.
    pub(super) async fn seen(&mut self, lease: &str) -> Result<Seen, Stop> {
        match self.tell(Command::Watched { lease: lease.into() }).await?.answer {
            Answer::Watched { seen } => Ok(seen),
            other => Err(Stop::NotTried(format!("the holder told nothing: {other:?}"))),
        }
    }

    /// Lets every rival try, until one gets the lease; that one releases it again.
    pub(super) async fn taken(&mut self, name: &ResourceName) -> Result<Option<Taken>, Stop> {
        let long = self.stage.run.long();
        let (by, worker) = match &mut self.rivals {
            Rivals::Outside { here, ahead } => {
                let asked_ns = now_ns();
                let answer = here.acquire(&Attempt::new(name.clone(), long)?).await?;
                let returned_ns = now_ns();
                self.slowest_ns = self.slowest_ns.max(returned_ns.saturating_sub(asked_ns));
                if let Acquisition::Acquired(lease) = answer {
                    release(here, &lease).await?;
                    return Ok(Some(Taken { by: HERE, returned_ns, token: lease.token().cloned() }));
                }
                (AHEAD, ahead.as_mut())
            }
            Rivals::Inside => (INSIDE, &mut self.holder),
        };
        self.tries = self.tries.saturating_add(1);
        let lease = format!("rival-{}", self.tries);
        let acquire =
            Command::Acquire { lease: lease.clone(), resource: name.as_str().into(), ttl_ms: long.as_millis() };
        let reply = worker.call(acquire).await.map_err(Stop::NotTried)?;
        match reply.answer {
            Answer::Held => Ok(None),
            Answer::Acquired { token, .. } => {
                worker.call(Command::Release { lease }).await.map_err(Stop::NotTried)?;
                Ok(Some(Taken { by, returned_ns: reply.ended_ns, token }))
            }
            other => Err(Stop::NotTried(format!("{by} acquires and is told {other:?}"))),
        }
    }

    /// The longest that the store took to answer this process, whose wall clock is not moved; zero where the store is in the holder's process.
    pub(super) fn slowest_ns(&self) -> u64 {
        self.slowest_ns
    }

    /// A rival takes the lease, which has to be free.
    pub(super) async fn is_free(&mut self, name: &ResourceName) -> Result<(), Stop> {
        match self.taken(name).await? {
            Some(taken) => self.grows(taken.token),
            None => Err(Stop::Refuted(format!("{name} should be free, and is held"))),
        }
    }

    /// The token of one more grant of the same resource.
    pub(super) fn grows(&mut self, token: Option<FencingToken>) -> Result<(), Stop> {
        if let (Some(last), Some(token)) = (&self.last_token, &token)
            && token <= last
        {
            return Err(Stop::Refuted(format!("the token {token} of a later grant is not larger than {last}")));
        }
        self.last_token = token;
        Ok(())
    }

    /// The earliest instant at which a grant can end whose request was sent at `sent_ns` at the earliest.
    pub(super) fn earliest_end_ns(&self, sent_ns: u64) -> u64 {
        let lasts = self.granted.saturating_sub(safety_margin(self.granted));
        sent_ns.saturating_add(nanos(lasts))
    }

    /// The instant at which a grant has ended for its holder whose request was sent at `sent_ns` at the latest.
    pub(super) fn latest_end_ns(&self, sent_ns: u64) -> u64 {
        sent_ns.saturating_add(nanos(self.granted))
    }

    /// Ends the workers and tells what is the same in all cases.
    pub(super) async fn end(self) -> Result<Evidence, Stop> {
        let seen = evidence! {
            "mode": self.holder.mode(),
            "pid_holder": self.holder.pid(),
            "granted_ttl_ms": millis(self.granted),
            "rivals": match self.rivals {
                Rivals::Outside { .. } => vec![HERE, AHEAD],
                Rivals::Inside => vec![INSIDE],
            },
            "jumps": self.jumps,
        };
        self.holder.end().await.map_err(Stop::NotTried)?;
        if let Rivals::Outside { ahead, .. } = self.rivals {
            ahead.end().await.map_err(Stop::NotTried)?;
        }
        Ok(seen)
    }
}

struct Clocks {
    wall_ns: u64,
    boot_ns: u64,
}

async fn connect(worker: &mut Worker, url: &str) -> Result<(), Stop> {
    worker.call(Command::Connect { url: url.to_owned() }).await.map(drop).map_err(Stop::NotTried)
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
