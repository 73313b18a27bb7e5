//! What is done in the background for calls and guards that are gone. Best effort: the TTL ends what it does not.

use super::grant::Grant;
use super::{events, spans};
use crate::{Advice, Attempt, LeaseBackend, LeaseError, SharedClock};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How often it is tried, in some seconds and the time that the calls take: an outage may be short, and the first try often finds out only
/// that the connection is broken.
const TRIES: u32 = 10;

/// How many are under way at one time: as many as keep any of the stores busy.
const AT_ONCE: usize = 64;

/// How many wait beside those under way. A process that gives up ten thousand leases at once loses none of their releases, and one that goes on
/// acquiring while the store is silent does not grow for ever.
const WAITING: usize = 10_000;

/// One thing to do.
#[derive(Debug)]
pub(super) enum CleanUp {
    /// The guard was dropped, and the store may still have the grant.
    Release(Arc<Grant>),
    /// Nobody waits for this attempt any more.
    Abandon(Attempt),
}

/// The things to do: some under way, some that wait, never more of either than the limits above.
pub(super) struct CleanUps {
    backend: Arc<dyn LeaseBackend>,
    clock: SharedClock,
    under_way: JoinSet<()>,
    waiting: VecDeque<CleanUp>,
}

impl CleanUps {
    pub(super) fn new(backend: Arc<dyn LeaseBackend>) -> Self {
        Self { clock: backend.clock(), backend, under_way: JoinSet::new(), waiting: VecDeque::new() }
    }

    /// Takes one more. Where that is one too many, the one that has waited longest is left to its TTL, which ends first.
    pub(super) fn add(&mut self, clean_up: CleanUp) {
        self.waiting.push_back(clean_up);
        self.begin();
        if self.waiting.len() > WAITING
            && let Some(oldest) = self.waiting.pop_front()
        {
            events::clean_up_dropped(&oldest);
        }
    }

    /// Waits until one is done, and begins the next; `None` when nothing is left to do.
    ///
    /// # Cancel safety
    /// Nothing is lost: what is done is taken out in the same step in which the next one begins.
    pub(super) async fn next(&mut self) -> Option<()> {
        // One that panicked is done, too.
        let _done = self.under_way.join_next().await?;
        self.begin();
        Some(())
    }

    fn begin(&mut self) {
        while self.under_way.len() < AT_ONCE
            && let Some(clean_up) = self.waiting.pop_front()
        {
            self.under_way.spawn(carry_out(Arc::clone(&self.backend), Arc::clone(&self.clock), clean_up));
        }
    }
}

async fn carry_out(backend: Arc<dyn LeaseBackend>, clock: SharedClock, clean_up: CleanUp) {
    let span = spans::clean_up(&clean_up);
    match clean_up {
        CleanUp::Release(grant) => {
            let release = async {
                let lease = grant.lease();
                let answer = repeated(&clock, || backend.release(&lease)).await;
                match &answer {
                    // A lost one has had its last event.
                    Ok(answer) if grant.is_ended() => events::released(&lease, *answer, grant.held_for()),
                    Ok(_) => {}
                    Err(error) => events::release_failed(&lease, error),
                }
                answer
            };
            drop(spans::within(span, spans::released, release).await);
        }
        CleanUp::Abandon(attempt) => {
            let abandon = repeated(&clock, || backend.abandon(&attempt));
            drop(spans::within(span, spans::abandoned, abandon).await);
        }
    }
}

/// Calls until it is done, or repeating does not help.
///
/// # Errors
/// The last one.
async fn repeated<T, F>(clock: &SharedClock, call: impl Fn() -> F) -> Result<T, LeaseError>
where
    F: Future<Output = Result<T, LeaseError>>,
{
    let mut pause = Duration::from_millis(20);
    for _ in 1..TRIES {
        match call().await {
            Err(error) if error.advice() == Advice::TryAgain => {}
            settled => return settled,
        }
        clock.sleep_until(clock.now().saturating_add(pause)).await;
        pause = pause.saturating_mul(2).min(Duration::from_secs(1));
    }
    call().await
}
