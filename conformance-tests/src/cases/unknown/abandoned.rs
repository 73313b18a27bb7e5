//! Requests of an attempt that arrive when it is over already.

use super::ground::{CALL, Ground, POINTS, Point, Tally, from_the_way};
use crate::cases::answers::is_of;
use crate::context::{
    CaseResult, Stage, Stop, acquire, acquire_with, ensure, evidence, now, pause_for, refute, release, renew,
    until_free,
};
use crate::faults::OnceFault;
use lease_core::{Acquisition, Attempt, Effect, Fence, FenceError, LeaseBackend, LeaseError, Renewal, Ttl};
use std::time::Duration;

const HELD: OnceFault = OnceFault::RequestHeld;

pub(super) async fn delayed(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    for passed in 0..POINTS {
        let point = arrives_late(&ground, passed, &mut tally).await?;
        if !tally.goes_on(&point) {
            break;
        }
    }
    tally.evidence(&ground)
}

async fn arrives_late(ground: &Ground, passed: u32, tally: &mut Tally) -> Result<Point, Stop> {
    let client = ground.client().await?;
    let attempt = Attempt::new(ground.name()?, ground.stage.run.long())?;
    let resource = attempt.resource();
    ground.path().once_after(passed, HELD);
    let answer = client.acquire(&attempt).await;
    if !ground.path().happened() {
        ground.heal();
        ground.observer.abandon(&attempt).await?;
        return Ok(Point::Over);
    }
    let unknown = match answer {
        Ok(Acquisition::Acquired(lease)) => {
            ensure!(is_of(&lease, &attempt), "{attempt:?} was answered by another grant: {lease:?}");
            tally.answer(HELD, "granted");
            false
        }
        Ok(Acquisition::Held(held)) => refute!("a request that was kept on its way was answered by {held:?}"),
        Err(error) => {
            from_the_way(&error)?;
            tally.error(HELD, &error);
            error.effect() == Effect::Unknown
        }
    };
    ground.observer.abandon(&attempt).await?;
    let seen = ground.seen(resource).await?;
    ensure!(seen.is_none(), "the attempt was abandoned, and its resource is held: {seen:?}");
    let answered = deliver(ground).await;
    ground.heal();
    let seen = ground.seen(resource).await?;
    ensure!(seen.is_none(), "a request that arrived after its attempt was abandoned made a grant: {seen:?}");
    let next = acquire(&ground.observer, resource, ground.stage.run.long()).await?;
    release(&ground.observer, &next).await?;
    Ok(if unknown && answered { Point::Met } else { Point::Beside })
}

/// How long the store may take to answer a delivered request. What gets no answer, such as a client's own housekeeping, decides nothing.
const ANSWER: Duration = Duration::from_secs(5);

/// Delivers what was held; whether the store's answer to it has arrived at the path.
pub(super) async fn deliver(ground: &Ground) -> bool {
    let (_, before) = ground.path().counts();
    ground.path().deliver();
    let end = now().saturating_add(ANSWER);
    while ground.path().counts().1 == before {
        if now() >= end {
            return false;
        }
        pause_for(Duration::from_millis(2)).await;
    }
    true
}

pub(super) async fn held_up(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let attempt = Attempt::new(stage.resource("never-arrived")?, stage.run.long())?;
    a.abandon(&attempt).await?;
    over_at_the_store(&stage, &b, &attempt, "abandoned before it arrived").await?;

    let attempt = Attempt::new(stage.resource("granted")?, stage.run.long())?;
    acquire_with(&a, &attempt).await?;
    b.abandon(&attempt).await?;
    over_at_the_store(&stage, &a, &attempt, "abandoned after its grant").await?;

    let attempt = Attempt::new(stage.resource("refused")?, stage.run.long())?;
    let holder = acquire(&b, attempt.resource(), stage.run.long()).await?;
    ensure!(
        matches!(a.acquire(&attempt).await?, Acquisition::Held(_)),
        "a second attempt was granted a lease that is held"
    );
    a.abandon(&attempt).await?;
    release(&b, &renew(&b, &holder).await?).await?;
    over_at_the_store(&stage, &b, &attempt, "abandoned after it was told `Held`").await?;
    Ok(evidence! { "copies_refused": 9 })
}

