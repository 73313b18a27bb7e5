//! Waiting: who is granted the lease in the end, and until when.

use super::{Case, case};
use crate::context::{
    CaseResult, Stage, Stop, acquire, ensure, evidence, millis, now, part, pause_for, release, renew,
};
use crate::history::Recorded;
use crate::judge::Rule;
use lease_core::{
    Acquisition, Attempt, BootInstant, Lease, LeaseBackend, LeaseError, LeaseExt, ResourceName, Ttl, safety_margin,
};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        edge,
        Rule::Core,
        "wait/edge-leaves-nothing",
        "A wait that ends as the lease is released ends with the lease, or leaves it free.",
        "300 rounds: one client releases at about the moment at which another one's wait is over. A waiter that was granted the lease must be able to renew it; when its time was up, a third client must be granted the lease at once."
    ),
    case!(
        Together,
        validity,
        Rule::Core,
        "wait/validity-of-the-winning-try",
        "A grant that comes after a long wait is valid from the try that won, and no longer than the store says.",
        "One client holds for twice the TTL of another one, which tries all the time and wins. Its deadline must count from the winning try, whatever came before, and must not lie behind the end that the store gives."
    ),
];

const LANES: u32 = 10;
const ROUNDS: u32 = 30;

async fn edge(stage: Stage) -> CaseResult {
    let clients = [stage.client().await?, stage.client().await?, stage.client().await?];
    let lanes: Vec<_> = (0..LANES).map(|lane| tokio::spawn(edges(stage.clone(), clients.clone(), lane))).collect();
    let mut granted = 0_u32;
    for lane in lanes {
        let lane = lane.await.map_err(|e| Stop::Refuted(format!("a lane ended by itself: {e}")))??;
        granted = granted.saturating_add(lane);
    }
    let rounds = LANES.saturating_mul(ROUNDS);
    if granted == 0 || granted == rounds {
        return Err(Stop::NotTried(format!(
            "the waits did not end at the releases: {granted} of {rounds} were granted"
        )));
    }
    Ok(evidence! { "rounds": rounds, "granted": granted })
}

/// How many waits of one lane ended with the lease.
async fn edges(stage: Stage, [holder, waiter, other]: [Recorded; 3], lane: u32) -> Result<u32, Stop> {
    let (name, ttl) = (stage.resource(&lane.to_string())?, stage.run.long());
    let mut granted = 0_u32;
    for round in 0..ROUNDS {
        let held = acquire(&holder, &name, ttl).await?;
        let wait = Duration::from_millis(15).saturating_add(Duration::from_micros(stage.run.random() % 20_000));
        // Up to 10 ms before the end of the wait, or behind it.
        let early = Duration::from_millis(10);
        let at = wait.saturating_sub(early).saturating_add(Duration::from_micros(stage.run.random() % 20_000));
        let releasing = async {
            pause_for(at).await;
            release(&holder, &held).await
        };
        let (won, released) = tokio::join!(waiter.acquire_within(name.as_str(), ttl.duration(), wait), releasing);
        released?;
        if let Some(lease) = won? {
            granted = granted.saturating_add(1);
            release(&waiter, &renew(&waiter, &lease).await?).await?;
        } else {
            let next = acquire(&other, &name, ttl).await;
            let next =
                next.map_err(|stop| Stop::Refuted(format!("round {round}: a wait of {wait:?} was over: {stop:?}")))?;
            release(&other, &next).await?;
        }
    }
    Ok(granted)
}

async fn validity(stage: Stage) -> CaseResult {
    let (holder, waiter) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let asked = stage.run.short().duration().max(Duration::from_secs(1)).min(stage.run.limits.max_ttl);
    let ttl = Ttl::parse(asked)?;
    let granted = stage.run.limits.granted_ttl(ttl)?;
    let held = acquire(&holder, &resource, stage.run.long()).await?;
    let begun = now();
    let releasing = async {
        pause_for(granted.saturating_mul(2)).await;
        release(&holder, &held).await
    };
    let (won, released) = tokio::join!(wins(&waiter, &resource, ttl, granted), releasing);
    released?;
    let (lease, sent) = won?;
    let won_after = sent.saturating_since(begun);
    ensure!(
        lease.deadline() >= sent.saturating_add(granted.saturating_sub(safety_margin(granted))),
        "{won_after:?} after the first try another one won, and its deadline lies {:?} behind its send; the granted TTL is {granted:?}",
        lease.deadline().saturating_since(sent)
    );
    let seen = waiter.inspect(&resource).await?.held;
    let slack = part(granted, 100).saturating_add(stage.run.limits.ttl_granularity);
    let left = seen.map(|seen| seen.remaining).unwrap_or_default();
    ensure!(
        lease.deadline() <= now().saturating_add(left).saturating_add(slack),
        "the lease says that {:?} is left, the store {left:?}",
        lease.remaining()
    );
    // It may be over by now.
    waiter.release(&lease).await.map(drop)?;
    Ok(
        evidence! { "won_after_ms": millis(won_after), "granted_ttl_ms": millis(granted), "left_at_the_store_ms": millis(left) },
    )
}

/// Tries until a grant was made, and returns it with the instant right before its try.
async fn wins(
    client: &dyn LeaseBackend,
    resource: &ResourceName,
    ttl: Ttl,
    granted: Duration,
) -> Result<(Lease, BootInstant), Stop> {
    loop {
        let attempt = Attempt::new(resource.clone(), ttl)?;
        let sent = now();
        match client.acquire(&attempt).await {
            Ok(Acquisition::Acquired(lease)) => return Ok((lease, sent)),
            Ok(Acquisition::Held(_)) => pause_for(Duration::from_millis(10)).await,
            Err(error @ (LeaseError::LateGrant { .. } | LeaseError::AttemptOver { .. })) => {
                let took = now().saturating_since(sent);
                ensure!(
                    took >= granted.saturating_sub(safety_margin(granted)),
                    "a try that took {took:?} was told that its grant of {granted:?} was over: {error}"
                );
                return Err(Stop::NotTried("this machine was too busy to answer in time".into()));
            }
            Err(error) => return Err(error.into()),
        }
    }
}
