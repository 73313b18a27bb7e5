//! Writers that race at a guarded destination: check and write are one step, or the newer write is lost.

use super::{AtPlace, authority, token};
use crate::cases::{Case, case};
use crate::context::{CaseResult, Stop, ensure, evidence, now, pause_for, refute};
use crate::history::RecordedDestination;
use crate::judge::Rule;
use lease_core::{FencingToken, GuardError, GuardedDestination, ResourceName};
use std::time::Duration;

pub(in crate::cases) const CASES: &[Case] = &[case!(
    AtPlace,
    racing,
    Rule::Core,
    "destination/racing-writers",
    "Of writers that race, the one with the largest token has the last word.",
    "Two handles write with older tokens again and again until they are refused, while a third one writes once with a newer token, at a moment of its own in each round. That write must be admitted, and its content and mark be what is left."
)];

const ROUNDS: u64 = 20;

async fn racing(at: AtPlace) -> CaseResult {
    let namespace = at.stage.run.namespace();
    let newer = at.open(&namespace).await?;
    newer.adopt(None, &authority("a")?).await?;
    let older = [at.open(&namespace).await?, at.open(&namespace).await?];
    let resource = at.resource()?;
    let mut old_writes = 0_u64;
    for round in 1..=ROUNDS {
        let value = |n: u64| round.saturating_mul(10).saturating_add(n);
        let tasks: Vec<_> = (1..)
            .zip(older.clone())
            .map(|(n, handle)| {
                let (resource, token) = (resource.clone(), token(value(n), value(n)));
                tokio::spawn(async move { until_refused(&handle, &resource, &token?).await })
            })
            .collect();
        pause_for(Duration::from_micros(at.stage.run.random() % 3_000)).await;
        let last = token(value(3), value(3))?;
        newer.write(&resource, &last, &text(&last)).await?;
        for task in tasks {
            let written = task.await.map_err(|e| Stop::Refuted(format!("a writer panicked: {e}")))??;
            old_writes = old_writes.saturating_add(written);
        }
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

/// Writes again and again until the guard refuses it, as it must once a newer write was admitted; returns how many were admitted.
async fn until_refused(
    handle: &RecordedDestination,
    resource: &ResourceName,
    token: &FencingToken,
) -> Result<u64, Stop> {
    let end = now().saturating_add(Duration::from_secs(30));
    let mut admitted = 0_u64;
    loop {
        match handle.write(resource, token, &text(token)).await {
            Ok(()) => admitted = admitted.saturating_add(1),
            Err(GuardError::Refused { .. }) => return Ok(admitted),
            Err(error) => refute!("a write with {token} failed: {error}"),
        }
        ensure!(now() < end, "a write with {token} was never refused");
        tokio::task::yield_now().await;
    }
}
