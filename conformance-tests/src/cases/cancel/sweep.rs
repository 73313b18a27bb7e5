//! Polls a future a given number of times and drops it.

use crate::cases::answers::{right, unused};
use crate::context::{
    CaseResult, Evidence, Stage, Stop, acquire, acquire_when_free, ensure, evidence, millis, now, release,
};
use crate::history::Recorded;
use lease_core::{Attempt, BootInstant, LeaseBackend, ResourceName, Ttl};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// More polls than any operation takes.
const POLLS: u32 = 200;

/// Polls `work` at most so many times, then drops it: right after its last poll, or, `at_wake`, when it would be polled again, as its answer
/// has come and nobody has taken it. The result if it was ready by then.
pub(in crate::cases) async fn polled<T>(work: impl Future<Output = T> + Send, polls: u32, at_wake: bool) -> Option<T> {
    let mut work = Box::pin(work);
    let mut left = polls;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left = left.saturating_sub(1);
        match work.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if left == 0 && !at_wake => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// One point of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) polls: u32,
    pub(super) at_wake: bool,
    /// Nobody cleans up: the TTL has to end whatever is left.
    pub(super) by_ttl: bool,
}

impl Point {
    /// Drops `work` here, or has its result.
    pub(super) async fn drop<T>(self, work: impl Future<Output = T> + Send) -> Option<T> {
        polled(work, self.polls, self.at_wake).await
    }

    /// Every point, in order, until the caller has seen the end.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let variants = [(false, false), (true, false), (false, true), (true, true)];
        (0..POLLS).flat_map(move |polls| variants.map(|(at_wake, by_ttl)| Self { polls, at_wake, by_ttl }))
    }
}

/// So many variants in a row that were over before they could be dropped end a sweep.
const VARIANTS: u32 = 4;

/// A sweep that dropped nothing has shown nothing, and one that did not reach the operation's end has not shown it all.
fn is_whole(dropped: u32, over: u32) -> Result<(), Stop> {
    if dropped == 0 {
        return Err(Stop::NotTried("the sweep ended without a point at which anything was dropped".into()));
    }
    if over < VARIANTS {
        return Err(Stop::NotTried(format!("after {POLLS} polls the operation has no end: the sweep is not whole")));
    }
    Ok(())
}

/// A sweep over the points of one operation by one client.
pub(super) struct Sweep {
    pub(super) stage: Stage,
    /// Whose futures are dropped.
    pub(super) client: Recorded,
    /// Another client, which cleans up and looks.
    pub(super) other: Recorded,
    /// What was left to its TTL, and since when.
    left: Vec<(ResourceName, BootInstant)>,
    /// What was cleaned up.
    cleaned: Vec<ResourceName>,
    dropped: u32,
    /// How many variants in a row were over before they could be dropped.
    over: u32,
}

impl Sweep {
    pub(super) async fn new(stage: Stage) -> Result<Self, Stop> {
        let (client, other) = stage.two_clients().await?;
        Ok(Self { stage, client, other, left: Vec::new(), cleaned: Vec::new(), dropped: 0, over: 0 })
    }

    /// A new attempt on a name of its own, with a TTL that fits the point.
    pub(super) fn attempt(&self, point: Point) -> Result<Attempt, Stop> {
        Ok(Attempt::new(unused(&self.stage, "r")?, self.ttl(point))?)
    }

    fn ttl(&self, point: Point) -> Ttl {
        if point.by_ttl { self.stage.run.short() } else { self.stage.run.long() }
    }

    /// What was dropped is left to its TTL.
    pub(super) fn leave(&mut self, resource: &ResourceName) {
        self.left.push((resource.clone(), now()));
    }

    /// What was dropped was cleaned up: the resource can be acquired at once.
    pub(super) async fn takes(&mut self, resource: &ResourceName) -> Result<(), Stop> {
        let seen = self.other.inspect(resource).await?.held;
        ensure!(seen.is_none(), "after the clean-up of a dropped call the resource is held: {seen:?}");
        let next = acquire(&self.other, resource, self.stage.run.long()).await?;
        release(&self.other, &next).await?;
        self.cleaned.push(resource.clone());
        Ok(())
    }

    /// Ends a point: the client's next answers must be right. False when the operation was over at every variant of the point.
    pub(super) async fn goes_on(&mut self, dropped: bool) -> Result<bool, Stop> {
        right(&self.stage, &self.client).await?;
        if dropped {
            (self.dropped, self.over) = (self.dropped.saturating_add(1), 0);
        } else {
            self.over = self.over.saturating_add(1);
        }
        Ok(self.over < VARIANTS)
    }

    /// Ends the sweep: what was left to its TTL ends with it, and nothing has come back to what was cleaned up.
    pub(super) async fn end(self) -> CaseResult {
        let (short, granted) = (self.stage.run.short(), self.stage.run.short_granted());
        let mut longest = Duration::ZERO;
        for (resource, since) in &self.left {
            let next = acquire_when_free(&self.stage, &self.other, resource, short, granted).await?;
            longest = longest.max(now().saturating_since(*since));
            // It may be over by now.
            self.other.release(&next).await.map(drop)?;
        }
        for resource in &self.cleaned {
            let seen = self.other.inspect(resource).await?.held;
            ensure!(seen.is_none(), "a dropped call made a grant after it had been cleaned up: {seen:?}");
        }
        is_whole(self.dropped, self.over)?;
        Ok(self.evidence(longest, granted))
    }

    fn evidence(&self, longest: Duration, granted: Duration) -> Evidence {
        evidence! {
            "points": self.dropped,
            "left_to_the_ttl": self.left.len(),
            "cleaned_up": self.cleaned.len(),
            "granted_ttl_ms": millis(granted),
            "all_free_after_ms": millis(longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_of_nothing_or_without_an_end_is_not_tried() {
        assert!(matches!(is_whole(0, VARIANTS), Err(Stop::NotTried(_))));
        assert!(matches!(is_whole(POLLS * VARIANTS, 0), Err(Stop::NotTried(_))));
        assert!(is_whole(1, VARIANTS).is_ok());
    }
}
