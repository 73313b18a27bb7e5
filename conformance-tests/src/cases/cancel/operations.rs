//! The backend's own operations, dropped at every await.

use super::sweep::{Point, Sweep};
use crate::cases::answers::{is_of, unused};
use crate::cases::force::order_for;
use crate::context::{CaseResult, Stage, Stop, acquire, acquire_with, ensure, refute, release, renew, token};
use lease_core::{Acquisition, Forced, LeaseBackend, Release, Renewal};

pub(super) async fn acquire_swept(stage: Stage) -> CaseResult {
    let mut sweep = Sweep::new(stage).await?;
    for point in Point::all() {
        let attempt = sweep.attempt(point)?;
        let client = sweep.client.clone();
        let answer = point.drop(client.acquire(&attempt)).await;
        match &answer {
            None => {}
            Some(Ok(Acquisition::Acquired(lease))) => {
                ensure!(is_of(lease, &attempt), "{attempt:?} was answered by another grant: {lease:?}");
            }
            Some(other) => refute!("an acquire of a free resource was answered by {other:?}"),
        }
        if point.by_ttl {
            sweep.leave(attempt.resource());
        } else {
            sweep.other.abandon(&attempt).await?;
            sweep.takes(attempt.resource()).await?;
        }
        if !sweep.goes_on(answer.is_none()).await? {
            break;
        }
    }
    sweep.end().await
}

pub(super) async fn renew_swept(stage: Stage) -> CaseResult {
    let mut sweep = Sweep::new(stage).await?;
    for point in Point::all() {
        let lease = acquire_with(&sweep.other, &sweep.attempt(point)?).await?;
        let client = sweep.client.clone();
        let answer = point.drop(client.renew(&lease)).await;
        match &answer {
            None => {}
            Some(Ok(Renewal::Renewed(renewed))) => {
                ensure!(renewed.token() == lease.token(), "a renewal changed the token of {lease:?}: {renewed:?}");
            }
            // A slow machine may be too late for a TTL that is waited for.
            Some(Ok(Renewal::Lost(_))) if point.by_ttl => {}
            Some(other) => refute!("the renewal of a live grant was answered by {other:?}"),
        }
        if point.by_ttl {
            sweep.leave(lease.resource());
        } else {
            let next = renew(&sweep.other, &lease).await?;
            ensure!(
                next.token() == lease.token(),
                "after a dropped renewal the token of {lease:?} is another: {next:?}"
            );
            release(&sweep.other, &next).await?;
            sweep.takes(lease.resource()).await?;
        }
        if !sweep.goes_on(answer.is_none()).await? {
            break;
        }
    }
    sweep.end().await
}

pub(super) async fn release_swept(stage: Stage) -> CaseResult {
    let mut sweep = Sweep::new(stage).await?;
    for point in Point::all() {
        let lease = acquire_with(&sweep.other, &sweep.attempt(point)?).await?;
        let client = sweep.client.clone();
        let answer = point.drop(client.release(&lease)).await;
        match &answer {
            None | Some(Ok(Release::Released)) => {}
            Some(Ok(Release::NotHeld)) if point.by_ttl => {}
            Some(other) => refute!("the release of a live grant was answered by {other:?}"),
        }
        if point.by_ttl {
            sweep.leave(lease.resource());
        } else {
            let repeat = sweep.other.release(&lease).await?;
            ensure!(
                matches!(repeat, Release::Released | Release::EndedCauseUnknown),
                "the repeat of a dropped release was answered by {repeat:?}"
            );
            sweep.takes(lease.resource()).await?;
        }
        if !sweep.goes_on(answer.is_none()).await? {
            break;
        }
    }
    sweep.end().await
}

pub(super) async fn force_release_swept(stage: Stage) -> CaseResult {
    let mut sweep = Sweep::new(stage).await?;
    for point in Point::all() {
        let lease = acquire_with(&sweep.other, &sweep.attempt(point)?).await?;
        token(&lease)?;
        let order = order_for(&lease)?;
        let client = sweep.client.clone();
        let answer = point.drop(client.force_release(&order)).await;
        match &answer {
            None | Some(Ok(Forced::Ended)) => {}
            Some(Ok(Forced::NotHeld)) if point.by_ttl => {}
            Some(other) => refute!("the force-release of a live grant was answered by {other:?}"),
        }
        if point.by_ttl {
            sweep.leave(lease.resource());
        } else {
            let repeat = sweep.other.force_release(&order).await?;
            ensure!(
                matches!(repeat, Forced::Ended | Forced::NotHeld),
                "the repeat of a dropped force-release was answered by {repeat:?}"
            );
            let renewal = sweep.other.renew(&lease).await?;
            ensure!(matches!(renewal, Renewal::Lost(_)), "a grant that was ended by force was renewed: {renewal:?}");
            sweep.takes(lease.resource()).await?;
        }
        if !sweep.goes_on(answer.is_none()).await? {
            break;
        }
    }
    sweep.end().await
}

pub(super) async fn abandon_swept(stage: Stage) -> CaseResult {
    let mut sweep = Sweep::new(stage).await?;
    for point in Point::all() {
        let attempt = sweep.attempt(point)?;
        acquire_with(&sweep.other, &attempt).await?;
        let client = sweep.client.clone();
        let answer = point.drop(client.abandon(&attempt)).await;
        if let Some(Err(error)) = &answer {
            return Err(Stop::Refuted(format!("abandoning an attempt failed: {error}")));
        }
        if point.by_ttl {
            sweep.leave(attempt.resource());
        } else {
            sweep.other.abandon(&attempt).await?;
            sweep.takes(attempt.resource()).await?;
        }
        if !sweep.goes_on(answer.is_none()).await? {
            break;
        }
    }
    sweep.end().await
}

pub(super) async fn inspect_swept(stage: Stage) -> CaseResult {
    let mut sweep = Sweep::new(stage).await?;
    let held = unused(&sweep.stage, "held")?;
    let lease = acquire(&sweep.other, &held, sweep.stage.run.long()).await?;
    for point in Point::all() {
        let client = sweep.client.clone();
        let answer = point.drop(client.inspect(&held)).await;
        if let Some(answer) = &answer {
            let seen = answer.as_ref().is_ok_and(|seen| seen.held.is_some());
            ensure!(seen, "a look at a held resource was answered by {answer:?}");
        }
        let free = unused(&sweep.stage, "free")?;
        let seen = client.inspect(&free).await?.held;
        ensure!(seen.is_none(), "a look at a free name, after another one was dropped, was answered by {seen:?}");
        if !sweep.goes_on(answer.is_none()).await? {
            break;
        }
    }
    release(&sweep.other, &lease).await?;
    sweep.end().await
}
