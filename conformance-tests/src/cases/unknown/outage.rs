//! A store that cannot be reached for a while, and is there again.

use super::ground::{Ground, RECOVERY, Tally, from_the_way, short};
use super::silent::{Call, NEVER, carry_out};
use crate::cases::answers::{Amiss, right};
use crate::context::{
    CaseResult, Stage, Stop, acquire, ensure, evidence, millis, now, pause_for, refute, release, renew,
};
use lease_core::{Attempt, Effect, ErrorKind, LeaseBackend, Release};
use std::time::Duration;

const CALL: Duration = Duration::from_millis(500);

/// How long the store is away, each time.
const AWAY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(3)];

pub(super) async fn is_no_answer(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let client = ground.client().await?;
    let mut tally = Tally::default();
    let mut back_after = Vec::new();
    for away in AWAY {
        let held = acquire(&ground.observer, &ground.name()?, ground.stage.run.long()).await?;
        ground.path().refuse(true);
        ground.path().cut();
        let ended = outage(&ground, &client, away, &mut tally).await;
        ground.path().heal();
        ended?;
        let begin = now();
        comes_back(&ground, &client).await?;
        back_after.push(millis(now().saturating_since(begin)));
        release(&ground.observer, &renew(&ground.observer, &held).await?).await?;
    }
    let mut seen = tally.plain_evidence(&ground);
    seen.extend(evidence! { "back_after_ms": back_after });
    Ok(seen)
}

/// What is called. The release comes late, since it leaves the grant's end in doubt.
const CALLED: [Call; 6] = [Call::Inspect, Call::Acquire, Call::Renew, Call::ForceRelease, Call::Release, Call::Abandon];

/// Calls everything, before and behind a pause: none may be answered.
async fn outage(ground: &Ground, client: &dyn LeaseBackend, away: Duration, tally: &mut Tally) -> Result<(), Stop> {
    let lease = acquire(&ground.observer, &ground.name()?, ground.stage.run.long()).await?;
    for pause in [Duration::ZERO, away] {
        pause_for(pause).await;
        let attempt = Attempt::new(ground.name()?, ground.stage.run.long())?;
        for call in CALLED {
            let answer = tokio::time::timeout(NEVER, carry_out(client, call, &attempt, &lease)).await;
            let Ok(answer) = answer else { refute!("{call:?} has not ended {NEVER:?} after it was called") };
            let Err(error) = answer else { refute!("{call:?} was answered by a store that cannot be reached") };
            if call == Call::ForceRelease && error.kind() == ErrorKind::Unsupported {
                continue;
            }
            ensure!(
                error.kind() == ErrorKind::Transport,
                "{call:?}, of a store that cannot be reached, was told as something else: {error} ({:?})",
                error.kind()
            );
            ensure!(
                call != Call::Inspect || error.effect() == Effect::None,
                "a look changes nothing, and says that it may have: {error}"
            );
            tally.told(&format!("{call:?}: {}", short(&error)));
        }
    }
    let answer = ground.observer.release(&lease).await?;
    ensure!(
        matches!(answer, Release::Released | Release::EndedCauseUnknown),
        "a release that no store has heard of ended the grant: its repeat was answered by {answer:?}"
    );
    Ok(())
}

/// The same client gives right answers again.
async fn comes_back(ground: &Ground, client: &dyn LeaseBackend) -> Result<(), Stop> {
    let end = now().saturating_add(RECOVERY);
    loop {
        let error = match right(&ground.stage, client).await {
            Ok(()) => return Ok(()),
            Err(Amiss::Failed(error)) => error,
            Err(wrong) => return Err(wrong.into()),
        };
        from_the_way(&error)?;
        ensure!(now() < end, "{RECOVERY:?} after the store is there again the client fails: {error}");
        pause_for(Duration::from_millis(20)).await;
    }
}
