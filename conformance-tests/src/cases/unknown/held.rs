//! A renewal or a release whose request or reply is lost.

use super::ground::{CALL, Ground, POINTS, Point, Tally, from_the_way};
use crate::context::{CaseResult, Stage, Stop, acquire, ensure, is_held, now, part, refute, release, renew};
use crate::faults::OnceFault;
use lease_core::{BootInstant, Effect, Lease, LeaseBackend, Release, Renewal, ResourceName};
use std::time::Duration;

pub(super) async fn renew_reply_lost(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    for fault in [OnceFault::RequestLost, OnceFault::ReplyLost, OnceFault::ReplySwallowed] {
        for passed in 0..POINTS {
            let point = renewal(&ground, fault, passed, &mut tally).await?;
            if !tally.goes_on(&point) {
                break;
            }
        }
    }
    tally.evidence(&ground)
}

async fn renewal(ground: &Ground, fault: OnceFault, passed: u32, tally: &mut Tally) -> Result<Point, Stop> {
    let client = ground.client().await?;
    let resource = ground.name()?;
    let lease = acquire(&ground.observer, &resource, ground.stage.run.long()).await?;
    let (before, _) = ends(ground, &resource).await?;
    ground.path().once_after(passed, fault);
    let answer = client.renew(&lease).await;
    if !ground.heal() {
        release(&ground.observer, &lease).await?;
        return Ok(Point::Over);
    }
    let (_, after) = ends(ground, &resource).await?;
    ensure!(
        after >= before,
        "a renewal in doubt shortened the grant at the store by {:?} at least",
        before.saturating_since(after)
    );
    let unknown = match answer {
        Ok(Renewal::Renewed(renewed)) => {
            ensure!(renewed.token() == lease.token(), "a renewal changed the token: {lease:?}, then {renewed:?}");
            tally.answer(fault, "renewed");
            false
        }
        Ok(Renewal::Lost(reason)) => {
            refute!("{fault:?} at request {passed} of a renewal was told as a loss: {reason:?}")
        }
        Err(error) => {
            from_the_way(&error)?;
            tally.error(fault, &error);
            error.effect() == Effect::Unknown
        }
    };
    let next = renew(&ground.observer, &lease).await?;
    ensure!(
        next.token() == lease.token() && next.deadline() >= lease.deadline(),
        "after a renewal in doubt the next one gave {next:?} for {lease:?}"
    );
    release(&ground.observer, &next).await?;
    Ok(if unknown { Point::Met } else { Point::Beside })
}

/// Between which two instants of this machine's clock the grant ends by the store's account, given that the two clocks' rates differ by no more
/// than one percent.
async fn ends(ground: &Ground, resource: &ResourceName) -> Result<(BootInstant, BootInstant), Stop> {
    let asked = now();
    let Some(held) = ground.seen(resource).await? else { refute!("a grant that is renewed looks free") };
    let answered = now();
    let rounding = ground.stage.run.limits.ttl_granularity.saturating_add(Duration::from_millis(5));
    let slack = part(held.remaining, 100).saturating_add(rounding);
    Ok((
        asked.saturating_add(held.remaining.saturating_sub(slack)),
        answered.saturating_add(held.remaining.saturating_add(slack)),
    ))
}

/// The faults that lose a reply.
const REPLY: [OnceFault; 2] = [OnceFault::ReplyLost, OnceFault::ReplySwallowed];

pub(super) async fn release_reply_lost(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    for fault in REPLY {
        for passed in 0..POINTS {
            let (point, lease) = release_in_fault(&ground, fault, passed, &mut tally).await?;
            if !tally.goes_on(&point) {
                break;
            }
            let repeat = ground.observer.release(&lease).await?;
            ensure!(
                matches!(repeat, Release::Released | Release::EndedCauseUnknown),
                "the repeat of a release in doubt was answered by {repeat:?}"
            );
            tally.answer(fault, &format!("repeat: {repeat:?}"));
            let seen = ground.seen(lease.resource()).await?;
            ensure!(seen.is_none(), "after the repeat of a release ({repeat:?}) the resource is held: {seen:?}");
        }
    }
    tally.evidence(&ground)
}

