//! Faults between a client and its store: what a [`Subject`](crate::subject::Subject) gives the suite to disturb the path with.
//!
//! The program puts a TCP proxy before each server. Everything else gets [`at_calls`]: faults at the backend's own calls, which
//! lose a request or an answer between the caller and the adapter. They show what the values of `lease-core` and the store make of it,
//! not what a client crate does.

mod client;
mod path;

use client::Disturbed;
use lease_core::{LeaseBackend, LeaseError, ResourceName};
use path::CallPath;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnceFault {
    /// It never reaches the store, and the connection breaks.
    RequestLost,
    /// The store carries it out; the connection breaks before the client sees the reply.
    ReplyLost,
    /// The store carries it out; the connection stays, and silent for good.
    ReplySwallowed,
    /// It is kept until [`FaultyPath::deliver`]; the client gets no reply, also afterwards.
    RequestHeld,
    /// The store carries it out; the reply is kept until [`FaultyPath::deliver`].
    ReplyHeld,
}

/// The way between a client and its store.
pub trait FaultyPath: fmt::Debug + Send + Sync {
    /// What it is, for the evidence: `tcp proxy`, `calls`.
    fn kind(&self) -> &'static str;

    /// Arms a fault for the request after the next `passed` ones, instead of one that was armed before. An operation may send
    /// several requests, and a client some of its own, so sweep `passed` from 0 on.
    fn once_after(&self, passed: u32, fault: OnceFault);

    /// Whether the fault that was armed last has happened: the witness.
    fn happened(&self) -> bool;

    /// Swallows everything in both directions, or passes it again. Connections from which something was swallowed are cut at the end of
    /// it: no real path goes on with a hole in its stream.
    fn black_hole(&self, on: bool);

    /// Cuts every connection.
    fn cut(&self);

    /// Refuses new connections, or takes them again.
    fn refuse(&self, on: bool);

    /// Delivers what was held.
    fn deliver(&self);

    /// Takes an armed fault back, ends a black hole (whoever it swallowed something from is cut, as by [`black_hole`](Self::black_hole)) and
    /// refusals, and delivers what was held.
    fn heal(&self);

    /// How many requests and replies have arrived at the path: the witness that something was on its way.
    fn counts(&self) -> (u64, u64);
}

impl dyn FaultyPath + '_ {
    /// Arms a fault for the next request, instead of one that was armed before.
    pub fn once(&self, fault: OnceFault) {
        self.once_after(0, fault);
    }
}

/// Clients of the subject's store behind one path that can be disturbed.
#[async_trait::async_trait]
pub trait FaultBench: fmt::Debug + Send + Sync {
    /// A new client behind the path.
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError>;

    /// The URL for workers in processes of their own, behind the path; `None`: the path cannot be used from there.
    fn worker_url(&self) -> Option<String>;

    /// The path.
    fn path(&self) -> &dyn FaultyPath;
}

/// An administrator's hands on the store's records.
#[async_trait::async_trait]
pub trait HandEdit: fmt::Debug + Send + Sync {
    /// Deletes the record of a resource's lease behind the backend's back. What else the store keeps stays.
    async fn delete_record(&self, resource: &ResourceName) -> Result<(), LeaseError>;
}

/// A bench whose faults are at the calls of `client`: for a store in this process, in a file, or behind a path that cannot be reached.
/// Every call ends after `call_timeout` at the latest. Writes through the backend's fence are not disturbed.
#[must_use]
pub fn at_calls(client: Arc<dyn LeaseBackend>, call_timeout: Duration) -> Arc<dyn FaultBench> {
    Arc::new(Calls { client, call_timeout, path: Arc::default() })
}

#[derive(Debug)]
struct Calls {
    client: Arc<dyn LeaseBackend>,
    call_timeout: Duration,
    path: Arc<CallPath>,
}

#[async_trait::async_trait]
impl FaultBench for Calls {
    async fn client(&self) -> Result<Arc<dyn LeaseBackend>, LeaseError> {
        let (inner, path) = (Arc::clone(&self.client), Arc::clone(&self.path));
        Ok(Arc::new(Disturbed { inner, path, call_timeout: self.call_timeout }))
    }

    fn worker_url(&self) -> Option<String> {
        None
    }

    fn path(&self) -> &dyn FaultyPath {
        self.path.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lease_core::memory::{MemoryBackend, MemoryStore};
    use lease_core::{Acquisition, Attempt, ErrorKind, ForceRelease, HolderLabel, Ttl};

    #[tokio::test]
    async fn a_force_release_that_is_held_arrives_when_it_is_delivered() {
        let direct: Arc<dyn LeaseBackend> = Arc::new(MemoryBackend::on(MemoryStore::new().unwrap()));
        let bench = at_calls(Arc::clone(&direct), Duration::from_millis(50));
        let (path, client) = (bench.path(), bench.client().await.unwrap());
        let resource = ResourceName::parse("r").unwrap();
        let attempt = Attempt::new(resource.clone(), Ttl::parse(Duration::from_mins(1)).unwrap()).unwrap();
        let Acquisition::Acquired(lease) = direct.acquire(&attempt).await.unwrap() else { panic!("it is free") };
        let who = HolderLabel::parse("a test").unwrap();
        let order = ForceRelease::new(resource.clone(), lease.token().unwrap().value(), who, "a test").unwrap();

        path.once(OnceFault::RequestHeld);
        let answer = client.force_release(&order).await;
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Transport);
        assert!(path.happened() && direct.inspect(&resource).await.unwrap().held.is_some(), "it is on its way");
        let (_, before) = path.counts();
        path.deliver();
        while path.counts().1 == before {
            tokio::task::yield_now().await;
        }
        assert!(direct.inspect(&resource).await.unwrap().held.is_none(), "it has not arrived");
    }

    #[tokio::test]
    async fn healing_cuts_what_was_swallowed_and_nothing_else() {
        let direct: Arc<dyn LeaseBackend> = Arc::new(MemoryBackend::on(MemoryStore::new().unwrap()));
        // So long that only the cut ends a call.
        let bench = at_calls(direct, Duration::from_hours(1));
        let client = bench.client().await.unwrap();
        let ask = || {
            let client = Arc::clone(&client);
            tokio::spawn(async move { client.inspect(&ResourceName::parse("r").unwrap()).await })
        };
        bench.path().once(OnceFault::ReplyHeld);
        let held = ask();
        while !bench.path().happened() {
            tokio::task::yield_now().await;
        }
        bench.path().black_hole(true);
        let (requests, _) = bench.path().counts();
        let swallowed = ask();
        while bench.path().counts().0 == requests {
            tokio::task::yield_now().await;
        }
        bench.path().heal();
        assert_eq!(swallowed.await.unwrap().unwrap_err().kind(), ErrorKind::Transport);
        held.await.unwrap().unwrap();
    }
}
