//! What is left of a guard that is released, dropped or lost.

use super::shifted::Shifted;
use crate::context::{
    CaseResult, Stage, Stop, acquire_when_free, ensure, evidence, now, part, pause_for, refute, release,
};
use crate::history::Recorded;
use lease_core::hold::{HoldOptions, Keeper, LeaseGuard};
use lease_core::{Release, ResourceName, Ttl};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// More than any of these needs, even on a slow machine: it only keeps the suite from hanging.
const PATIENCE: Duration = Duration::from_secs(30);

async fn bounded<T>(what: &str, work: impl Future<Output = T>) -> Result<T, Stop> {
    let ended = tokio::time::timeout(PATIENCE, work).await;
    ended.map_err(|_| Stop::Refuted(format!("{what} within {PATIENCE:?}")))
}

pub(super) async fn held(keeper: &Keeper, name: &ResourceName, ttl: Ttl) -> Result<LeaseGuard, Stop> {
    let guard = keeper.acquire(name.as_str(), ttl.duration(), HoldOptions::default()).await?;
    guard.ok_or_else(|| Stop::Refuted(format!("{name} should be free")))
}

/// Takes the lease as soon as it is free, which must be long before any TTL.
async fn soon_free(stage: &Stage, client: &Recorded, name: &ResourceName) -> Result<(), Stop> {
    let lease = acquire_when_free(stage, client, name, stage.run.long(), Duration::ZERO).await?;
    release(client, &lease).await
}

const ROUNDS: u64 = 500;
const LANES: u64 = 10;

pub(super) async fn release_during_renewal(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let overlapped = Arc::new(AtomicU64::new(0));
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| tokio::spawn(releases(stage.clone(), client.clone(), lane, Arc::clone(&overlapped))))
        .collect();
    let mut late = Vec::new();
    for lane in lanes {
        late.extend(lane.await.map_err(|e| Stop::Refuted(format!("a lane ended by itself: {e}")))??);
    }
    let overlapped = overlapped.load(Ordering::SeqCst);
    ensure_overlap(overlapped)?;
    // Now every guard is gone. Where a renewal was left behind, it would be due.
    let begun = |all: &[Shifted]| all.iter().map(|one| one.counts.begun()).sum::<u64>();
    pause_for(Duration::from_millis(100)).await;
    let before = begun(&late);
    for shifted in &late {
        shifted.advance(stage.run.long().duration());
    }
    pause_for(Duration::from_millis(100)).await;
    let after = begun(&late).saturating_sub(before);
    ensure!(after == 0, "{after} renewals began after every guard had gone");
    Ok(evidence! { "rounds": ROUNDS, "renewal_under_way_at_release": overlapped, "renewals": before })
}

fn ensure_overlap(overlapped: u64) -> Result<(), Stop> {
    if overlapped < ROUNDS / 20 {
        return Err(Stop::NotTried(format!("only {overlapped} of {ROUNDS} releases came during a renewal")));
    }
    Ok(())
}

async fn releases(stage: Stage, client: Recorded, lane: u64, overlapped: Arc<AtomicU64>) -> Result<Vec<Shifted>, Stop> {
    let name = stage.resource(&lane.to_string())?;
    let ttl = stage.run.long();
    let third = part(ttl.duration(), 3);
    let mut all = Vec::new();
    for round in 0..ROUNDS / LANES {
        let shifted = Shifted::new(Arc::new(client.clone()));
        let keeper = Keeper::start(Arc::new(shifted.clone()))?;
        let guard = held(&keeper, &name, ttl).await?;
        shifted.advance(third);
        if round % 4 != 0 {
            bounded("no renewal began", shifted.counts.first()).await?;
        }
        for _ in 0..stage.run.random() % 12 {
            tokio::task::yield_now().await;
        }
        ensure!(guard.loss().is_none(), "round {round}: lost ({:?}) before it was released", guard.loss());
        if shifted.counts.under_way() > 0 {
            overlapped.fetch_add(1, Ordering::SeqCst);
        }
        let answer = guard.release().await?;
        ensure!(answer == Release::Released, "round {round}: the release of a live guard was answered by {answer:?}");
        all.push(shifted);
    }
    Ok(all)
}

