//! A guarded write that is dropped at every await.

use super::{AtPlace, authority, holds, is_stale, refuses, token};
use crate::cases::cancel::polled;
use crate::cases::{Case, case};
use crate::context::{CaseResult, Stop, ensure, evidence};
use crate::judge::Rule;
use lease_core::{GuardedDestination, ResourceName};
use std::future::poll_fn;

pub(in crate::cases) const CASES: &[Case] = &[case!(
    AtPlace,
    swept,
    Rule::Core,
    "cancel/guarded-write-swept",
    "A guarded write that is dropped, at whichever await, has happened or not, and hinders nobody.",
    "A write is polled 0, 1, 2 … times and dropped, at once or when it would be polled again, until it ends by itself (of a write of very many polls, some of the first and each of the last). The content is the old one or the dropped one; then the same handle and another one write with newer tokens, the dropped one's token is stale, and in the end nothing of it has come back."
)];

/// So many points at the end of a write are each tried: there the transaction is. What comes before, when a destination connects anew for
/// each write, is mostly a handshake that computes, of which a few points are enough.
const LAST: u32 = 32;

/// How many points of the beginning are tried.
const FIRST: u32 = 8;

async fn swept(at: AtPlace) -> CaseResult {
    let namespace = at.stage.run.namespace();
    let (handle, other) = (at.open(&namespace).await?, at.open(&namespace).await?);
    handle.adopt(None, &authority("a")?).await?;
    let (first, second, third) = (token(10, 10)?, token(11, 11)?, token(12, 12)?);
    let measured = at.stage.resource("measured")?;
    let (answer, polls) = counted(handle.write(&measured, &first, "measured")).await;
    answer?;
    let mut resources: Vec<ResourceName> = Vec::new();
    let (mut dropped, mut landed) = (0_u32, 0_u32);
    for polls in points(polls) {
        let mut over = 0_u32;
        for at_wake in [false, true] {
            let resource = at.stage.resource(&format!("r{}", resources.len()))?;
            handle.write(&resource, &first, "before").await?;
            let answer = polled(handle.write(&resource, &first, "dropped"), polls, at_wake).await;
            let stored = handle.read(&resource).await?;
            let value = stored.value.as_deref();
            ensure!(
                matches!(value, Some("before" | "dropped")) && stored.mark == Some((first.value(), first.grant())),
                "a dropped write left {stored:?}"
            );
            landed = landed.saturating_add(u32::from(value == Some("dropped") && answer.is_none()));
            match answer {
                None => dropped = dropped.saturating_add(1),
                Some(answer) => {
                    answer?;
                    over = over.saturating_add(1);
                }
            }
            handle.write(&resource, &second, "after").await?;
            holds(&handle, &resource, Some("after"), &second).await?;
            refuses(&handle, &resource, &first, is_stale).await?;
            other.write(&resource, &third, "by another").await?;
            resources.push(resource);
        }
        if over == 2 {
            break;
        }
    }
    if dropped == 0 {
        return Err(Stop::NotTried("the sweep ended without a point at which a write was dropped".into()));
    }
    for resource in &resources {
        holds(&other, resource, Some("by another"), &third).await?;
    }
    Ok(evidence! { "points": dropped, "landed_all_the_same": landed, "polls_of_whole_writes": polls })
}

/// After how many polls to drop, when a whole write took `whole`: each number, or some of the beginning and each at the end. It goes on for a
/// while, since one write takes more polls than another; the sweep ends when one is over.
fn points(whole: u32) -> impl Iterator<Item = u32> {
    let last = whole.saturating_sub(LAST);
    let step = last.checked_div(FIRST).unwrap_or_default().max(1);
    let sparse = (0..last).step_by(usize::try_from(step).unwrap_or(1));
    sparse.chain(last..whole.saturating_add(LAST))
}

/// Runs `work` and counts its polls.
async fn counted<T>(work: impl Future<Output = T> + Send) -> (T, u32) {
    let mut work = Box::pin(work);
    let mut polls = 0_u32;
    let result = poll_fn(|context| {
        polls = polls.saturating_add(1);
        work.as_mut().poll(context)
    })
    .await;
    (result, polls)
}
