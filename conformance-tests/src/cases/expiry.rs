//! A grant ends by the store's clock: not before its time, and in the end it does.

use super::{Case, case};
use crate::context::{
    CaseResult, Stage, Stop, acquire, acquire_when_free, ensure, evidence, is_held, millis, now, part, pause_for,
    refute, release, until_free,
};
use crate::judge::Rule;
use lease_core::{Acquisition, Attempt, LeaseBackend, LeaseError, ResourceName, Ttl, safety_margin};
use std::time::Duration;
use tokio::task::JoinSet;

pub(super) const CASES: &[Case] = &[
    case!(
        Alone,
        frees,
        Rule::Core,
        "expiry/frees",
        "A grant that nobody renews ends: not before the granted TTL, and in the end it does.",
        "One client acquires and does nothing; another one tries until it is granted. That must not happen before the granted TTL has passed since the first request was sent (less the declared safety margin), and not later than five times the TTL and the declared lag, and five seconds. The latency is in the evidence."
    ),
    case!(
        Together,
        held_attempts_do_not_extend,
        Rule::Core,
        "expiry/others-do-not-extend",
        "Attempts of others do not extend a grant.",
        "While one client's grant runs out, others try again and again. They must be granted in the end."
    ),
    case!(
        Together,
        holders_ttl_counts,
        Rule::Core,
        "expiry/holders-ttl-counts",
        "How long a grant lasts is decided by its own TTL, not by that of whoever tries next.",
        "One client acquires and does nothing; another tries all the time, with a TTL that is much shorter. It must not be granted before the first one's granted TTL has passed since its request was sent (less the declared safety margin)."
    ),
    case!(
        Together,
        granted_not_shorter,
        Rule::Core,
        "ttl/granted-not-shorter",
        "The granted TTL is never shorter than what was asked for, and is what the limits say.",
        "Several TTLs, round and odd. `Lease::granted_ttl` must be at least what was asked for, and equal `Limits::granted_ttl`."
    ),
    case!(
        Together,
        each_its_own,
        Rule::Core,
        "ttl/each-grant-its-own",
        "Each grant has the TTL that was asked for it, whatever its client asked for before or asks for at the same time.",
        "One client acquires a resource with a long TTL, releases it, and acquires it with a short one. Then it acquires 40 resources at the same time, each with a TTL of its own. The granted TTL and the time that the store says is left must fit each."
    ),
    case!(
        Together,
        tiny,
        Rule::Core,
        "ttl/tiny-rounds-up",
        "A TTL of one millisecond is granted as the shortest one, or longer.",
        "A store that truncates it to zero would make a grant without an end, or none. The grant must end in the end; whether it could be used before is not judged."
    ),
    case!(
        Together,
        huge,
        Rule::Core,
        "ttl/huge",
        "The longest TTL works, and a longer one is refused before any I/O.",
        "The declared maximum must be granted, and the next holder need not wait after its release; a TTL above it must be `InvalidTtl`, and leave the resource free."
    ),
];

async fn frees(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let before = now();
    let lease = acquire(&a, &resource, stage.run.short()).await?;
    let granted = lease.granted_ttl();
    let next = acquire_when_free(&stage, &b, &resource, stage.run.long(), granted).await?;
    let after = now().saturating_since(before);
    ensure!(
        after >= granted.saturating_sub(safety_margin(granted)),
        "another client was granted the lease {after:?} after the first request was sent; the granted TTL is {granted:?}"
    );
    ensure!(
        lease.is_past_deadline(),
        "another client was granted the lease while the first one's said that its deadline had not passed"
    );
    release(&b, &next).await?;
    Ok(evidence! {
        "granted_ttl_ms": millis(granted),
        "freed_after_ms": millis(after),
        "declared_lag_ms": millis(stage.run.limits.expiry_lag),
    })
}

async fn held_attempts_do_not_extend(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let lease = acquire(&a, &resource, stage.run.short()).await?;
    for client in [&a, &b] {
        is_held(client, &resource, stage.run.short()).await?;
    }
    // Every try of it asks for the longest TTL, so that one which moved the expiry would be seen.
    let next = acquire_when_free(&stage, &b, &resource, stage.run.long(), lease.granted_ttl()).await?;
    release(&b, &next).await?;
    Ok(evidence! {})
}

async fn holders_ttl_counts(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let asked = stage.run.short_granted().saturating_mul(4).min(stage.run.limits.max_ttl);
    let before = now();
    let lease = acquire(&a, &resource, Ttl::parse(asked)?).await?;
    let granted = lease.granted_ttl();
    let next = acquire_when_free(&stage, &b, &resource, stage.run.short(), granted).await?;
    let after = now().saturating_since(before);
    ensure!(
        after >= granted.saturating_sub(safety_margin(granted)),
        "a client that asks for {:?} was granted the lease {after:?} after another one had sent its request for {granted:?}",
        stage.run.short().duration()
    );
    // It may be over by now.
    b.release(&next).await.map(drop)?;
    Ok(evidence! { "granted_ttl_ms": millis(granted), "freed_after_ms": millis(after) })
}

/// How many grants are made at the same time.
const MANY: u32 = 40;