pub(super) async fn drop_frees(stage: Stage) -> CaseResult {
    let (client, other) = stage.two_clients().await?;
    let name = stage.resource("r")?;
    let keeper = Keeper::start(Arc::new(client))?;
    let guard = held(&keeper, &name, stage.run.long()).await?;
    let begun = now();
    drop(guard);
    soon_free(&stage, &other, &name).await?;
    Ok(evidence! { "free_after_ms": crate::context::millis(now().saturating_since(begun)) })
}

/// The lease as soon as it is free, and the client has found the store.
async fn held_soon(keeper: &Keeper, name: &ResourceName, ttl: Ttl, wait: Duration) -> Result<LeaseGuard, Stop> {
    let end = now().saturating_add(wait);
    loop {
        match keeper.acquire_within(name.as_str(), ttl.duration(), wait, HoldOptions::default()).await {
            Ok(Some(guard)) => return Ok(guard),
            Ok(None) => refute!("{name} was not free within {wait:?}"),
            Err(error) if now() >= end => return Err(error.into()),
            Err(_) => pause_for(Duration::from_millis(50)).await,
        }
    }
}

pub(super) async fn second_is_renewed(stage: Stage) -> CaseResult {
    let bench = stage.run.subject.fault_bench(Duration::from_secs(1)).await;
    let bench = bench.ok_or_else(|| Stop::NotTried("the subject has no path that can be disturbed".into()))?;
    let bench = bench.map_err(|e| Stop::NotTried(format!("the disturbed path is not there: {e}")))?;
    let shifted = Shifted::new(bench.client().await?);
    let keeper = Keeper::start(Arc::new(shifted.clone()))?;
    let name = stage.resource("r")?;
    let limits = stage.run.limits;
    let asked = Duration::from_millis(1_500).max(limits.min_ttl).min(limits.max_ttl);
    let ttl = Ttl::parse(asked).map_err(Stop::from)?;
    let wait = stage.run.freed_within(limits.granted_ttl(ttl)?);
    let first = held_soon(&keeper, &name, ttl, wait).await?;
    bench.path().black_hole(true);
    let loss = bounded("no loss", first.lost()).await?;
    bench.path().black_hole(false);
    let second = held_soon(&keeper, &name, ttl, wait).await?;
    let before = shifted.counts.renewed();
    let renewed = || shifted.counts.renewed().saturating_sub(before);
    while renewed() < 3 && second.loss().is_none() {
        pause_for(Duration::from_millis(20)).await;
    }
    ensure!(renewed() > 0, "the second lease was never renewed, and lost: {:?}", second.loss());
    ensure!(first.loss() == Some(loss.clone()), "the first guard's loss changed to {:?}", first.loss());
    Ok(evidence! { "first_loss": loss.cause().id(), "renewals_of_the_second": renewed(), "path": bench.path().kind() })
}

pub(super) async fn renewal_stops(stage: Stage) -> CaseResult {
    let (client, other) = stage.two_clients().await?;
    let shifted = Shifted::new(Arc::new(client));
    let keeper = Keeper::start(Arc::new(shifted.clone()))?;
    let ttl = stage.run.long();
    let (panicked, aborted, dropped) =
        (stage.resource("panicked")?, stage.resource("aborted")?, stage.resource("dropped")?);
    let guard = held(&keeper, &panicked, ttl).await?;
    let task = tokio::spawn(async move {
        let _guard = guard;
        // Without the message of a panic, which would be in the way of the report.
        std::panic::resume_unwind(Box::new("on purpose"))
    });
    let ended: Result<(), _> = task.await;
    ensure!(ended.is_err(), "a task that panicked ended well");
    let guard = held(&keeper, &aborted, ttl).await?;
    let task = tokio::spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    tokio::task::yield_now().await;
    task.abort();
    drop(task.await);
    drop(held(&keeper, &dropped, ttl).await?);
    for name in [&panicked, &aborted, &dropped] {
        soon_free(&stage, &other, name).await?;
    }
    let before = shifted.counts.begun();
    for _ in 0..4 {
        shifted.advance(part(ttl.duration(), 3));
        pause_for(Duration::from_millis(50)).await;
    }
    let after = shifted.counts.begun();
    ensure!(after == before, "{} renewals began after the guards had gone", after.saturating_sub(before));
    Ok(evidence! { "freed": ["panicked", "aborted", "dropped"] })
}
