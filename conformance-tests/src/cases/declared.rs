//! What an instance says about itself.

use super::{Case, case};
use crate::context::{CaseResult, Stage, Stop, acquire, ensure, evidence, millis, release, until_free};
use crate::judge::Rule;
use lease_core::{Claim, Fence, FenceError, LeaseBackend};

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        limits,
        Rule::Core,
        "declared/limits",
        "The declared limits make sense, and every client declares the same.",
        "The shortest TTL is positive and not above the longest, the granularity is positive, every call has a limit, and a backend that declares tokens declares a largest value."
    ),
    case!(
        Together,
        fence_and_claims,
        Rule::Core,
        "declared/fence-agrees-with-claims",
        "What `fence()` gives is what is claimed.",
        "A native fence of one kind goes with the claim of that kind and not with the other one; tokens only or none goes with neither; a native fence or tokens go with the claim for tokens or without, but no fence at all goes with no tokens."
    ),
    case!(
        Together,
        native_after_expiry,
        Rule::Claim(Claim::NativeFenceLiveOwner),
        "fencing/native-refuses-ended-grant",
        "The store's own fence refuses a write from the moment the grant has ended, also when nobody took the lease since.",
        "A write through the fence under a live grant passes, twice; after its release, and after an expiry, it is refused and the register keeps its value."
    ),
];

async fn limits(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let limits = client.limits();
    ensure!(
        limits == stage.run.limits && client.claims() == stage.run.claims,
        "another client of the same store declares something else: {limits:?}, {:?}",
        client.claims()
    );
    ensure!(
        !limits.min_ttl.is_zero() && limits.min_ttl <= limits.max_ttl,
        "the shortest TTL is {:?}, the longest {:?}",
        limits.min_ttl,
        limits.max_ttl
    );
    ensure!(!limits.ttl_granularity.is_zero(), "the granularity of TTLs is zero");
    ensure!(!limits.call_timeout.is_zero(), "calls have no limit");
    let tokens = client.claims().has(Claim::FencingToken);
    ensure!(
        tokens == (limits.max_token_value > 0),
        "fencing tokens are claimed: {tokens}, and their largest value is {}",
        limits.max_token_value
    );
    Ok(evidence! { "call_timeout_ms": millis(limits.call_timeout) })
}

async fn fence_and_claims(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let claims = client.claims();
    let claimed = (claims.has(Claim::NativeFenceLiveOwner), claims.has(Claim::NativeFenceMark));
    let (expected, tokens_allowed) = match client.fence() {
        Fence::LiveOwner(_) => ((true, false), true),
        Fence::Mark(_) => ((false, true), true),
        Fence::None => ((false, false), false),
        _ => ((false, false), true),
    };
    ensure!(
        claimed == expected,
        "the fence is \"{}\", but claimed are live owner: {}, mark: {}",
        client.fence().name(),
        claimed.0,
        claimed.1
    );
    ensure!(
        tokens_allowed || !claims.has(Claim::FencingToken),
        "the fence says that nothing orders grants, but fencing tokens are claimed"
    );
    Ok(evidence! { "fence": client.fence().name() })
}

async fn native_after_expiry(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let Some(register) = client.fence().register() else {
        return Err(Stop::NotTried("the backend has no native fence".into()));
    };
    let passes = |answer: Result<(), FenceError>| {
        answer.map_err(|e| Stop::Refuted(format!("a write under a live grant did not pass the fence: {e}")))
    };
    let resource = stage.resource("released")?;
    let lease = acquire(&client, &resource, stage.run.long()).await?;
    passes(register.write(&lease, "1").await)?;
    passes(register.write(&lease, "2").await)?;
    release(&client, &lease).await?;
    refused(register.write(&lease, "stale").await, "after its release")?;
    let kept = register.read(&resource).await?;
    ensure!(kept.as_deref() == Some("2"), "the register should hold 2, it holds {kept:?}");

    let resource = stage.resource("expired")?;
    let lease = acquire(&client, &resource, stage.run.short()).await?;
    until_free(&stage, &client, &resource, lease.granted_ttl()).await?;
    refused(register.write(&lease, "stale").await, "after its expiry")?;
    let kept = register.read(&resource).await?;
    ensure!(kept.is_none(), "the register was never written, it holds {kept:?}");
    Ok(evidence! {})
}

fn refused(answer: Result<(), FenceError>, when: &str) -> Result<(), Stop> {
    match answer {
        Err(FenceError::Refused { .. }) => Ok(()),
        Ok(()) => Err(Stop::Refuted(format!("a write of a grant passed the fence {when}"))),
        Err(error) => Err(Stop::NotTried(format!("the write failed for another reason: {error}"))),
    }
}
