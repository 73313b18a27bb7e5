//! Acquires that nobody settles: left alone, given up by the short form, or dropped.

use super::abandoned::deliver;
use super::ground::{CALL, Ground, POINTS, Point, RECOVERY, Tally, from_the_way};
use crate::context::{CaseResult, Stage, Stop, acquire_when_free, ensure, now, pause_for, refute, release, renew};
use crate::faults::OnceFault;
use lease_core::hold::{HoldOptions, Keeper};
use lease_core::{Acquisition, Attempt, Effect, ErrorKind, LeaseBackend, LeaseExt, ResourceName};
use std::sync::Arc;
use std::time::Duration;

pub(super) async fn to_its_ttl(stage: Stage) -> CaseResult {
    let (short, granted) = (stage.run.short(), stage.run.short_granted());
    let ground = Ground::of(stage, CALL).await?;
    let (mut tally, mut left) = (Tally::default(), Vec::new());
    for fault in [OnceFault::RequestLost, OnceFault::ReplyLost] {
        for passed in 0..POINTS {
            let client = ground.client().await?;
            let attempt = Attempt::new(ground.name()?, short)?;
            ground.path().once_after(passed, fault);
            let answer = client.acquire(&attempt).await;
            if !ground.heal() {
                break;
            }
            let unknown = match answer {
                Ok(Acquisition::Acquired(_)) => false,
                Ok(Acquisition::Held(held)) => refute!("an acquire of a free resource was answered by {held:?}"),
                // On a slow machine a short TTL is over before the answer is there.
                Err(error) if error.kind() == ErrorKind::Attempt => false,
                Err(error) => {
                    from_the_way(&error)?;
                    tally.error(fault, &error);
                    error.effect() == Effect::Unknown
                }
            };
            tally.goes_on(if unknown { &Point::Met } else { &Point::Beside });
            left.push(attempt);
        }
    }
    // Nobody repeats or abandons them; their own expiry has to end what they made.
    for attempt in &left {
        let (stage, observer, name) = (&ground.stage, &ground.observer, attempt.resource());
        let next = acquire_when_free(stage, observer, name, stage.run.long(), granted).await?;
        release(observer, &next).await?;
    }
    tally.evidence(&ground)
}

pub(super) async fn given_up(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    for fault in [OnceFault::ReplyLost, OnceFault::ReplySwallowed, OnceFault::RequestHeld] {
        for passed in 0..POINTS {
            let point = tried_once(&ground, fault, passed, &mut tally).await?;
            if !tally.goes_on(&point) {
                break;
            }
        }
    }
    tally.evidence(&ground)
}

async fn tried_once(ground: &Ground, fault: OnceFault, passed: u32, tally: &mut Tally) -> Result<Point, Stop> {
    let (client, name) = (ground.client().await?, ground.name()?);
    ground.path().once_after(passed, fault);
    let answer = client.try_acquire(name.as_str(), ground.stage.run.long().duration()).await;
    let happened = ground.path().happened();
    let point = match answer {
        Ok(Some(lease)) => {
            ground.heal();
            release(&ground.observer, &lease).await?;
            Point::Beside
        }
        Ok(None) => refute!("an acquire of a free resource was answered by `Held`"),
        Err(error) => {
            from_the_way(&error)?;
            tally.error(fault, &error);
            let arrived = fault != OnceFault::RequestHeld || deliver(ground).await;
            ground.heal();
            soon_free(ground, &name).await.map_err(|stop| at(stop, fault, passed))?;
            if error.effect() == Effect::Unknown && arrived { Point::Met } else { Point::Beside }
        }
    };
    Ok(if happened { point } else { Point::Over })
}

fn at(stop: Stop, fault: OnceFault, passed: u32) -> Stop {
    match stop {
        Stop::Refuted(finding) => Stop::Refuted(format!("after {fault:?} at request {passed}: {finding}")),
        other => other,
    }
}

/// Others are granted the lease long before its TTL, which is minutes, and keep it.
async fn soon_free(ground: &Ground, name: &ResourceName) -> Result<(), Stop> {
    let (stage, observer) = (&ground.stage, &ground.observer);
    let next = acquire_when_free(stage, observer, name, stage.run.long(), Duration::ZERO).await?;
    pause_for(Duration::from_millis(20)).await;
    release(observer, &renew(observer, &next).await?).await?;
    let seen = ground.seen(name).await?;
    ensure!(seen.is_none(), "an acquire that nobody waits for made a grant after others had come and gone: {seen:?}");
    Ok(())
}

pub(super) async fn dropped(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    // Delivered at once, so that it meets the clean-up of the dropped call, or behind that.
    for later in [Duration::ZERO, Duration::from_millis(100)] {
        for passed in 0..POINTS {
            let point = dropped_on_its_way(&ground, passed, later, &mut tally).await?;
            if !tally.goes_on(&point) {
                break;
            }
        }
    }
    tally.evidence(&ground)
}

async fn dropped_on_its_way(ground: &Ground, passed: u32, later: Duration, tally: &mut Tally) -> Result<Point, Stop> {
    const HELD: OnceFault = OnceFault::RequestHeld;
    let keeper = Keeper::start(Arc::new(ground.client().await?))?;
    let name = ground.name()?;
    ground.path().once_after(passed, HELD);
    let acquiring = keeper.acquire(name.as_str(), ground.stage.run.long().duration(), HoldOptions::default());
    let answer = tokio::select! {
        answer = acquiring => Some(answer),
        on_its_way = on_its_way(ground) => {
            on_its_way?;
            None
        }
    };
    match answer {
        None => {
            pause_for(later).await;
            let arrived = deliver(ground).await;
            ground.heal();
            soon_free(ground, &name).await.map_err(|stop| at(stop, HELD, passed))?;
            tally.answer(HELD, "dropped");
            Ok(if arrived { Point::Met } else { Point::Beside })
        }
        Some(Ok(Some(guard))) => {
            let happened = ground.heal();
            // The connection that the fault met may be silent for good.
            if let Err(error) = guard.release().await {
                from_the_way(&error)?;
            }
            Ok(if happened { Point::Beside } else { Point::Over })
        }
        Some(other) => refute!("a keeper's acquire of a free resource was answered by {other:?}"),
    }
}

/// Completes when the request is held on its way.
async fn on_its_way(ground: &Ground) -> Result<(), Stop> {
    let end = now().saturating_add(RECOVERY);
    while !ground.path().happened() {
        ensure!(now() < end, "a keeper's acquire neither ended nor sent anything within {RECOVERY:?}");
        pause_for(Duration::from_millis(1)).await;
    }
    Ok(())
}
