//! Guards that are dropped where nothing can wait for anything.

use crate::context::{CaseResult, Stage, Stop, acquire_when_free, ensure, evidence, pause_for, release};
use crate::subject::Subject;
use lease_core::ResourceName;
use lease_core::hold::{HoldOptions, Keeper, LeaseGuard};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// More than any of these needs, even on a slow machine: it only keeps the suite from hanging.
const PATIENCE: Duration = Duration::from_mins(1);

/// Where the guard is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On a thread that knows no runtime, while the keeper's runs on.
    PlainThread,
    /// There, by a panic.
    PanickingThread,
    /// In a task, as its runtime is shut down.
    EndingRuntime,
    /// When its runtime is gone.
    BehindTheRuntime,
}

impl Place {
    const ALL: [Self; 4] = [Self::PlainThread, Self::PanickingThread, Self::EndingRuntime, Self::BehindTheRuntime];

    /// Whether somebody is left to release it.
    fn leaves_a_runtime(self) -> bool {
        matches!(self, Self::PlainThread | Self::PanickingThread)
    }
}

pub(super) async fn anywhere(stage: Stage) -> CaseResult {
    let other = stage.client().await?;
    let mut dropped = Vec::new();
    for place in Place::ALL {
        for workers in [0, 2] {
            let what = format!("{place:?}, {workers} workers");
            let name = stage.resource(&what)?;
            let (ttl, granted) = if place.leaves_a_runtime() {
                // Minutes: only a release can free it in time.
                (stage.run.long(), Duration::ZERO)
            } else {
                (stage.run.short(), stage.run.short_granted())
            };
            let (subject, own) = (Arc::clone(&stage.run.subject), name.clone());
            let ended = ended(move || hold_and_drop(subject.as_ref(), &own, ttl.duration(), (place, workers))).await;
            let runtime = ended.map_err(|why| Stop::Refuted(format!("{what}: {why}")))??;
            let next = acquire_when_free(&stage, &other, &name, stage.run.long(), granted).await?;
            release(&other, &next).await?;
            let shut_down = self::ended(move || drop(runtime)).await;
            shut_down.map_err(|why| Stop::Refuted(format!("{what}, and then the runtime: {why}")))?;
            dropped.push(what);
        }
    }
    Ok(evidence! { "dropped": dropped })
}

/// Runs `work` on a plain thread, which has to end, and not by a panic.
async fn ended<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, &'static str> {
    let thread = std::thread::spawn(work);
    let joined = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(move || thread.join())).await;
    match joined {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(_) => Err("dropping the guard panicked"),
        Err(_) => Err("dropping the guard has not ended within a minute"),
    }
}

/// Holds a lease in a runtime of its own and drops the guard; what is left of the runtime is returned.
fn hold_and_drop(
    subject: &dyn Subject,
    name: &ResourceName,
    ttl: Duration,
    (place, workers): (Place, usize),
) -> Result<Option<Runtime>, Stop> {
    let mut builder = if workers == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    let runtime = builder.enable_all().build().map_err(|e| Stop::NotTried(format!("no runtime: {e}")))?;
    let guard = runtime.block_on(hold(subject, name, ttl))?;
    match place {
        Place::PlainThread => drop(guard),
        Place::PanickingThread => panic_with(guard)?,
        Place::EndingRuntime => {
            runtime.spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            drop(runtime);
            return Ok(None);
        }
        Place::BehindTheRuntime => {
            drop(runtime);
            drop(guard);
            return Ok(None);
        }
    }
    if workers == 0 {
        // Such a runtime runs only while somebody waits in it: for the release that the guard asked for.
        runtime.block_on(pause_for(Duration::from_millis(500)));
    }
    Ok(Some(runtime))
}

async fn hold(subject: &dyn Subject, name: &ResourceName, ttl: Duration) -> Result<LeaseGuard, Stop> {
    let client = subject.client().await.map_err(|e| Stop::NotTried(format!("cannot connect: {e}")))?;
    let guard = Keeper::start(client)?.acquire(name.as_str(), ttl, HoldOptions::default()).await?;
    guard.ok_or_else(|| Stop::Refuted(format!("{name} should be free")))
}

/// Without the message of a panic, which would be in the way of the report.
fn panic_with(guard: LeaseGuard) -> Result<(), Stop> {
    let thread = std::thread::spawn(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("on purpose"))
    });
    let ended: Result<(), _> = thread.join();
    ensure!(ended.is_err(), "a thread that panicked ended well");
    Ok(())
}
