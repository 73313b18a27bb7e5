//! An acquire whose request or reply is lost.

use super::ground::{CALL, Ground, POINTS, Point, Tally, eventually, from_the_way};
use crate::cases::answers::is_of;
use crate::context::{CaseResult, Stage, Stop, acquire_with, ensure, now, pause_for, refute, release};
use crate::faults::OnceFault;
use lease_core::{Acquisition, Attempt, BootInstant, Effect, Lease, LeaseBackend, Listed, safety_margin};
use std::time::Duration;

pub(super) async fn reply_lost(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    sweep(&ground, OnceFault::ReplyLost, &mut tally).await?;
    sweep(&ground, OnceFault::ReplySwallowed, &mut tally).await?;
    tally.evidence(&ground)
}

pub(super) async fn request_lost(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    sweep(&ground, OnceFault::RequestLost, &mut tally).await?;
    tally.evidence(&ground)
}

async fn sweep(ground: &Ground, fault: OnceFault, tally: &mut Tally) -> Result<(), Stop> {
    for passed in 0..POINTS {
        let point = point(ground, fault, passed, tally).await?;
        if !tally.goes_on(&point) {
            return Ok(());
        }
    }
    Err(Stop::NotTried(format!("an acquire sent more than {POINTS} requests")))
}

async fn point(ground: &Ground, fault: OnceFault, passed: u32, tally: &mut Tally) -> Result<Point, Stop> {
    let client = ground.client().await?;
    let attempt = Attempt::new(ground.name()?, ground.stage.run.long())?;
    ground.path().once_after(passed, fault);
    let answer = client.acquire(&attempt).await;
    let answered = now();
    if !ground.heal() {
        // Whatever it was, it was not the fault.
        ground.observer.abandon(&attempt).await?;
        return Ok(Point::Over);
    }
    let seen = ground.seen(attempt.resource()).await?;
    let unknown = match &answer {
        Ok(Acquisition::Acquired(lease)) => {
            ensure!(is_of(lease, &attempt), "{attempt:?} was answered by another grant: {lease:?}");
            ensure!(seen.is_some(), "{lease:?} was granted, and another client sees that its resource is free");
            tally.answer(fault, "granted");
            false
        }
        Ok(Acquisition::Held(held)) => {
            refute!("{fault:?} at request {passed} of an acquire of a free resource was answered by {held:?}")
        }
        Err(error) => {
            from_the_way(error)?;
            tally.error(fault, error);
            let unknown = error.effect() == Effect::Unknown;
            ensure!(
                unknown || seen.is_none(),
                "the acquire says that it had no effect ({error}), and it made {seen:?}"
            );
            unknown
        }
    };
    // So that a deadline that counts from a later send is a later one.
    pause_for(Duration::from_millis(20)).await;
    let lease = settle(ground, &client, &attempt, seen.as_ref(), unknown.then_some(answered)).await?;
    release(&ground.observer, &lease).await?;
    let resource = attempt.resource();
    ensure!(ground.seen(resource).await?.is_none(), "after the release of the attempt's grant the resource is held");
    let lost = fault == OnceFault::RequestLost;
    Ok(if unknown && seen.is_some() != lost { Point::Met } else { Point::Beside })
}

/// The same attempt finds, or makes, the one grant, whichever client sends it.
async fn settle(
    ground: &Ground,
    client: &dyn LeaseBackend,
    attempt: &Attempt,
    seen: Option<&Listed>,
    sent_before: Option<BootInstant>,
) -> Result<Lease, Stop> {
    let lease = acquire_with(&ground.observer, attempt).await?;
    ensure!(is_of(&lease, attempt), "the repeat of {attempt:?} was answered by another grant: {lease:?}");
    if let (Some(seen), Some(token)) = (seen.and_then(|seen| seen.value), lease.token()) {
        ensure!(
            token.value() == seen,
            "another client saw the grant with the value {seen}, and the repeat of its attempt found {token}"
        );
    }
    if let Some(sent_before) = sent_before {
        let latest = lease.granted_ttl().saturating_sub(safety_margin(lease.granted_ttl()));
        ensure!(
            lease.deadline() <= sent_before.saturating_add(latest),
            "the deadline does not count from the first send: it is {:?} after the first answer, for a TTL of {:?}",
            lease.deadline().saturating_since(sent_before),
            lease.granted_ttl()
        );
    }
    let again = eventually(|| client.acquire(attempt), "the same attempt").await?;
    match again {
        Acquisition::Acquired(again) => ensure!(
            is_of(&again, attempt) && (again.token(), again.deadline()) == (lease.token(), lease.deadline()),
            "two repeats of one attempt differ: {lease:?}, then {again:?}"
        ),
        Acquisition::Held(held) => refute!("the repeat of an attempt that has a grant was answered by {held:?}"),
    }
    Ok(lease)
}
