//! A peer that accepts everything and never answers.

use super::ground::{Ground, short};
use crate::cases::force::order_for;
use crate::cases::{Case, case};
use crate::context::{
    CaseResult, Evidence, Stage, Stop, acquire, ensure, evidence, millis, now, refute, release, renew,
};
use crate::judge::Rule;
use lease_core::{Attempt, Effect, ErrorKind, Lease, LeaseBackend, LeaseError, ResourceName};
use std::time::Duration;

pub(in crate::cases) const CASES: &[Case] = &[case!(
    Alone,
    every_call_ends,
    Rule::Core,
    "unknown/silent-peer-every-call-ends",
    "Against a peer that never answers every call ends within its limit, and says no more than it knows.",
    "Everything on the path is swallowed, in both directions. Each operation by a client of its own must end by an error about the way; what may have changed something says that its effect is unknown, or that it had none where nothing was sent; and a look has none."
)];

const CALL: Duration = Duration::from_millis(500);

/// A call that takes longer has no limit that anybody would notice.
pub(super) const NEVER: Duration = Duration::from_secs(15);

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Acquire,
    Renew,
    Release,
    ForceRelease,
    Abandon,
    Inspect,
    List,
    CleanUp,
}

impl Call {
    /// All that a backend has.
    const ALL: [Self; 8] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::ForceRelease,
        Self::Abandon,
        Self::Inspect,
        Self::List,
        Self::CleanUp,
    ];
}

async fn every_call_ends(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let mut evidence = evidence! { "path": ground.path().kind(), "call_timeout_ms": millis(CALL) };
    for call in Call::ALL {
        evidence.extend(silent(&ground, call).await?);
    }
    Ok(evidence)
}

async fn silent(ground: &Ground, call: Call) -> Result<Evidence, Stop> {
    let client = ground.bare_client().await?;
    let resource = ground.name()?;
    let lease = acquire(&ground.observer, &resource, ground.stage.run.long()).await?;
    let attempt = Attempt::new(ground.name()?, ground.stage.run.long())?;
    let (requests, _) = ground.path().counts();
    ground.path().black_hole(true);
    let begin = now();
    let answer = tokio::time::timeout(NEVER, carry_out(client.as_ref(), call, &attempt, &lease)).await;
    let took = now().saturating_since(begin);
    let sent = ground.path().counts().0 > requests;
    ground.path().black_hole(false);
    ground.path().heal();
    let Ok(answer) = answer else { refute!("{call:?} has not ended {NEVER:?} after it was called") };
    let name = format!("{call:?}").to_lowercase();
    let error = match answer {
        Err(error) => error,
        Ok(()) if !sent => return Ok(Evidence::from([(name, "answered without a request".into())])),
        Ok(()) => refute!("{call:?} ended well, although nobody answered"),
    };
    if error.kind() == ErrorKind::Unsupported {
        return Ok(Evidence::from([(name, "not available".into())]));
    }
    judge(ground, call, &error, sent)?;
    // Nothing has reached the store.
    release(&ground.observer, &renew(&ground.observer, &lease).await?).await?;
    let seen = ground.seen(attempt.resource()).await?;
    ensure!(seen.is_none(), "what was swallowed made a grant: {seen:?}");
    let seen = serde_json::json!({ "ended_after_ms": millis(took), "error": short(&error), "sent": sent });
    Ok(Evidence::from([(name, seen)]))
}

fn judge(ground: &Ground, call: Call, error: &LeaseError, sent: bool) -> Result<(), Stop> {
    ensure!(
        error.kind() == ErrorKind::Transport,
        "{call:?}, which nobody answered, was told as something else: {error} ({:?})",
        error.kind()
    );
    let looks = matches!(call, Call::Inspect | Call::List);
    ensure!(!looks || error.effect() == Effect::None, "{call:?} changes nothing, and says that it may have: {error}");
    // Where the faults are at the calls, the request is the operation; on a wire it may have been a question that the client asks first.
    let is_operation = sent && ground.path().kind() == "calls";
    ensure!(
        looks || !is_operation || error.effect() == Effect::Unknown,
        "{call:?} was sent, nobody answered, and it says that it had no effect: {error}"
    );
    Ok(())
}

pub(super) async fn carry_out(
    client: &dyn LeaseBackend,
    call: Call,
    attempt: &Attempt,
    lease: &Lease,
) -> Result<(), LeaseError> {
    let resource: &ResourceName = lease.resource();
    match call {
        Call::Acquire => client.acquire(attempt).await.map(drop),
        Call::Renew => client.renew(lease).await.map(drop),
        Call::Release => client.release(lease).await.map(drop),
        Call::ForceRelease => client.force_release(&order_for(lease)?).await.map(drop),
        Call::Abandon => client.abandon(attempt).await,
        Call::Inspect => client.inspect(resource).await.map(drop),
        Call::List => client.list("", None, 10).await.map(drop),
        Call::CleanUp => client.clean_up().await.map(drop),
    }
}
