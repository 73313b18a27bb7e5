//! Renewal extends the same grant and does nothing else.

use super::{Case, case};
use crate::context::{
    CaseResult, Evidence, Stage, Stop, acquire, acquire_when_free, ensure, evidence, is_held, millis, now, part,
    pause_for, release, renew, until_free,
};
use crate::judge::Rule;
use lease_core::{Lease, LeaseBackend, Renewal, ResourceName, Ttl, safety_margin};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        extends,
        Rule::Core,
        "renew/extends",
        "A renewal extends the grant by the granted TTL from when the store sees it, and never shortens it.",
        "One client renews when half of its TTL is over; another tries all the time. It must not be granted before the granted TTL has passed since the renewal was sent."
    ),
    case!(
        Together,
        extends_again,
        Rule::Core,
        "renew/extends-again",
        "Renewal after renewal, a grant lives far beyond its TTL.",
        "Renewals every quarter of the TTL, for two TTLs. Each must succeed, and the resource stays held."
    ),
    case!(
        Together,
        client_is_gone,
        Rule::Core,
        "renew/after-its-client-is-gone",
        "A grant lives in the store, not in its client: another client renews and releases it.",
        "One client acquires and is closed, with all its connections. The resource must still be held; another client renews the grant and releases it, and the answers must be `Renewed` and `Released`."
    ),
    case!(
        Together,
        expired,
        Rule::Core,
        "renew/expired-is-lost",
        "A grant that has expired cannot be renewed, also when nobody took it since.",
        "The TTL passes; the renewal must be `Lost`, and the resource stays free."
    ),
    case!(
        Together,
        superseded,
        Rule::Core,
        "renew/superseded-is-lost",
        "A grant that another one followed cannot be renewed.",
        "The TTL passes and another client acquires; the renewal must be `Lost`, and the other one still holds."
    ),
    case!(
        Together,
        taken_and_released,
        Rule::Core,
        "renew/no-resurrection",
        "A renewal never brings a grant back after another one came and went.",
        "The TTL passes, another client acquires and releases; the renewal must be `Lost`, and the resource stays free."
    ),
    case!(
        Together,
        released,
        Rule::Core,
        "renew/released-is-lost",
        "A released grant cannot be renewed.",
        "Acquire, release, renew: `Lost`, and the resource stays free. With a long TTL and with a quarter of it: what a store leaves of a release may depend on the TTL."
    ),
    case!(
        Together,
        leaves_other_expiry,
        Rule::Core,
        "renew/leaves-other-grant-alone",
        "A stale renewal does not move another grant's expiry.",
        "A grant with a long TTL is released, another one with a short TTL is made, the first one is renewed. The second one must end in its own time."
    ),
];

/// TTLs to renew in time: a longer one where the machine was too busy for the one before.
fn unhurried(stage: &Stage) -> Result<[Ttl; 3], Stop> {
    let least = stage.run.short().duration().max(Duration::from_secs(1));
    let times = |n: u32| Ttl::parse(least.saturating_mul(n).min(stage.run.limits.max_ttl));
    Ok([times(1)?, times(4)?, times(16)?])
}

fn too_busy() -> Stop {
    Stop::NotTried("this machine was too busy to renew in time".into())
}

async fn extends(stage: Stage) -> CaseResult {
    for (ttl, name) in unhurried(&stage)?.into_iter().zip(["r", "r4", "r16"]) {
        if let Some(evidence) = extends_in_time(&stage, name, ttl).await? {
            return Ok(evidence);
        }
    }
    Err(too_busy())
}

/// `None`: the machine was too busy.
async fn extends_in_time(stage: &Stage, name: &str, ttl: Ttl) -> Result<Option<Evidence>, Stop> {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource(name)?;
    let lease = acquire(&a, &resource, ttl).await?;
    let granted = lease.granted_ttl();
    pause_for(part(granted, 2)).await;
    if lease.is_past_deadline() {
        return Ok(None);
    }
    let sent = now();
    let renewed = renew(&a, &lease).await?;
    ensure!(
        renewed.deadline() >= lease.deadline() && renewed.granted_ttl() == granted,
        "the renewed lease has an earlier deadline or another TTL: {renewed:?}"
    );
    let next = acquire_when_free(stage, &b, &resource, stage.run.long(), granted).await?;
    let after = now().saturating_since(sent);
    ensure!(
        after >= granted.saturating_sub(safety_margin(granted)),
        "another client was granted the lease {after:?} after a renewal for {granted:?}"
    );
    release(&b, &next).await?;
    Ok(Some(evidence! { "granted_ttl_ms": millis(granted), "freed_after_renewal_ms": millis(after) }))
}

