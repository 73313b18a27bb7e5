//! Writers that race at a guarded destination: check and write are one step, or the newer write is lost.

use super::{AtPlace, authority, token};
use crate::cases::{Case, case};
use crate::context::{CaseResult, Stop, ensure, evidence, now, pause_for, refute};
use crate::history::RecordedDestination;
use crate::judge::Rule;
use lease_core::{FencingToken, GuardError, GuardedDestination, ResourceName};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(in crate::cases) const CASES: &[Case] = &[case!(
    AtPlace,
    racing,
    Rule::Core,
    "destination/racing-writers",
    "Of writers that race, the one with the largest token has the last word.",
    "Three handles write with an older token again and again until they are refused, while a third one writes once with a newer token, at a moment of its own in each round. That write must be admitted, and its content and mark be what is left."
)];

/// So many that a guard which checks and writes in two steps, and shows it in one round of three, gets away once in ten million runs.
const ROUNDS: u64 = 40;

async fn racing(at: AtPlace) -> CaseResult {
    let namespace = at.stage.run.namespace();
    let newer = at.open(&namespace).await?;
    newer.adopt(None, &authority("a")?).await?;
    let older = [at.open(&namespace).await?, at.open(&namespace).await?, at.open(&namespace).await?];
    let resource = at.resource()?;
    let mut old_writes = 0_u64;
    for round in 1..=ROUNDS {
        let (old, new) = (round.saturating_mul(2), round.saturating_mul(2).saturating_add(1));
        let (old, last) = (token(old, old)?, token(new, new)?);
        let admitted = Arc::new(AtomicU64::new(0));
        let tasks = older.clone().map(|handle| {
            let (resource, old, admitted) = (resource.clone(), old.clone(), Arc::clone(&admitted));
            tokio::spawn(async move { until_refused(&handle, &resource, &old, &admitted).await })
        });
        // In the middle of their writes, at a moment of its own.
        under_way(&admitted, at.stage.run.random() % 4).await?;
        pause_for(Duration::from_micros(at.stage.run.random() % 3_000)).await;
        newer.write(&resource, &last, &text(&last)).await?;
        for task in tasks {
            task.await.map_err(|e| Stop::Refuted(format!("a writer panicked: {e}")))??;
        }
        old_writes = old_writes.saturating_add(admitted.load(Ordering::SeqCst));
        let stored = newer.read(&resource).await?;
        ensure!(
            stored.value == Some(text(&last)) && stored.mark == Some((last.value(), last.grant())),
            "round {round}: {last} was admitted, nothing newer was sent, and what is left is {stored:?}"
        );
    }
    Ok(evidence! { "rounds": ROUNDS, "old_writes_admitted": old_writes })
}

fn text(token: &FencingToken) -> String {
    format!("written with {}", token.value())
}

/// How long a round may take at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until more than `writes` of the older writes were admitted.
async fn under_way(admitted: &AtomicU64, writes: u64) -> Result<(), Stop> {
    let end = now().saturating_add(PATIENCE);
    while admitted.load(Ordering::SeqCst) <= writes {
        ensure!(now() < end, "no more than {writes} writes were admitted within {PATIENCE:?}");
        pause_for(Duration::from_micros(200)).await;
    }
    Ok(())
}

/// Writes again and again until the guard refuses it, as it must once a newer write was admitted.
async fn until_refused(
    handle: &RecordedDestination,
    resource: &ResourceName,
    token: &FencingToken,
    admitted: &AtomicU64,
) -> Result<(), Stop> {
    let end = now().saturating_add(PATIENCE);
    loop {
        match handle.write(resource, token, &text(token)).await {
            Ok(()) => {
                admitted.fetch_add(1, Ordering::SeqCst);
            }
            Err(GuardError::Refused { .. }) => return Ok(()),
            Err(error) => refute!("a write with {token} failed: {error}"),
        }
        ensure!(now() < end, "a write with {token} was never refused");
        tokio::task::yield_now().await;
    }
}
