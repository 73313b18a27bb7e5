//! What a worker does in a soak: it acquires, seals, reads, writes, dawdles, renews, releases and forgets, as its seed says.

use super::journal::{Journal, Noted, NotedDestination};
use super::note::{Orders, value};
use super::random::Random;
use crate::subject::TestDestination;
use crate::worker::Outlet;
use lease_core::hold::{HoldOptions, Keeper, StaleBehaviour};
use lease_core::{
    Acquisition, Attempt, Effect, FencingToken, GuardError, Lease, LeaseBackend, LeaseError, Renewal, ResourceName, Ttl,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Work under way.
#[derive(Debug)]
pub(crate) struct Work {
    over: Arc<AtomicBool>,
    hands: JoinSet<Result<(), String>>,
}

impl Work {
    /// Begins.
    ///
    /// # Errors
    /// Orders that cannot be followed.
    pub(crate) fn begin(
        orders: &Orders,
        backend: Arc<dyn LeaseBackend>,
        destination: Arc<dyn TestDestination>,
        outlet: Outlet,
    ) -> Result<Self, String> {
        let journal = Arc::new(Journal::new(outlet));
        let noted: Arc<dyn LeaseBackend> = Arc::new(Noted { inner: backend, journal: Arc::clone(&journal) });
        let names = orders.names.iter().map(ResourceName::parse).collect::<Result<Vec<_>, _>>();
        let desk = Arc::new(Desk {
            names: names.map_err(|e| e.to_string())?,
            ttl: Ttl::parse(Duration::from_millis(orders.ttl_ms)).map_err(|e| e.to_string())?,
            worker: orders.worker.clone(),
            keeper: Keeper::start(Arc::clone(&noted)).map_err(|e| e.to_string())?,
            backend: noted,
            destination: NotedDestination { inner: destination, journal },
            over: Arc::default(),
            writes: AtomicU64::new(0),
        });
        let mut hands = JoinSet::new();
        for hand in 0..orders.hands {
            let random = Random::of(orders.seed, hand.into());
            hands.spawn(Hand { desk: Arc::clone(&desk), random }.work());
        }
        Ok(Self { over: Arc::clone(&desk.over), hands })
    }

    /// Ends it, and waits for what is under way.
    ///
    /// # Errors
    /// When some of it ended by itself.
    pub(crate) async fn end(mut self) -> Result<(), String> {
        self.over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.hands.join_next().await {
            ended.map_err(|e| format!("the work ended by itself: {e}"))??;
        }
        Ok(())
    }
}

/// What all hands of a worker share.
#[derive(Debug)]
struct Desk {
    names: Vec<ResourceName>,
    ttl: Ttl,
    worker: String,
    backend: Arc<dyn LeaseBackend>,
    keeper: Keeper,
    destination: NotedDestination,
    over: Arc<AtomicBool>,
    writes: AtomicU64,
}

struct Hand {
    desk: Arc<Desk>,
    random: Random,
}

impl Hand {
    async fn work(mut self) -> Result<(), String> {
        while !self.desk.over.load(Ordering::SeqCst) {
            let name = self.random.pick(&self.desk.names).ok_or("no names to work on")?.clone();
            match self.random.below(10) {
                0 => drop(self.desk.destination.read(&name).await),
                1..=5 => self.by_hand(&name).await?,
                _ => self.by_keeper(&name).await,
            }
            self.dawdle(1, 10).await;
        }
        Ok(())
    }

    /// A holder that calls the backend itself.
    async fn by_hand(&mut self, name: &ResourceName) -> Result<(), String> {
        let attempt = Attempt::new(name.clone(), self.desk.ttl).map_err(|e| e.to_string())?;
        let Some(mut lease) = self.acquire(&attempt).await else { return Ok(()) };
        let mut on = match lease.token() {
            Some(token) => self.opened(name, &token.clone()).await,
            None => None,
        };
        for _ in 0..self.random.between(1, 4) {
            self.dawdle_in_lease().await;
            if self.random.chance(60)
                && let Ok(Renewal::Renewed(renewed)) = self.desk.backend.renew(&lease).await
            {
                lease = renewed;
            }
            // Also past its deadline, as a worker that has not looked: the guard decides.
            if let (Some(read), Some(token)) = (on.take(), lease.token().cloned()) {
                on = self.write(name, &token, read).await;
            }
        }
        self.give_up(&attempt, &lease).await;
        Ok(())
    }

    /// Acquires; repeats the same attempt when nobody knows, or abandons it.
    async fn acquire(&mut self, attempt: &Attempt) -> Option<Lease> {
        loop {
            match self.desk.backend.acquire(attempt).await {
                Ok(Acquisition::Acquired(lease)) => return Some(lease),
                Ok(Acquisition::Held(_)) => return None,
                Err(error) if error.effect() == Effect::None => {
                    self.dawdle(20, 60).await;
                    return None;
                }
                Err(_) if self.random.chance(30) || self.desk.over.load(Ordering::SeqCst) => {
                    // Whatever came of it is in its note.
                    drop(self.desk.backend.abandon(attempt).await);
                    return None;
                }
                Err(_) => self.dawdle(10, 60).await,
            }
        }
    }

    /// Seals, then reads: what the register holds, for a writer that may go on.
    async fn opened(&self, name: &ResourceName, token: &FencingToken) -> Option<Option<String>> {
        self.desk.destination.seal(name, token).await.ok()?;
        self.desk.destination.read(name).await.ok()
    }

    /// Writes, computed from `read`; what the register holds then, for a writer that may go on.
    async fn write(&self, name: &ResourceName, token: &FencingToken, read: Option<String>) -> Option<Option<String>> {
        let number = self.desk.writes.fetch_add(1, Ordering::SeqCst);
        let tag = format!("{}.{number}", self.desk.worker);
        let written = self.desk.destination.write(name, token, &value(&tag, read.as_deref())).await;
        match written {
            Ok(()) => Some(Some(tag)),
            // Refused: the worker stops. In doubt: it must not build on what it does not know.
            Err(GuardError::Refused { .. } | _) => None,
        }
    }

    /// Releases, abandons, or forgets about it.
    async fn give_up(&mut self, attempt: &Attempt, lease: &Lease) {
        match self.random.below(10) {
            0 | 1 => {}
            2 => drop(self.desk.backend.abandon(attempt).await),
            _ => drop::<Result<_, LeaseError>>(self.desk.backend.release(lease).await),
        }
    }

    /// A holder that leaves renewing to a keeper, and writes with permits; one more time after a loss, as a worker that was stuck.
    async fn by_keeper(&mut self, name: &ResourceName) {
        let keeper = self.desk.keeper.clone();
        let ttl = self.desk.ttl.duration();
        let wait = Duration::from_millis(self.random.between(0, 60));
        let got = keeper.acquire_within(name.as_str(), ttl, wait, HoldOptions::default()).await;
        let Ok(Some(guard)) = got else { return };
        let Some(token) = guard.token().cloned() else { return };
        let mut on = self.opened(name, &token).await;
        for _ in 0..self.random.between(1, 4) {
            self.dawdle_in_lease().await;
            let permit = guard.permit(StaleBehaviour::Fenced);
            if let Some(read) = on.take() {
                on = self.write(name, &token, read).await;
            }
            if permit.is_err() {
                break;
            }
        }
        // Dropped or released; both end it.
        if self.random.chance(70) {
            drop(guard.release().await);
        }
    }

    /// Mostly a part of the TTL; one time in twelve longer than it.
    async fn dawdle_in_lease(&mut self) {
        let ttl = u64::try_from(self.desk.ttl.duration().as_millis()).unwrap_or(u64::MAX);
        let stuck = self.random.chance(8) && !self.desk.over.load(Ordering::SeqCst);
        let (from, to) = if stuck { (ttl, ttl.saturating_add(ttl / 2)) } else { (0, ttl / 12) };
        self.dawdle(from, to).await;
    }

    async fn dawdle(&mut self, from_ms: u64, to_ms: u64) {
        tokio::time::sleep(Duration::from_millis(self.random.between(from_ms, to_ms))).await;
    }
}