async fn extends_again(stage: Stage) -> CaseResult {
    for (ttl, name) in unhurried(&stage)?.into_iter().zip(["r", "r4", "r16"]) {
        if let Some(evidence) = extends_again_in_time(&stage, name, ttl).await? {
            return Ok(evidence);
        }
    }
    Err(too_busy())
}

/// `None`: the machine was too busy.
async fn extends_again_in_time(stage: &Stage, name: &str, ttl: Ttl) -> Result<Option<Evidence>, Stop> {
    let client = stage.client().await?;
    let resource = stage.resource(name)?;
    let mut lease = acquire(&client, &resource, ttl).await?;
    let granted = lease.granted_ttl();
    let end = now().saturating_add(granted.saturating_mul(2));
    let mut renewals = 0_u32;
    while now() < end {
        pause_for(part(granted, 4)).await;
        if lease.is_past_deadline() {
            return Ok(None);
        }
        lease = renew(&client, &lease).await?;
        renewals = renewals.saturating_add(1);
    }
    ensure!(
        is_held(&client, &resource, ttl).await? || lease.is_past_deadline(),
        "after {renewals} renewals the resource was free"
    );
    release(&client, &lease).await?;
    Ok(Some(evidence! { "renewals": renewals, "granted_ttl_ms": millis(granted) }))
}

async fn client_is_gone(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let lease = acquire(&a, &resource, stage.run.long()).await?;
    drop(a);
    // Time for the store to see that the client's connections are closed.
    pause_for(Duration::from_millis(200)).await;
    ensure!(is_held(&b, &resource, stage.run.long()).await?, "the grant of a client that was closed is gone");
    let renewed = renew(&b, &lease).await?;
    ensure!(
        renewed.token() == lease.token(),
        "another client's renewal changed the token: {lease:?}, then {renewed:?}"
    );
    release(&b, &renewed).await?;
    ensure!(b.inspect(&resource).await?.held.is_none(), "after another client's release the resource looks held");
    Ok(evidence! {})
}

/// A grant that has run out by the store's own account.
async fn run_out(stage: &Stage, client: &dyn LeaseBackend, resource: &ResourceName) -> Result<Lease, Stop> {
    let lease = acquire(client, resource, stage.run.short()).await?;
    until_free(stage, client, resource, lease.granted_ttl()).await?;
    Ok(lease)
}

/// The renewal is lost, and afterwards the resource is free.
async fn lost_and_free(client: &dyn LeaseBackend, lease: &Lease) -> CaseResult {
    let reason = lost(client, lease).await?;
    ensure!(
        client.inspect(lease.resource()).await?.held.is_none(),
        "the renewal was lost ({reason}), and afterwards the resource is held"
    );
    Ok(evidence! { "reason": reason })
}

async fn lost(client: &dyn LeaseBackend, lease: &Lease) -> Result<String, Stop> {
    match client.renew(lease).await? {
        Renewal::Lost(reason) => Ok(format!("{reason:?}")),
        Renewal::Renewed(_) => Err(Stop::Refuted("a grant that has ended was renewed".into())),
    }
}

async fn expired(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let lease = run_out(&stage, &client, &stage.resource("r")?).await?;
    lost_and_free(&client, &lease).await
}

async fn superseded(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let old = run_out(&stage, &a, &resource).await?;
    let next = acquire(&b, &resource, stage.run.long()).await?;
    let reason = lost(&a, &old).await?;
    let next = renew(&b, &next).await?;
    ensure!(
        is_held(&a, &resource, stage.run.long()).await?,
        "after a stale renewal the new holder's resource was free"
    );
    release(&b, &next).await?;
    Ok(evidence! { "reason": reason })
}

async fn taken_and_released(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let old = run_out(&stage, &a, &resource).await?;
    release(&b, &acquire(&b, &resource, stage.run.long()).await?).await?;
    lost_and_free(&a, &old).await
}

async fn released(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let (resource, long) = (stage.resource("r")?, stage.run.long());
    let lease = acquire(&client, &resource, Ttl::parse(part(long.duration(), 4))?).await?;
    release(&client, &lease).await?;
    lost_and_free(&client, &lease).await?;
    let lease = acquire(&client, &resource, long).await?;
    release(&client, &lease).await?;
    lost_and_free(&client, &lease).await
}

async fn leaves_other_expiry(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let old = acquire(&a, &resource, stage.run.long()).await?;
    release(&a, &old).await?;
    let other = acquire(&b, &resource, stage.run.short()).await?;
    let reason = lost(&a, &old).await?;
    until_free(&stage, &b, &resource, other.granted_ttl()).await?;
    Ok(evidence! { "reason": reason })
}
