//! A job under `run`: one that ends, one that fails, and one whose lease is lost while it works.
//!
//! ```text
//! cargo run -p leasehold --example job_under_run
//! ```
//!
//! In memory and on virtual time, so that half a minute passes at once and always in the same way. The store falls silent as scripted.

#![expect(clippy::print_stdout, reason = "the timeline is what this program is for")]

use leasehold::hold::{HoldOptions, Keeper, LeaseGuard, RunError, StaleBehaviour};
use leasehold::memory::{MemoryBackend, MemoryStore};
use leasehold::testing::{Fault, Scripted};
use leasehold::{BootInstant, Clock as _, ManualClock, Operation};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(9);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let time = Timeline::begin();
    let store = MemoryBackend::on(MemoryStore::on_clock(time.clock.shared())?);
    let store = Arc::new(Scripted::new(Arc::new(store)));
    let keeper = Keeper::start(store.clone())?;
    let acquire = async || {
        let guard = keeper.acquire("report", TTL, HoldOptions::default()).await?.ok_or("somebody else has it")?;
        Ok::<_, Box<dyn Error>>(guard)
    };

    // Twenty pages take longer than two TTLs: the keeper renews meanwhile.
    outcome(&time, "ends", acquire().await?, Job { pages: 20, breaks_at: None }).await?;
    outcome(&time, "fails", acquire().await?, Job { pages: 20, breaks_at: Some(3) }).await?;

    let guard = acquire().await?;
    store.always(Operation::Renew, Some(Fault::Silent));
    outcome(&time, "is lost", guard, Job { pages: 20, breaks_at: None }).await?;

    store.always(Operation::Renew, None);
    time.pass(Duration::from_secs(1)).await;
    outcome(&time, "is next", acquire().await?, Job { pages: 2, breaks_at: None }).await
}

/// Runs the job and tells the three ways it can end, each of which calls for something else.
async fn outcome(time: &Timeline, name: &str, guard: LeaseGuard, job: Job) -> Result<(), Box<dyn Error>> {
    time.tell(name, format_args!("acquired, token {}", guard.token().map_or(0, leasehold::FencingToken::value)));
    match guard.run(async |guard| job.work(time, guard).await).await {
        Ok(pages) => time.tell(name, format_args!("done: {pages} pages")),
        // The lease was held all the time: the job's own failure, to be reported as such.
        Err(RunError::Work(error)) => time.tell(name, format_args!("failed by itself: {error}")),
        // Another worker may have begun: nothing more is done here, and nothing is known of what had been sent.
        Err(RunError::Lost(loss)) => time.tell(name, format_args!("stopped: {}", loss.cause())),
    }
    // Of a lost lease too: where the store has it still, the next worker need not wait for the TTL.
    let answer = guard.release().await?;
    time.tell(name, format_args!("{answer:?}"));
    Ok(())
}

struct Job {
    pages: u32,
    breaks_at: Option<u32>,
}

impl Job {
    /// One page a second. Each is new protected work, so each asks for a permit.
    async fn work(&self, time: &Timeline, guard: &LeaseGuard) -> Result<u32, Box<dyn Error>> {
        for page in 1..=self.pages {
            let permit = guard.permit(StaleBehaviour::Fenced)?;
            time.pass(Duration::from_secs(1)).await;
            if Some(page) == self.breaks_at {
                return Err(format!("page {page} is missing").into());
            }
            permit.committed();
        }
        Ok(self.pages)
    }
}

/// Virtual time, and what happened when.
struct Timeline {
    clock: ManualClock,
    begun: BootInstant,
}

impl Timeline {
    fn begin() -> Self {
        let clock = ManualClock::new();
        Self { begun: clock.now(), clock }
    }

    /// Lets time pass in steps, and everybody else act in each.
    async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(50);
        let end = self.clock.now().saturating_add(time);
        while self.clock.now() < end {
            self.clock.advance(step);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn tell(&self, who: &str, what: std::fmt::Arguments<'_>) {
        let seconds = self.clock.now().saturating_since(self.begun).as_secs_f64();
        println!("{seconds:6.2} s  {who:8} {what}");
    }
}
