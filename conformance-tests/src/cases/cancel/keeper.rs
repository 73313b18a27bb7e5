//! A keeper's acquire, dropped at every await.

use super::sweep::{Point, Sweep};
use crate::cases::answers::unused;
use crate::context::{CaseResult, Stage, ensure, refute};
use lease_core::Release;
use lease_core::hold::{HoldOptions, Keeper};
use std::sync::Arc;

pub(super) async fn acquire_swept(stage: Stage) -> CaseResult {
    let mut sweep = Sweep::new(stage).await?;
    let keeper = Keeper::start(Arc::new(sweep.client.clone()))?;
    let ttl = sweep.stage.run.short().duration();
    for point in Point::all() {
        let resource = unused(&sweep.stage, "r")?;
        let acquiring = keeper.acquire(resource.as_str(), ttl, HoldOptions::default());
        let ended = match point.drop(acquiring).await {
            None => false,
            Some(Ok(Some(guard))) if point.by_ttl => {
                // Its guard is dropped, which is an end like any other.
                drop(guard);
                true
            }
            Some(Ok(Some(guard))) => {
                let answer = guard.release().await?;
                ensure!(answer != Release::EndedCauseUnknown, "a release that was answered is in doubt");
                true
            }
            Some(other) => refute!("a keeper's acquire of a free resource was answered by {other:?}"),
        };
        sweep.leave(&resource);
        if !sweep.goes_on(!ended).await? {
            break;
        }
    }
    let evidence = sweep.end().await;
    drop(keeper);
    evidence
}
