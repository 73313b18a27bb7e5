//! The workers of a soak: started, ended, replaced, and listened to.

use super::Soak;
use super::merge::Stream;
use super::note::Orders;
use super::random::Random;
use crate::context::{CONNECTING, now, pause_for};
use crate::faults::FaultBench;
use crate::subject::{Opener, PlainWriter, TestDestination};
use crate::worker::{Command, Worker};
use lease_core::{BootInstant, GuardError, LeaseBackend, LeaseError};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long a call of a worker's client may take: less than a lease lasts, so that a fault costs a try and not the lease.
const CALL_TIMEOUT: Duration = Duration::from_millis(400);

/// What every worker is told.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) names: Vec<String>,
    pub(super) ttl: Duration,
    pub(super) namespace: String,
    pub(super) seed: u64,
}

/// One worker, its way to the store, and its notes.
pub(super) struct Member {
    number: usize,
    /// How many workers there have been under this number.
    generation: u64,
    pub(super) worker: Worker,
    /// `None`: the worker reaches the store without a path that can be disturbed.
    pub(super) bench: Option<Arc<dyn FaultBench>>,
    listener: JoinHandle<Stream>,
}

/// How workers run here: processes, if the store and the destination can be reached from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Processes,
    Threads,
}

impl Mode {
    pub(super) fn of(soak: &Soak, namespace: &str) -> Self {
        let reached = soak.subject.worker_url().is_some() && soak.place.url(namespace).is_some();
        if soak.program.is_some() && reached { Self::Processes } else { Self::Threads }
    }
}

impl Member {
    pub(super) async fn start(soak: &Soak, terms: &Terms, mode: Mode, number: usize) -> Result<Self, String> {
        let bench = match soak.subject.fault_bench(CALL_TIMEOUT).await {
            None => None,
            Some(bench) => Some(bench?),
        };
        let bench = bench.filter(|bench| mode == Mode::Threads || bench.worker_url().is_some());
        Self::on(soak, terms, mode, number, 0, bench).await
    }

    async fn on(
        soak: &Soak,
        terms: &Terms,
        mode: Mode,
        number: usize,
        generation: u64,
        bench: Option<Arc<dyn FaultBench>>,
    ) -> Result<Self, String> {
        let (mut worker, at) = match (mode, &soak.program, soak.place.url(&terms.namespace)) {
            (Mode::Processes, Some(program), Some(at)) => (Worker::process(program)?, at),
            _ => (Worker::thread(Arc::new(given(soak, terms, bench.as_ref()).await?))?, String::new()),
        };
        let mut notes = worker.notes().ok_or("the worker's notes are taken")?;
        let listener = tokio::spawn(async move {
            let mut all = Stream::new();
            while let Some(note) = notes.recv().await {
                all.push(note);
            }
            all
        });
        let url = bench.as_ref().and_then(|bench| bench.worker_url()).or_else(|| soak.subject.worker_url());
        let orders = Orders {
            names: terms.names.clone(),
            ttl_ms: u64::try_from(terms.ttl.as_millis()).unwrap_or(u64::MAX),
            at: "destination".to_owned(),
            seed: Random::of(terms.seed, generation.wrapping_mul(1_000).wrapping_add(number.try_into().unwrap_or(0)))
                .next(),
            worker: format!("{number}.{generation}"),
            hands: 2,
        };
        let end = now().saturating_add(CONNECTING);
        insist(&mut worker, &Command::Connect { url: url.unwrap_or_default() }, end).await?;
        insist(&mut worker, &Command::Open { at: orders.at.clone(), url: at }, end).await?;
        worker.call(Command::Soak { orders }).await?;
        Ok(Self { number, generation, worker, bench, listener })
    }

    /// Kills its process, and starts another one on the same way. Returns the killed one's notes, and its process id.
    pub(super) async fn replace(self, soak: &Soak, terms: &Terms, mode: Mode) -> Result<(Self, Stream, u32), String> {
        let pid = self.worker.pid();
        self.worker.kill().await?;
        let stream = heard(self.listener).await?;
        let next = Self::on(soak, terms, mode, self.number, self.generation.saturating_add(1), self.bench).await?;
        Ok((next, stream, pid))
    }

    /// Lets it come to an end. Returns its notes.
    pub(super) async fn end(mut self) -> Result<Stream, String> {
        self.worker.call(Command::Rest).await?;
        self.worker.end().await?;
        heard(self.listener).await
    }
}

/// Connecting shares the limit of a call, which is short here: on a busy machine a worker that begins has to try again, like any
/// program. Nothing is judged by it.
async fn insist(worker: &mut Worker, command: &Command, end: BootInstant) -> Result<(), String> {
    loop {
        let left = end.saturating_since(now());
        let answer = tokio::time::timeout(left, worker.call(command.clone())).await;
        match answer.map_err(|_| "a worker did not connect within 60 s")? {
            Ok(_) => return Ok(()),
            Err(error) if now() >= end => return Err(error),
            Err(_) => pause_for(Duration::from_millis(100)).await,
        }
    }
}

async fn given(soak: &Soak, terms: &Terms, bench: Option<&Arc<dyn FaultBench>>) -> Result<Given, String> {
    let client = match bench {
        Some(bench) => bench.client().await,
        None => soak.subject.client().await,
    };
    let destination = soak.place.open(&terms.namespace).await.map_err(|e| e.to_string())?;
    Ok(Given { client: client.map_err(|e| e.to_string())?, destination })
}

/// All notes of a worker that is gone.
async fn heard(listener: JoinHandle<Stream>) -> Result<Stream, String> {
    let all = tokio::time::timeout(CONNECTING, listener).await;
    all.map_err(|_| "the worker's notes did not end")?.map_err(|e| e.to_string())
}

/// What a worker on a thread is given.
struct Given {
    client: Arc<dyn LeaseBackend>,
    destination: Arc<dyn TestDestination>,
}

#[async_trait::async_trait]
impl Opener for Given {
    async fn backend(&self, _url: &str) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        Ok(Arc::clone(&self.client))
    }

    async fn plain_writer(&self, _url: &str) -> Result<Option<Arc<dyn PlainWriter>>, LeaseError> {
        Ok(None)
    }

    async fn destination(&self, _url: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        Ok(Arc::clone(&self.destination))
    }
}
