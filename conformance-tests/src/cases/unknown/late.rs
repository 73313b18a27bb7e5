//! A reply that comes when the grant that it tells of is over.

use super::ground::{Ground, POINTS, Point, RECOVERY, Tally};
use crate::context::{
    CaseResult, Stage, Stop, acquire_when_free, ensure, now, part, pause_for, refute, release, until_free,
};
use crate::faults::OnceFault;
use lease_core::{Acquisition, Attempt, LeaseBackend};
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
    let call = tokio::spawn({
        let (client, attempt) = (client.clone(), attempt.clone());
        async move { client.acquire(&attempt).await }
    });
    let end = now().saturating_add(RECOVERY);
    while !ground.path().happened() && !call.is_finished() {
        ensure!(now() < end, "an acquire neither ended nor sent anything within {RECOVERY:?}");
        pause_for(Duration::from_millis(1)).await;
    }
    let happened = ground.path().happened();
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