pub(super) async fn release_in_doubt(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    for fault in REPLY {
        for passed in 0..POINTS {
            let (point, lease) = release_in_fault(&ground, fault, passed, &mut tally).await?;
            if !tally.goes_on(&point) {
                break;
            }
            if matches!(point, Point::Met) {
                superseded(&ground, fault, &lease, &mut tally).await?;
            } else {
                // It may be live: end it, whatever the answer.
                ground.observer.release(&lease).await.map(drop)?;
            }
        }
    }
    tally.evidence(&ground)
}

async fn superseded(ground: &Ground, fault: OnceFault, lease: &Lease, tally: &mut Tally) -> Result<(), Stop> {
    let other = acquire(&ground.observer, lease.resource(), ground.stage.run.long()).await?;
    let repeat = ground.observer.release(lease).await?;
    ensure!(
        matches!(repeat, Release::Released | Release::EndedCauseUnknown),
        "after another grant, the repeat of a release in doubt was answered by {repeat:?}"
    );
    tally.answer(fault, &format!("repeat: {repeat:?}"));
    let other = renew(&ground.observer, &other).await?;
    release(&ground.observer, &other).await
}

pub(super) async fn release_request_lost(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let other = ground.stage.client().await?;
    let mut tally = Tally::default();
    for passed in 0..POINTS {
        let (point, lease) = release_in_fault(&ground, OnceFault::RequestLost, passed, &mut tally).await?;
        if !tally.goes_on(&point) {
            break;
        }
        let (resource, ttl) = (lease.resource(), ground.stage.run.long());
        if matches!(point, Point::Met) {
            ensure!(
                is_held(&ground.observer, resource, ttl).await?,
                "while a release is in doubt its holder's client was granted the lease anew"
            );
        }
        let repeat = ground.observer.release(&lease).await?;
        ensure!(
            matches!(repeat, Release::Released | Release::EndedCauseUnknown),
            "the repeat of a release in doubt was answered by {repeat:?}"
        );
        tally.answer(OnceFault::RequestLost, &format!("repeat: {repeat:?}"));
        // Nothing is left that would keep the next ones out: no second hold of the same client.
        for client in [&ground.observer, &other] {
            release(client, &acquire(client, resource, ttl).await?).await?;
        }
    }
    tally.evidence(&ground)
}

/// A release of a live grant, with a fault. Met: it is in doubt, and the observer sees that the resource is free, or, where the request was
/// lost, that it is held.
async fn release_in_fault(
    ground: &Ground,
    fault: OnceFault,
    passed: u32,
    tally: &mut Tally,
) -> Result<(Point, Lease), Stop> {
    let client = ground.client().await?;
    let lease = acquire(&ground.observer, &ground.name()?, ground.stage.run.long()).await?;
    ground.path().once_after(passed, fault);
    let answer = client.release(&lease).await;
    if !ground.heal() {
        return Ok((Point::Over, lease));
    }
    let seen = ground.seen(lease.resource()).await?;
    let met = match answer {
        Ok(Release::Released) => {
            ensure!(seen.is_none(), "a release says `Released`, and another client sees {seen:?}");
            tally.answer(fault, "Released");
            false
        }
        Ok(other) => refute!("{fault:?} at request {passed} of a release of a live grant was answered by {other:?}"),
        Err(error) => {
            from_the_way(&error)?;
            tally.error(fault, &error);
            let unknown = error.effect() == Effect::Unknown;
            ensure!(
                unknown || seen.is_some(),
                "a release says that it had no effect ({error}), and its resource is free"
            );
            unknown && seen.is_some() == (fault == OnceFault::RequestLost)
        }
    };
    Ok((if met { Point::Met } else { Point::Beside }, lease))
}
