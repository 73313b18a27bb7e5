//! Replies that come late: when the grant that they tell of is over, or when much of the renewed time is.

use super::ground::{Ground, POINTS, Point, RECOVERY, Tally, from_the_way};
use crate::context::{
    CaseResult, Stage, Stop, acquire, acquire_when_free, ensure, now, part, pause_for, refute, release, until_free,
};
use crate::faults::OnceFault;
use crate::task::Task;
use lease_core::{Acquisition, Attempt, LeaseBackend, Renewal, Ttl};
use std::time::Duration;

const HELD: OnceFault = OnceFault::ReplyHeld;

pub(super) async fn is_no_success(stage: Stage) -> CaseResult {
    // The calls end later than the grant does.
    let call_timeout = stage.run.short_granted().saturating_mul(4).saturating_add(Duration::from_secs(20));
    let ground = Ground::of(stage, call_timeout).await?;
    let mut tally = Tally::default();
    for passed in 0..POINTS {
        let point = point(&ground, passed, &mut tally).await?;
        if !tally.goes_on(&point) {
            break;
        }
    }
    tally.evidence(&ground)
}

async fn point(ground: &Ground, passed: u32, tally: &mut Tally) -> Result<Point, Stop> {
    let (stage, short) = (&ground.stage, ground.stage.run.short());
    let granted = stage.run.short_granted();
    let client = ground.client().await?;
    let attempt = Attempt::new(ground.name()?, short)?;
    ground.path().once_after(passed, HELD);
    let call = Task::spawn({
        let (client, attempt) = (client.clone(), attempt.clone());
        async move { client.acquire(&attempt).await }
    });
    let happened = met(ground, &call).await?;
    if happened {
        // The request has been sent, so its grant is over at the latest when the TTL has passed from here.
        pause_for(granted.saturating_add(part(granted, 10))).await;
    }
    ground.path().heal();
    let answer = call.await.map_err(|e| Stop::Refuted(format!("a panic: {e}")))?;
    let met = match answer {
        Ok(Acquisition::Acquired(lease)) => {
            let seen = ground.seen(attempt.resource()).await?;
            ensure!(
                seen.is_some() || lease.is_past_deadline(),
                "a reply that was kept past its grant's end became a lease: {lease:?}, and the store says that its resource is free"
            );
            tally.answer(HELD, "granted");
            ground.observer.release(&lease).await.map(drop)?;
            false
        }
        Ok(Acquisition::Held(held)) => refute!("an acquire of a free resource was answered by {held:?}"),
        Err(error) => {
            tally.error(HELD, &error);
            happened
        }
    };
    if !happened {
        ground.observer.abandon(&attempt).await?;
        return Ok(Point::Over);
    }
    until_free(stage, &ground.observer, attempt.resource(), granted).await?;
    let next = acquire_when_free(stage, &ground.observer, attempt.resource(), stage.run.long(), granted).await?;
    release(&ground.observer, &next).await?;
    Ok(if met { Point::Met } else { Point::Beside })
}

/// Waits until the call has met the fault, or has ended; whether it has met it.
async fn met<T>(ground: &Ground, call: &Task<T>) -> Result<bool, Stop> {
    let end = now().saturating_add(RECOVERY);
    while !ground.path().happened() && !call.is_finished() {
        ensure!(now() < end, "a call neither ended nor sent anything within {RECOVERY:?}");
        pause_for(Duration::from_millis(1)).await;
    }
    Ok(ground.path().happened())
}

pub(super) async fn renewal(stage: Stage) -> CaseResult {
    let limits = stage.run.limits;
    // So long that a deadline which counts from the answer is a later one by more than the store's own rounding.
    let kept = Duration::from_millis(400).max(limits.ttl_granularity.saturating_mul(3));
    let ttl = Ttl::parse(kept.saturating_mul(8).max(limits.min_ttl).min(limits.max_ttl))?;
    let ground = Ground::of(stage, kept.saturating_add(Duration::from_secs(20))).await?;
    let mut tally = Tally::default();
    for passed in 0..POINTS {
        let point = late_renewal(&ground, passed, (ttl, kept), &mut tally).await?;
        if !tally.goes_on(&point) {
            break;
        }
    }
    tally.evidence(&ground)
}

async fn late_renewal(
    ground: &Ground,
    passed: u32,
    (ttl, kept): (Ttl, Duration),
    tally: &mut Tally,
) -> Result<Point, Stop> {
    let client = ground.client().await?;
    let lease = acquire(&ground.observer, &ground.name()?, ttl).await?;
    ground.path().once_after(passed, HELD);
    let call = Task::spawn({
        let (client, lease) = (client.clone(), lease.clone());
        async move { client.renew(&lease).await }
    });
    let happened = met(ground, &call).await?;
    if happened {
        pause_for(kept).await;
    }
    ground.path().heal();
    let answer = call.await.map_err(|e| Stop::Refuted(format!("a panic: {e}")))?;
    let seen = ground.seen(lease.resource()).await?;
    let looked = now();
    let left = seen.map(|seen| seen.remaining).unwrap_or_default();
    let point = match answer {
        Ok(Renewal::Renewed(renewed)) => {
            let granted = renewed.granted_ttl();
            let slack = part(granted, 100).saturating_add(ground.stage.run.limits.ttl_granularity);
            ensure!(
                renewed.deadline() <= looked.saturating_add(left).saturating_add(slack),
                "a renewal whose reply was kept for {kept:?} says that {:?} is left of {granted:?}, the store {left:?}",
                renewed.deadline().saturating_since(looked)
            );
            tally.answer(HELD, "renewed");
            Point::Met
        }
        Ok(Renewal::Lost(_)) if lease.is_past_deadline() => {
            return Err(Stop::NotTried("this machine was too busy to renew in time".into()));
        }
        Ok(Renewal::Lost(reason)) => {
            refute!("a renewal whose reply was kept for {kept:?} was told as a loss: {reason:?}")
        }
        Err(error) => {
            from_the_way(&error)?;
            tally.error(HELD, &error);
            Point::Beside
        }
    };
    // It may be over by now.
    ground.observer.release(&lease).await.map(drop)?;
    Ok(if happened { point } else { Point::Over })
}
