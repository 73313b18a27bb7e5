//! The store is killed and started again.

use super::{Case, case};
use crate::context::{
    CaseResult, Evidence, Stage, Stop, acquire, ensure, evidence, is_held, now, pause_for, release, renew, token,
};
use crate::judge::Rule;
use crate::subject::ServerControl;
use lease_core::{Acquisition, Attempt, Claim, Lease, LeaseBackend, LeaseError, ResourceName};
use std::sync::Arc;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    case!(
        Alone,
        lease,
        Rule::Claim(Claim::LeaseSurvivesRestart),
        "restart/lease-survives",
        "A live grant is still there after the store was killed and started again.",
        "A grant with a long TTL is made, the store is killed and started again. A new client must be told `Held`, and the holder can renew."
    ),
    case!(
        Alone,
        next_token,
        Rule::Claim(Claim::TokenSurvivesRestart),
        "restart/token-survives",
        "The first grant after the store was killed and started again has a larger token of the same authority.",
        "A grant is made and released, the store is killed and started again, and the resource is acquired anew."
    ),
];

/// The hands on the subject's server, or why there are none.
pub(super) fn control(stage: &Stage) -> Result<Arc<dyn ServerControl>, Stop> {
    let subject = &stage.run.subject;
    if subject.lives_in_process() {
        return Err(Stop::Refuted("the store lives in this process and ends with it".into()));
    }
    let missing = || Stop::NotTried("the suite has no hands on the server (`Subject::server`)".into());
    subject.server().ok_or_else(missing)
}

/// Kills the server and starts it again; returns the old and the new process id.
pub(super) async fn kill_and_restart(server: Arc<dyn ServerControl>) -> Result<Evidence, Stop> {
    let work = tokio::task::spawn_blocking(move || server.kill_and_restart());
    let (old, new) = work
        .await
        .map_err(|e| Stop::NotTried(format!("restarting panicked: {e}")))?
        .map_err(|e| Stop::NotTried(format!("the server did not come back: {e}")))?;
    Ok(evidence! { "server_pid_before": old, "server_pid_after": new })
}

/// How long a client may take to find the server again.
const RECONNECT: Duration = Duration::from_secs(30);

async fn lease(stage: Stage) -> CaseResult {
    let server = control(&stage)?;
    let holder = stage.client().await?;
    let resource = stage.resource("r")?;
    let held = acquire(&holder, &resource, stage.run.long()).await?;
    let evidence = kill_and_restart(server).await?;
    let other = stage.client().await?;
    ensure!(
        is_held(&other, &resource, stage.run.long()).await?,
        "after the restart another client was granted a lease that is held"
    );
    let renewed = renewed_again(&holder, &held).await?;
    ensure!(
        renewed.token() == held.token(),
        "the restart changed the grant's token from {:?} to {:?}",
        held.token(),
        renewed.token()
    );
    release(&holder, &renewed).await?;
    Ok(evidence)
}

/// The holder's client finds the server again by itself.
async fn renewed_again(client: &dyn LeaseBackend, lease: &Lease) -> Result<Lease, Stop> {
    let end = now().saturating_add(RECONNECT);
    loop {
        match client.renew(lease).await {
            Ok(_) => return renew(client, lease).await,
            Err(error) if now() >= end => {
                return Err(Stop::Refuted(format!(
                    "the holder's client did not find the server again within {RECONNECT:?}: {error}"
                )));
            }
            Err(_) => pause_for(Duration::from_millis(100)).await,
        }
    }
}

async fn next_token(stage: Stage) -> CaseResult {
    let server = control(&stage)?;
    let client = stage.client().await?;
    let resource = stage.resource("r")?;
    let before = acquire(&client, &resource, stage.run.long()).await?;
    let first = token(&before)?.clone();
    release(&client, &before).await?;
    let mut evidence = kill_and_restart(server).await?;
    let after = acquired_again(&client, &resource, &stage).await?;
    let second = token(&after)?.clone();
    ensure!(
        first < second,
        "the first token after the restart is not larger, or of another authority: {first}, then {second}"
    );
    release(&client, &after).await?;
    evidence.extend(evidence! { "tokens": [first.to_string(), second.to_string()] });
    Ok(evidence)
}

async fn acquired_again(client: &dyn LeaseBackend, resource: &ResourceName, stage: &Stage) -> Result<Lease, Stop> {
    let end = now().saturating_add(RECONNECT);
    let attempt = Attempt::new(resource.clone(), stage.run.long())?;
    loop {
        // The same attempt each time: if one made a grant and its answer was lost, the next one finds it.
        let error: LeaseError = match client.acquire(&attempt).await {
            Ok(Acquisition::Acquired(lease)) => return Ok(lease),
            Ok(Acquisition::Held(held)) => {
                return Err(Stop::Refuted(format!("a released resource is held after the restart: {held:?}")));
            }
            Err(error) => error,
        };
        ensure!(now() < end, "the client did not find the server again within {RECONNECT:?}: {error}");
        pause_for(Duration::from_millis(100)).await;
    }
}
