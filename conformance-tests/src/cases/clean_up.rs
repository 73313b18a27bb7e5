//! Clean-up removes what is idle, and nothing that is live.

use super::names::NASTY;
use super::{Case, case};
use crate::context::{CaseResult, Stage, acquire, ensure, evidence, is_held, pause_for, release, renew};
use crate::judge::Rule;
use lease_core::LeaseBackend;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[case!(
    Together,
    leaves_live_grants_alone,
    Rule::Core,
    "clean-up/leaves-live-grants-alone",
    "Clean-up ends no live grant, whatever its name, its age and its holder's silence.",
    "Many resources with odd names are held, every second one renewed once; others are released. When all have been silent for longer than a client that forgets soon remembers, that client cleans up again and again. All grants must still be held, and renew with their own tokens."
)];

/// How often it is cleaned up.
const ROUNDS: u32 = 10;

async fn leaves_live_grants_alone(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let (cleaner, forgets_soon) = match stage.forgetful_client().await {
        Ok(cleaner) => (cleaner, true),
        Err(_) => (stage.client().await?, false),
    };
    let mut leases = Vec::new();
    for (at, suffix) in NASTY.iter().enumerate() {
        let lease = acquire(&client, &stage.resource(suffix)?, stage.run.long()).await?;
        leases.push(if at.is_multiple_of(2) { renew(&client, &lease).await? } else { lease });
        let idle = acquire(&client, &stage.resource(&format!("idle {at}"))?, stage.run.long()).await?;
        release(&client, &idle).await?;
    }
    let mut removed = 0_u64;
    for _ in 0..ROUNDS {
        pause_for(Duration::from_millis(20)).await;
        removed = removed.saturating_add(cleaner.clean_up().await?.removed);
    }
    for lease in &leases {
        let name = lease.resource();
        ensure!(is_held(&cleaner, name, stage.run.long()).await?, "clean-up ended the live grant of {name}");
        let renewed = renew(&client, lease).await?;
        ensure!(renewed.token() == lease.token(), "clean-up changed the token of {name}: {lease:?}, then {renewed:?}");
        release(&client, &renewed).await?;
    }
    Ok(evidence! { "held": leases.len(), "removed": removed, "forgets_soon": forgets_soon })
}