pub(super) async fn held_up_after_release(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    for passed in 0..POINTS {
        let client = ground.client().await?;
        let attempt = Attempt::new(ground.name()?, ground.stage.run.long())?;
        ground.path().once_after(passed, OnceFault::RequestLost);
        let answer = client.acquire(&attempt).await;
        let happened = ground.heal();
        if !happened || !answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown) {
            // Nothing of it is on its way, so nobody has to remember it.
            ground.observer.abandon(&attempt).await?;
            if tally.goes_on(if happened { &Point::Beside } else { &Point::Over }) {
                continue;
            }
            break;
        }
        tally.goes_on(&Point::Met);
        let lease = acquire_with(&ground.observer, &attempt).await?;
        release(&ground.observer, &lease).await?;
        over_at_the_store(&ground.stage, &ground.observer, &attempt, "released after an acquire in doubt").await?;
    }
    tally.evidence(&ground)
}

pub(super) async fn held_up_after_expiry(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut tally = Tally::default();
    for passed in 0..POINTS {
        let point = expires_first(&ground, passed, &mut tally).await?;
        if !tally.goes_on(&point) {
            break;
        }
    }
    tally.evidence(&ground)
}

async fn expires_first(ground: &Ground, passed: u32, tally: &mut Tally) -> Result<Point, Stop> {
    let (run, client) = (&ground.stage.run, ground.client().await?);
    // Longer than the call that times out first, so that the same attempt can still make its grant.
    let ttl = Ttl::parse(CALL.saturating_mul(3).max(run.limits.min_ttl).min(run.limits.max_ttl))?;
    let attempt = Attempt::new(ground.name()?, ttl)?;
    let resource = attempt.resource();
    ground.path().once_after(passed, HELD);
    let answer = client.acquire(&attempt).await;
    if !ground.path().happened() {
        ground.heal();
        ground.observer.abandon(&attempt).await?;
        return Ok(Point::Over);
    }
    let in_doubt = answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown);
    let lease = match ground.observer.acquire(&attempt).await {
        Ok(Acquisition::Acquired(lease)) if in_doubt => lease,
        // A machine so slow that its TTL is over, or a fault beside the matter.
        _ => {
            ground.heal();
            ground.observer.abandon(&attempt).await?;
            return Ok(Point::Beside);
        }
    };
    until_free(&ground.stage, &ground.observer, resource, lease.granted_ttl()).await?;
    release(&ground.observer, &acquire(&ground.observer, resource, run.long()).await?).await?;
    let answered = deliver(ground).await;
    ground.heal();
    let seen = ground.seen(resource).await?;
    ensure!(seen.is_none(), "a request that arrived after its attempt's grant had expired made another one: {seen:?}");
    let renewal = ground.observer.renew(&lease).await?;
    ensure!(matches!(renewal, Renewal::Lost(_)), "the expired lease was renewed after all: {renewal:?}");
    if let Fence::LiveOwner(register) = ground.observer.fence() {
        let wrote = register.write(&lease, "stale").await;
        ensure!(matches!(wrote, Err(FenceError::Refused { .. })), "the fence answered the expired lease by {wrote:?}");
    }
    tally.answer(HELD, "no second grant");
    Ok(if answered { Point::Met } else { Point::Beside })
}

/// Copies of the attempt that know nothing of its end are refused by the store, on the free resource and beside another grant.
async fn over_at_the_store(
    stage: &Stage,
    client: &dyn LeaseBackend,
    attempt: &Attempt,
    when: &str,
) -> Result<(), Stop> {
    let resource = attempt.resource();
    over(client, attempt, when).await?;
    let seen = client.inspect(resource).await?.held;
    ensure!(seen.is_none(), "{when}, a copy that was held up left its resource held: {seen:?}");
    let between = acquire(client, resource, stage.run.long()).await?;
    over(client, attempt, &format!("{when}, and while another grant is live")).await?;
    release(client, &renew(client, &between).await?).await?;
    over(client, attempt, &format!("{when}, and after another grant")).await
}

async fn over(client: &dyn LeaseBackend, attempt: &Attempt, when: &str) -> Result<(), Stop> {
    match client.acquire(&attempt.as_held_up()).await {
        Err(LeaseError::AttemptOver { .. }) => Ok(()),
        other => Err(Stop::Refuted(format!(
            "{when}, a copy of the attempt that was held up should be over; the answer was {other:?}"
        ))),
    }
}
