//! Several holders in one worker, all in the same trouble.

use super::fault::{Aftermath, Kind, Trouble};
use crate::context::{Here, Stage, Stop, millis, now, pause_for};
use crate::faults::FaultBench;
use crate::subject::{Opener, PlainWriter, TestDestination};
use crate::worker::{Answer, Command, Reply, Seen, Worker};
use lease_core::{GuardError, LeaseBackend, LeaseError, ResourceName, Ttl};
use std::sync::Arc;
use std::time::Duration;

/// How long a call of a holder's client may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a slow machine may take to let a holder see what has happened.
const PATIENCE: Duration = Duration::from_secs(20);

/// Holders in one worker.
pub(super) struct Group {
    pub(super) kind: Kind,
    pub(super) ttl: Ttl,
    pub(super) names: Vec<ResourceName>,
    pub(super) worker: Worker,
    aftermath: Aftermath,
}

impl Group {
    /// Starts a worker and lets it hold `count` leases.
    pub(super) async fn start(stage: &Stage, kind: Kind, ttl: Ttl, count: u32) -> Result<Self, Stop> {
        let bench = stage.run.subject.fault_bench(CALL_TIMEOUT).await;
        let bench = bench.ok_or_else(|| Stop::NotTried("the subject has no path that can be disturbed".into()))?;
        let bench = bench.map_err(|e| Stop::NotTried(format!("the disturbed path is not there: {e}")))?;
        let worker = worker(stage, kind, &bench).await.map_err(Stop::NotTried)?;
        let aftermath = Aftermath::of(bench, stage.run.subject.server());
        let mut group = Self { kind, ttl, names: Vec::new(), worker, aftermath };
        group.hold(stage, count).await?;
        Ok(group)
    }

    /// Takes the leases apart in time, so that the trouble comes at another moment between two renewals of each.
    async fn hold(&mut self, stage: &Stage, count: u32) -> Result<(), Stop> {
        // All within two thirds of the TTL.
        let ttl_ms = millis(self.ttl.duration());
        let most = ttl_ms.saturating_mul(2).checked_div(u64::from(count.max(1)).saturating_mul(3)).unwrap_or_default();
        let end = now().saturating_add(PATIENCE);
        let mut tries = 0_u32;
        while self.names.len() < usize::try_from(count).unwrap_or(usize::MAX) {
            // What came of a failed try is not known, so the next one has a name of its own.
            let name = stage.resource(&format!("{:?}/{}/{tries}", self.kind, self.names.len()))?;
            let (lease, resource) = (self.names.len().to_string(), name.as_str().to_owned());
            match self.worker.call(Command::Watch { lease, resource, ttl_ms, renews: true }).await {
                Ok(Reply { answer: Answer::Acquired { .. }, .. }) => self.names.push(name),
                Ok(reply) => {
                    let answer = reply.answer;
                    return Err(Stop::Refuted(format!("{name} should be free, but the answer was {answer:?}")));
                }
                // A client that has just been made has to connect, which may take longer than its calls may.
                Err(_) if now() < end => tries = tries.saturating_add(1),
                Err(error) => return Err(Stop::NotTried(format!("cannot hold: {error}"))),
            }
            let apart = stage.run.random().checked_rem(most).unwrap_or_default();
            pause_for(Duration::from_millis(apart)).await;
        }
        Ok(())
    }

    /// Begins and ends the trouble through one borrow of the worker.
    pub(super) fn parts(&mut self, stage: &Stage) -> (Trouble<'_>, &mut Worker, &[ResourceName]) {
        let trouble = self.aftermath.trouble(self.kind, stage.run.subject.hand_edit());
        (trouble, &mut self.worker, &self.names)
    }

    /// What each holder has seen, once `enough` is true of all; or after a while, so that a holder that never sees it is judged too.
    pub(super) async fn seen_when(&mut self, enough: impl Fn(usize, &Seen) -> bool) -> Result<Vec<Seen>, Stop> {
        let end = now().saturating_add(PATIENCE);
        loop {
            let seen = self.seen().await?;
            if seen.iter().enumerate().all(|(at, seen)| enough(at, seen)) || now() >= end {
                return Ok(seen);
            }
            pause_for(Duration::from_millis(20)).await;
        }
    }

    /// What each holder has seen so far.
    pub(super) async fn seen(&mut self) -> Result<Vec<Seen>, Stop> {
        let asks = (0..self.names.len()).map(|at| Command::Watched { lease: at.to_string() }).collect();
        let replies = self.worker.all(asks).await.map_err(Stop::NotTried)?;
        let seen = replies.into_iter().map(|reply| match reply.answer {
            Answer::Watched { seen } => Ok(seen),
            other => Err(Stop::NotTried(format!("a holder told nothing: {other:?}"))),
        });
        seen.collect()
    }
}

/// A worker behind the path: a process where there is a URL for it, but for a runtime that is blocked, which is one on a thread. A stopped worker
/// needs no path, so it is a process wherever it can be.
async fn worker(stage: &Stage, kind: Kind, bench: &Arc<dyn FaultBench>) -> Result<Worker, String> {
    let own = || stage.run.subject.worker_url().filter(|_| kind == Kind::WorkerStopped);
    let url = bench.worker_url().or_else(own);
    let mut worker = match (&stage.run.program, &url) {
        (Some(program), Some(_)) if kind != Kind::RuntimeBlocked => Worker::process(program)?,
        _ => Worker::thread(Arc::new(Behind { bench: Arc::clone(bench), here: Here(Arc::clone(&stage.run)) }))?,
    };
    worker.call(Command::Connect { url: url.unwrap_or_default() }).await?;
    Ok(worker)
}

/// What a worker on a thread opens: a client behind the path.
struct Behind {
    bench: Arc<dyn FaultBench>,
    here: Here,
}

#[async_trait::async_trait]
impl Opener for Behind {
    async fn backend(&self, _url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        self.bench.client().await
    }

    async fn plain_writer(&self, _url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError> {
        Ok(None)
    }

    async fn destination(&self, url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        self.here.destination(url).await
    }
}
