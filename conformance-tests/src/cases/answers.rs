//! Whether a client's answers are the right ones: those to what was asked, about the name that was asked for.

use crate::context::{Stage, Stop};
use lease_core::{Acquisition, Attempt, Lease, LeaseBackend, LeaseError, Release, Renewal, ResourceName};

/// Why the answers were not right.
pub(super) enum Amiss {
    /// An operation failed.
    Failed(LeaseError),
    /// An answer does not fit the question.
    Wrong(String),
}

impl From<LeaseError> for Amiss {
    fn from(error: LeaseError) -> Self {
        Self::Failed(error)
    }
}

impl From<Amiss> for Stop {
    fn from(amiss: Amiss) -> Self {
        Self::Refuted(match amiss {
            Amiss::Failed(error) => format!("an operation on another name failed: {error}"),
            Amiss::Wrong(what) => format!("an operation on another name got a wrong answer: {what}"),
        })
    }
}

/// A name that was never used before.
pub(super) fn unused(stage: &Stage, what: &str) -> Result<ResourceName, Stop> {
    stage.resource(&format!("{what}-{:016x}", stage.run.random()))
}

/// One of each operation on names of their own: every answer must be about that name and that grant.
pub(super) async fn right(stage: &Stage, client: &dyn LeaseBackend) -> Result<(), Amiss> {
    let name = |what: &str| unused(stage, what).map_err(|_| Amiss::Wrong("a name of the suite was refused".into()));
    let (one, two, free) = (name("one")?, name("two")?, name("free")?);
    let first = granted(stage, client, &one).await?;
    // Another one between, so that an answer that comes one too late is about something else.
    let second = granted(stage, client, &two).await?;
    for lease in [&first, &second] {
        let held = client.inspect(lease.resource()).await?.held;
        let fits = held.as_ref().is_some_and(|held| {
            held.resource == *lease.resource() && held.value == lease.token().map(lease_core::FencingToken::value)
        });
        wrong_unless(fits, || format!("{lease:?} was just granted, and `inspect` says {held:?}"))?;
    }
    let held = client.inspect(&free).await?.held;
    wrong_unless(held.is_none(), || format!("{free} was never acquired, and `inspect` says {held:?}"))?;
    for lease in [&first, &second] {
        let renewal = client.renew(lease).await?;
        let fits = matches!(&renewal, Renewal::Renewed(renewed) if renewed.resource() == lease.resource() && renewed.token() == lease.token());
        wrong_unless(fits, || format!("{lease:?} was just granted, and `renew` says {renewal:?}"))?;
        let released = client.release(lease).await?;
        wrong_unless(released == Release::Released, || {
            format!("{lease:?} was just renewed, and `release` says {released:?}")
        })?;
    }
    Ok(())
}

async fn granted(stage: &Stage, client: &dyn LeaseBackend, resource: &ResourceName) -> Result<Lease, Amiss> {
    let attempt = Attempt::new(resource.clone(), stage.run.long())?;
    match client.acquire(&attempt).await? {
        Acquisition::Acquired(lease) => {
            wrong_unless(is_of(&lease, &attempt), || format!("{attempt:?} was answered by {lease:?}"))?;
            Ok(lease)
        }
        Acquisition::Held(held) => Err(Amiss::Wrong(format!("{resource} was never acquired, and is {held:?}"))),
    }
}

/// The lease is this attempt's grant.
pub(super) fn is_of(lease: &Lease, attempt: &Attempt) -> bool {
    lease.resource() == attempt.resource()
        && lease.owner() == attempt.owner()
        && lease.token().is_none_or(|token| token.grant() == attempt.grant())
}

fn wrong_unless(right: bool, what: impl FnOnce() -> String) -> Result<(), Amiss> {
    if right { Ok(()) } else { Err(Amiss::Wrong(what())) }
}