async fn each_its_own(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let resource = stage.resource("r")?;
    release(&client, &acquire(&client, &resource, stage.run.long()).await?).await?;
    // Long enough for a busy machine to look in time.
    let ttl = |seconds: u32| {
        let asked = Duration::from_secs(seconds.into());
        Ttl::parse(asked.max(stage.run.limits.min_ttl).min(stage.run.limits.max_ttl))
    };
    has_its_own(&stage, &client, &resource, ttl(10)?).await?;
    let mut running = JoinSet::new();
    for number in 0..MANY {
        let (stage, client, ttl) = (stage.clone(), client.clone(), ttl(number.saturating_mul(7).saturating_add(10))?);
        let resource = stage.resource(&number.to_string())?;
        running.spawn(async move { has_its_own(&stage, &client, &resource, ttl).await });
    }
    while let Some(joined) = running.join_next().await {
        joined.map_err(|e| Stop::Refuted(format!("an acquire panicked: {e}")))??;
    }
    Ok(evidence! { "at_the_same_time": MANY })
}

/// Acquires, and compares what was granted, and what the store says is left, with what was asked for.
async fn has_its_own(stage: &Stage, client: &dyn LeaseBackend, resource: &ResourceName, ttl: Ttl) -> Result<(), Stop> {
    let limits = stage.run.limits;
    let sent = now();
    let lease = acquire(client, resource, ttl).await?;
    let (said, granted) = (limits.granted_ttl(ttl)?, lease.granted_ttl());
    ensure!(granted == said, "{:?} was asked for, {granted:?} was granted; the limits say {said:?}", ttl.duration());
    let held = client.inspect(resource).await?.held;
    let elapsed = now().saturating_since(sent);
    if elapsed >= granted {
        return Err(Stop::NotTried("this machine was too busy to look in time".into()));
    }
    let left = held.map(|held| held.remaining).unwrap_or_default();
    // Two clocks whose rates differ by one percent, and the store's rounding.
    let slack = part(granted, 100).saturating_add(limits.ttl_granularity);
    ensure!(
        left <= granted.saturating_add(slack) && left.saturating_add(slack) >= granted.saturating_sub(elapsed),
        "{elapsed:?} after a grant of {granted:?} was asked for, the store says that {left:?} is left"
    );
    client.release(&lease).await.map(drop)?;
    Ok(())
}

async fn granted_not_shorter(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let limits = stage.run.limits;
    let mut seen = Vec::new();
    for asked in [1_001, 1_500, 2_000, 61_234] {
        let asked = Duration::from_millis(asked).max(limits.min_ttl).min(limits.max_ttl);
        let ttl = Ttl::parse(asked)?;
        let lease = acquire(&client, &stage.resource(&format!("{}", asked.as_millis()))?, ttl).await?;
        let granted = lease.granted_ttl();
        ensure!(granted >= asked, "{asked:?} was asked for, {granted:?} was granted");
        let said = limits.granted_ttl(ttl)?;
        ensure!(granted == said, "the limits say {said:?} for {asked:?}, {granted:?} was granted");
        let left = client.inspect(lease.resource()).await?.held.map(|held| held.remaining);
        ensure!(
            left.is_some_and(
                |left| left <= granted.saturating_add(part(granted, 100)).saturating_add(limits.ttl_granularity)
            ),
            "{granted:?} was granted, the store says that {left:?} is left"
        );
        release(&client, &lease).await?;
        seen.push((millis(asked), millis(granted)));
    }
    Ok(evidence! { "asked_and_granted_ms": seen })
}

async fn tiny(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let resource = stage.resource("r")?;
    let attempt = Attempt::new(resource.clone(), Ttl::parse(Duration::from_millis(1))?)?;
    let granted = stage.run.limits.granted_ttl(attempt.ttl())?;
    ensure!(
        granted >= stage.run.limits.min_ttl,
        "the limits say {granted:?} for one millisecond, less than their minimum"
    );
    match client.acquire(&attempt).await {
        Ok(Acquisition::Acquired(lease)) => {
            ensure!(lease.granted_ttl() >= granted, "{:?} was granted, less than {granted:?}", lease.granted_ttl());
        }
        // It was over before the answer came, or before the store could be asked; that is no success, and it says so.
        Err(LeaseError::LateGrant { .. } | LeaseError::AttemptOver { .. }) => {}
        other => refute!("one millisecond was asked for; the answer was {other:?}"),
    }
    until_free(&stage, &client, &resource, granted).await?;
    let next = acquire_when_free(&stage, &client, &resource, stage.run.long(), granted).await?;
    release(&client, &next).await?;
    Ok(evidence! { "granted_ttl_ms": millis(granted) })
}

async fn huge(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let resource = stage.resource("longest")?;
    let longest = stage.run.limits.max_ttl;
    let lease = acquire(&client, &resource, Ttl::parse(longest)?).await?;
    ensure!(lease.granted_ttl() == longest, "the longest TTL is {longest:?}, {:?} was granted", lease.granted_ttl());
    pause_for(Duration::from_millis(20)).await;
    ensure!(is_held(&client, &resource, stage.run.long()).await?, "a grant of the longest TTL was gone at once");
    release(&client, &lease).await?;
    release(&client, &acquire(&client, &resource, stage.run.long()).await?).await?;
    let Ok(longer) = Ttl::parse(longest.saturating_add(Duration::from_millis(1))) else {
        return Ok(evidence! { "longest_ms": millis(longest), "longer": "is no TTL at all" });
    };
    let resource = stage.resource("longer")?;
    let answer = client.acquire(&Attempt::new(resource.clone(), longer)?).await;
    ensure!(
        matches!(answer, Err(LeaseError::InvalidTtl { .. })),
        "a TTL above the longest one was answered by {answer:?}"
    );
    ensure!(
        client.inspect(&resource).await?.held.is_none(),
        "a TTL above the longest one was refused, and its resource is held all the same"
    );
    Ok(evidence! { "longest_ms": millis(longest), "longer": "refused" })
}
