//! Worker B: asks for the contested resource again and again, from before the fault until it has it.

use super::held::Held;
use super::judge::{Contest, Won};
use super::play::Cast;
use crate::timeline::{MarkKind, Recorder, SpanKind};
use lease_core::{Acquisition, Attempt, BootInstant, Effect, Lease, LeaseBackend, LeaseError, ResourceName, Ttl};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long B waits between two questions.
const PAUSE: Duration = Duration::from_millis(20);

/// B at work. Dropping it ends B.
pub(super) struct Contender {
    address: watch::Sender<Address>,
    shared: Arc<Mutex<Contest>>,
    task: JoinHandle<()>,
}

/// Where B asks, and since when the fault is over.
#[derive(Clone, Debug)]
struct Address {
    url: String,
    over: Option<BootInstant>,
}

impl Contender {
    /// Lets B begin to ask for what A holds.
    pub(super) fn start(cast: &Cast, a: Held, url: String, recorder: &Arc<Recorder>) -> Self {
        let url_now = url.clone();
        let (address, told) = watch::channel(Address { url, over: None });
        let shared = Arc::<Mutex<Contest>>::default();
        let b = B {
            cast: cast.clone(),
            a,
            url: url_now,
            told,
            shared: Arc::clone(&shared),
            recorder: Arc::clone(recorder),
            client: None,
            attempt: None,
        };
        Self { address, shared, task: tokio::spawn(b.ask_until_granted()) }
    }

    /// The fault is over, and B reaches the store there.
    pub(super) fn fault_is_over(&self, url: String, at: BootInstant) {
        self.address.send_replace(Address { url, over: Some(at) });
    }

    /// What B has, at the latest after `limit`.
    pub(super) async fn outcome(mut self, limit: Duration) -> Contest {
        // Whether it ended or not: what it has seen is shared.
        drop(tokio::time::timeout(limit, &mut self.task).await);
        lock(&self.shared).clone()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(shared: &Mutex<Contest>) -> MutexGuard<'_, Contest> {
    // Every change is one step: a panic elsewhere left it whole.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct B {
    cast: Cast,
    a: Held,
    told: watch::Receiver<Address>,
    /// Where `client` is connected to.
    url: String,
    shared: Arc<Mutex<Contest>>,
    recorder: Arc<Recorder>,
    client: Option<Arc<dyn LeaseBackend>>,
    /// An attempt of which nobody knows what became of it.
    attempt: Option<Attempt>,
}

impl B {
    async fn ask_until_granted(mut self) {
        loop {
            match self.ask().await {
                Ok(Some(lease)) => return self.note(&lease),
                Ok(None) => {}
                Err(error) => lock(&self.shared).last_error = Some(error.to_string()),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks once.
    async fn ask(&mut self) -> Result<Option<Lease>, LeaseError> {
        let address = self.told.borrow().clone();
        if address.url != self.url {
            // It has moved: what was asked there was asked of somebody else.
            (self.client, self.attempt) = (None, None);
            self.url.clone_from(&address.url);
        }
        let client = match &self.client {
            Some(client) => Arc::clone(client),
            None => Arc::clone(self.client.insert(self.cast.client(&address.url).await?)),
        };
        let attempt = match self.attempt.take() {
            Some(attempt) => attempt,
            None => Attempt::new(ResourceName::parse(super::CONTESTED)?, Ttl::parse(self.cast.ttl)?)?,
        };
        let in_time = !self.a.now().is_past_deadline();
        {
            let mut shared = lock(&self.shared);
            shared.tries = shared.tries.saturating_add(1);
            shared.sent_in_time = shared.sent_in_time.saturating_add(in_time.into());
        }
        match client.acquire(&attempt).await {
            Ok(Acquisition::Acquired(lease)) => Ok(Some(lease)),
            Ok(Acquisition::Held(_)) => {
                let counts = address.over.is_some() && !self.a.now().is_past_deadline();
                let mut shared = lock(&self.shared);
                shared.held_after = shared.held_after.saturating_add(counts.into());
                Ok(None)
            }
            Err(error) => {
                if error.effect() == Effect::Unknown {
                    self.attempt = Some(attempt);
                }
                Err(error)
            }
        }
    }

    fn note(&self, lease: &Lease) {
        let a = self.a.now();
        let (spare, now) = (a.remaining(), self.cast.clock.now());
        let Some(token) = lease.token().cloned() else {
            lock(&self.shared).last_error = Some("B's grant has no token".to_owned());
            return;
        };
        self.recorder.mark("B", MarkKind::Granted, format!("B is granted {}", token.value()));
        self.recorder.span_for("B", lease.remaining(), SpanKind::Held, format!("B holds {}", token.value()));
        let over = self.told.borrow().over;
        let since = over.map_or(a.deadline(), |over| over.max(a.deadline()));
        lock(&self.shared).won = Some(Won { token, spare, waited: now.saturating_since(since) });
    }
}
