//! What a worker does with a command: the same code on a thread and in a process.

use super::asker::Asker;
use super::outlet::Outlet;
use super::protocol::{Answer, Command, How, Reply, Request, Told};
use crate::faults::at_calls;
use crate::soak::Work;
use crate::subject::{Opener, PlainWriter, TestDestination};
use lease_core::hold::{HoldOptions, Keeper};
use lease_core::{
    Acquisition, Attempt, Clock, FenceError, GuardError, Lease, LeaseBackend, LeaseError, Renewal, ResourceName,
    SystemClock, Ttl,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The longest that one command may take, so that a store that never answers cannot hold the suite up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A worker's memory: its client, its leases, its destinations, and the writes that it has prepared.
pub(super) struct Handler {
    opener: Arc<dyn Opener>,
    backend: Option<Arc<dyn LeaseBackend>>,
    plain: Option<Arc<dyn PlainWriter>>,
    attempts: HashMap<String, Attempt>,
    leases: HashMap<String, Lease>,
    destinations: HashMap<String, Arc<dyn TestDestination>>,
    prepared: HashMap<String, Prepared>,
    outlet: Outlet,
    asker: Asker,
    keeper: Option<Keeper>,
    work: Option<Work>,
}

#[derive(Clone)]
struct Prepared {
    lease: Lease,
    at: Option<String>,
    value: String,
}

impl Handler {
    pub(super) fn new(opener: Arc<dyn Opener>, outlet: Outlet) -> Self {
        Self {
            opener,
            backend: None,
            plain: None,
            attempts: HashMap::new(),
            leases: HashMap::new(),
            destinations: HashMap::new(),
            prepared: HashMap::new(),
            outlet,
            asker: Asker::default(),
            keeper: None,
            work: None,
        }
    }

    /// Does one command. Every failure is an answer.
    pub(super) async fn handle(&mut self, request: Request) -> Reply {
        let began_ns = now_ns();
        let answer = match tokio::time::timeout(PATIENCE, self.answer(request.command)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Failed { error },
            Err(_) => Answer::Failed { error: format!("the command did not end within {PATIENCE:?}") },
        };
        Reply { id: request.id, began_ns, ended_ns: now_ns(), pid: std::process::id(), answer }
    }

    async fn answer(&mut self, command: Command) -> Result<Answer, String> {
        match command {
            Command::Connect { url } => {
                self.backend = Some(self.opener.backend(&url).await.map_err(text)?);
                self.plain = self.opener.plain_writer(&url).await.map_err(text)?;
                Ok(Answer::Done)
            }
            Command::Open { at, url } => {
                let destination = self.opener.destination(&url).await.map_err(text)?;
                self.destinations.insert(at, destination);
                Ok(Answer::Done)
            }
            Command::Acquire { lease, resource, ttl_ms } => self.acquire(lease, &resource, ttl_ms).await,
            Command::Renew { lease } => self.renew(&lease).await,
            Command::Release { lease } => {
                let how = self.backend()?.release(self.lease(&lease)?).await.map_err(text)?;
                Ok(Answer::Released { how: format!("{how:?}") })
            }
            Command::Touch { lease } => {
                let lease = self.lease(&lease)?;
                Ok(Answer::Touched { past_deadline: lease.is_past_deadline(), remaining_ms: millis(lease.remaining()) })
            }
            Command::Seal { lease, at } => {
                let lease = self.lease(&lease)?;
                let token = lease.token().ok_or("the lease has no token")?;
                let sealed = self.destination(&at)?.seal(lease.resource(), token).await;
                sealed.map(|()| Answer::Done).map_err(text)
            }
            Command::Prepare { slot, lease, at, add } => self.prepare(slot, &lease, at, &add).await,
            Command::WritePrepared { slot, how } => self.write_prepared(&slot, how).await,
            Command::Watch { lease, resource, ttl_ms, renews } => self.watch(lease, &resource, ttl_ms, renews).await,
            Command::Watched { lease } => {
                let seen = self.asker.seen(&lease).ok_or_else(|| format!("no watched lease `{lease}`"))?;
                Ok(Answer::Watched { seen })
            }
            Command::ReleaseWatched { lease } => {
                let guard = self.asker.give_back(&lease).await.ok_or_else(|| format!("no watched lease `{lease}`"))?;
                Ok(Answer::Released { how: format!("{:?}", guard.release().await.map_err(text)?) })
            }
            Command::Clocks => {
                let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(|e| e.to_string())?;
                let wall_ns = u64::try_from(wall.as_nanos()).map_err(|e| e.to_string())?;
                Ok(Answer::Clocks { wall_ns, boot_ns: now_ns() })
            }
            Command::Soak { orders } => {
                let backend = self.backend.clone().ok_or("not connected")?;
                let destination = self.destinations.get(&orders.at).cloned();
                let destination = destination.ok_or_else(|| format!("no destination `{}`", orders.at))?;
                self.work = Some(Work::begin(&orders, backend, destination, self.outlet.clone())?);
                Ok(Answer::Done)
            }
            Command::Rest => self.rest().await,
            Command::Block => Err("a process is paused by a signal".into()),
        }
    }

    async fn acquire(&mut self, name: String, resource: &str, ttl_ms: u64) -> Result<Answer, String> {
        let attempt = if let Some(kept) = self.attempts.get(&name) {
            kept.clone()
        } else {
            let resource = ResourceName::parse(resource).map_err(text)?;
            let ttl = Ttl::parse(Duration::from_millis(ttl_ms)).map_err(text)?;
            let attempt = Attempt::new(resource, ttl).map_err(text)?;
            self.attempts.insert(name.clone(), attempt.clone());
            attempt
        };
        match self.backend()?.acquire(&attempt).await.map_err(text)? {
            Acquisition::Acquired(lease) => {
                let answer =
                    Answer::Acquired { token: lease.token().cloned(), granted_ttl_ms: millis(lease.granted_ttl()) };
                self.leases.insert(name, lease);
                Ok(answer)
            }
            Acquisition::Held(_) => {
                // A definite answer: there is nothing to find out about this attempt any more.
                self.attempts.remove(&name);
                Ok(Answer::Held)
            }
        }
    }

    async fn watch(&mut self, name: String, resource: &str, ttl_ms: u64, renews: bool) -> Result<Answer, String> {
        let backend = self.backend.clone().ok_or("not connected")?;
        let ttl = Duration::from_millis(ttl_ms);
        let acquired = if renews {
            let keeper = match self.keeper.take() {
                Some(keeper) => keeper,
                None => Keeper::start(backend).map_err(text)?,
            };
            let keeper = self.keeper.insert(keeper);
            keeper.acquire(resource, ttl, HoldOptions::default()).await.map_err(text)?
        } else {
            let bench = at_calls(backend, PATIENCE);
            let keeper = Keeper::start(bench.client().await.map_err(text)?).map_err(text)?;
            let acquired = keeper.acquire(resource, ttl, HoldOptions::default()).await.map_err(text)?;
            bench.path().black_hole(true);
            acquired
        };
        match acquired {
            Some(guard) => {
                let token = guard.token().cloned();
                self.asker.watch(name, guard)?;
                Ok(Answer::Acquired { token, granted_ttl_ms: ttl_ms })
            }
            None => Ok(Answer::Held),
        }
    }

    /// Ends the work at random, if there is any.
    pub(super) async fn rest(&mut self) -> Result<Answer, String> {
        match self.work.take() {
            Some(work) => work.end().await.map(|()| Answer::Done),
            None => Ok(Answer::Done),
        }
    }

    async fn renew(&mut self, name: &str) -> Result<Answer, String> {
        match self.backend()?.renew(self.lease(name)?).await.map_err(text)? {
            Renewal::Renewed(lease) => {
                let token = lease.token().cloned();
                self.leases.insert(name.to_owned(), lease);
                Ok(Answer::Renewed { token })
            }
            Renewal::Lost(reason) => Ok(Answer::Lost { reason: format!("{reason:?}") }),
        }
    }

    async fn prepare(&mut self, slot: String, lease: &str, at: Option<String>, add: &str) -> Result<Answer, String> {
        let lease = self.lease(lease)?.clone();
        let found = if let Some(at) = &at {
            self.destination(at)?.read(lease.resource()).await.map_err(text)?.value
        } else {
            let register = self.backend()?.fence().register().ok_or("there is no native fence")?;
            register.read(lease.resource()).await.map_err(text)?
        };
        let value = format!("{}{add}", found.unwrap_or_default());
        let answer = Answer::Prepared { value: value.clone() };
        self.prepared.insert(slot, Prepared { lease, at, value });
        Ok(answer)
    }

    async fn write_prepared(&mut self, slot: &str, how: How) -> Result<Answer, String> {
        let prepared = self.prepared.get(slot).ok_or("no such prepared write")?;
        // The lease's own answer, before any I/O: whether the worker could have known.
        let past_deadline = prepared.lease.is_past_deadline();
        let sent_ns = now_ns();
        let told = self.write(prepared, how).await?;
        Ok(Answer::Wrote { told, past_deadline, sent_ns })
    }

    async fn write(&self, prepared: &Prepared, how: How) -> Result<Told, String> {
        let Prepared { lease, at, value } = prepared;
        let resource = lease.resource();
        let token = || lease.token().ok_or("the lease has no token");
        let destination = || self.destination(at.as_deref().unwrap_or_default());
        Ok(match how {
            How::Plain => told_by_guard(destination()?.write_plain(resource, value).await),
            How::Guarded => told_by_guard(destination()?.write(resource, token()?, value).await),
            How::IgnoringRefusal => {
                told_by_guard(destination()?.write_ignoring_refusal(resource, token()?, value).await)
            }
            How::Native => {
                let register = self.backend()?.fence().register().ok_or("there is no native fence")?;
                match register.write(lease, value).await {
                    Ok(()) => Told::Written,
                    Err(error @ FenceError::Refused { .. }) => Told::Refused(error.to_string()),
                    Err(error) => Told::Failed(error.to_string()),
                }
            }
            How::PlainNative => {
                let plain = self.plain.as_ref().ok_or("there is no plain writer")?;
                plain.write(resource, value).await.map_or_else(|e| Told::Failed(e.to_string()), |()| Told::Written)
            }
        })
    }

    fn backend(&self) -> Result<&dyn LeaseBackend, String> {
        self.backend.as_deref().ok_or_else(|| "not connected".into())
    }

    fn lease(&self, name: &str) -> Result<&Lease, String> {
        self.leases.get(name).ok_or_else(|| format!("no lease `{name}`"))
    }

    fn destination(&self, at: &str) -> Result<&dyn TestDestination, String> {
        let found = self.destinations.get(at).map(AsRef::as_ref);
        found.ok_or_else(|| format!("no destination `{at}`"))
    }
}

pub(crate) fn now_ns() -> u64 {
    SystemClock.now().as_nanos()
}

fn told_by_guard(result: Result<(), GuardError>) -> Told {
    match result {
        Ok(()) => Told::Written,
        Err(GuardError::Refused { refusal, .. }) => Told::Refused(refusal.to_string()),
        Err(error) => Told::Failed(error.to_string()),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The messages of this workspace's errors carry no secret.
fn text(error: impl Into<Failure>) -> String {
    error.into().0
}

struct Failure(String);

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        Self(error.to_string())
    }
}

impl From<GuardError> for Failure {
    fn from(error: GuardError) -> Self {
        Self(error.to_string())
    }
}
