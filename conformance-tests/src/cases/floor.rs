//! A floor given to acquire: what the caller knows of must not come again, even from a store that has gone back.

use super::{Case, case};
use crate::context::{CaseResult, Stage, Stop, acquire, acquire_with, ensure, evidence, refute, release, token};
use crate::judge::Rule;
use lease_core::{Acquisition, Attempt, Claim, Effect, FencingToken, LeaseBackend, LeaseError};

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        above,
        Rule::Claim(Claim::FencingToken),
        "token/above-floor",
        "A grant that is asked for above a floor has a larger token, or is refused and leaves nothing behind.",
        "Acquire above the last grant's value, which must be granted; then far above it, as if the store had gone back, which must be granted with a larger value, also to a repeat, or refused as `BelowFloor` with the resource free at once; then above the largest value, which must be refused before anything is sent."
    ),
    case!(
        Together,
        minted,
        Rule::Claim(Claim::MintsAboveFloor),
        "token/minted-above-floor",
        "A grant that is asked for above a floor is made, with a larger token, and later ones are larger still.",
        "Acquire far above the last grant's value, as if the store had gone back; repeat the attempt; release, and acquire again without a floor."
    ),
];

/// Further than a run of any store gets by itself.
const FAR: u64 = 1_000_000_000;

/// The token of a first grant, which is released, and a floor far above it.
async fn far_above(stage: &Stage, client: &dyn LeaseBackend) -> Result<(FencingToken, u64), Stop> {
    let lease = acquire(client, &stage.resource("r")?, stage.run.long()).await?;
    let first = token(&lease)?.clone();
    release(client, &lease).await?;
    let room = stage.run.limits.max_token_value.saturating_sub(first.value());
    let floor = first.value().saturating_add(FAR.min(room.checked_div(2).unwrap_or_default()));
    Ok((first, floor))
}

/// Acquires above the floor; `None` when that is refused as it should be where it can't be done.
async fn try_above(client: &dyn LeaseBackend, attempt: &Attempt) -> Result<Option<FencingToken>, Stop> {
    let lease = match client.acquire(attempt).await {
        Ok(Acquisition::Acquired(lease)) => lease,
        Ok(Acquisition::Held(held)) => refute!("a free resource was answered as {held:?}"),
        Err(LeaseError::BelowFloor { effect: Effect::None, .. }) => return Ok(None),
        Err(error) => refute!("an acquire above {} failed: {error}", attempt.floor()),
    };
    let minted = token(&lease)?.clone();
    ensure!(minted.value() > attempt.floor(), "{minted} was granted above a floor of {}", attempt.floor());
    let again = acquire_with(client, attempt).await?;
    ensure!(again.token() == Some(&minted), "a repeat has {:?}, its grant's is {minted}", again.token());
    release(client, &lease).await?;
    Ok(Some(minted))
}

async fn above(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let (first, far) = far_above(&stage, &a).await?;
    let resource = stage.resource("r")?;
    let attempt = |floor| Attempt::new(resource.clone(), stage.run.long()).map(|attempt| attempt.above(floor));

    let Some(next) = try_above(&a, &attempt(first.value())?).await? else {
        refute!("the store has not gone back, and refused a grant above its last value {}", first.value())
    };
    ensure!(first < next, "the later grant's token is not larger: {first}, then {next}");

    let minted = try_above(&a, &attempt(far)?).await?;
    // Free at once for another client, whether it was released or refused.
    let lease = acquire(&b, &resource, stage.run.long()).await?;
    let last = minted.as_ref().unwrap_or(&next);
    ensure!(last < token(&lease)?, "the next grant's token is not larger: {last}, then {:?}", lease.token());
    release(&b, &lease).await?;

    for floor in [stage.run.limits.max_token_value, u64::MAX] {
        match a.acquire(&attempt(floor)?).await {
            Err(error) if error.effect() == Effect::None => {}
            other => refute!("a floor of {floor}, above which there is nothing, was answered by {other:?}"),
        }
    }
    ensure!(a.inspect(&resource).await?.held.is_none(), "a refused attempt left the resource held");
    let answer = if minted.is_some() { "granted above it" } else { "refused" };
    Ok(evidence! { "floor": far, "answer": answer, "token": minted })
}

async fn minted(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let (_, floor) = far_above(&stage, &client).await?;
    let resource = stage.resource("r")?;
    let attempt = Attempt::new(resource.clone(), stage.run.long())?.above(floor);
    let Some(minted) = try_above(&client, &attempt).await? else {
        refute!("a grant above {floor} was refused, since the store does not choose its values")
    };
    let lease = acquire(&client, &resource, stage.run.long()).await?;
    ensure!(&minted < token(&lease)?, "the next grant's token is not larger: {minted}, then {:?}", lease.token());
    release(&client, &lease).await?;
    Ok(evidence! { "floor": floor, "token": minted })
}
