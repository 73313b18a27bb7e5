//! Writers that race at a guarded destination: check and write are one step, or the newer write is lost.

use super::{AtPlace, token};
use crate::cases::{Case, case};
use crate::context::{CaseResult, Stop, ensure, evidence};
use crate::history::RecordedDestination;
use crate::judge::Rule;
use lease_core::{GuardError, GuardedDestination};

pub(in crate::cases) const CASES: &[Case] = &[case!(
    AtPlace,
    racing,
    Rule::Core,
    "destination/racing-writers",
    "Of writers that race, the one with the largest token has the last word.",
    "Three handles write with three tokens at the same moment, round after round. The largest token's write must be admitted, and its content and mark be what is left."
)];

const ROUNDS: u64 = 20;

async fn racing(at: AtPlace) -> CaseResult {
    let namespace = at.stage.run.namespace();
    let first = at.open(&namespace).await?;
    first.adopt(None, &super::authority("a")?).await?;
    let handles = [at.open(&namespace).await?, at.open(&namespace).await?];
    let [second, third] = &handles;
    let resource = at.resource()?;
    let mut refused = 0_u32;
    for round in 1..=ROUNDS {
        let value = move |n: u64| round.saturating_mul(10).saturating_add(n);
        let write = |handle: &RecordedDestination, n: u64| {
            let (handle, resource) = (handle.clone(), resource.clone());
            async move {
                let token = token(value(n), value(n))?;
                Ok::<_, Stop>(handle.write(&resource, &token, &value(n).to_string()).await)
            }
        };
        // On tasks of their own, so that they run at the same time where the runtime has several threads.
        let tasks = [(&first, 2), (second, 1), (third, 3)].map(|(handle, n)| (n, tokio::spawn(write(handle, n))));
        for (n, task) in tasks {
            let answer = task.await.map_err(|e| Stop::Refuted(format!("a writer panicked: {e}")))??;
            match answer {
                Ok(()) => {}
                Err(GuardError::Refused { .. }) if n < 3 => refused = refused.saturating_add(1),
                Err(error) => ensure!(false, "round {round}: the write with token {} failed: {error}", value(n)),
            }
        }
        let stored = first.read(&resource).await?;
        let last = token(value(3), value(3))?;
        ensure!(
            stored.value == Some(value(3).to_string()) && stored.mark == Some((last.value(), last.grant())),
            "round {round}: the largest token is {}, but what is left is {stored:?}",
            value(3)
        );
    }
    Ok(evidence! { "rounds": ROUNDS, "refused": refused })
}
