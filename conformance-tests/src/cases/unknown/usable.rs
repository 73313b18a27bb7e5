//! The client after a fault: it finds its way back, and never takes one call's answer for another's.

use super::ground::{Ground, POINTS, Point, RECOVERY, Tally, from_the_way};
use crate::cases::answers::{Amiss, right};
use crate::cases::force::order_for;
use crate::context::{CaseResult, Stage, Stop, acquire, ensure, now, pause_for};
use crate::faults::OnceFault;
use lease_core::{Attempt, LeaseBackend, LeaseError};
use std::time::Duration;

const CALL: Duration = Duration::from_millis(500);

const FAULTS: [OnceFault; 5] = [
    OnceFault::RequestLost,
    OnceFault::ReplyLost,
    OnceFault::ReplySwallowed,
    OnceFault::RequestHeld,
    // Delivered when its call has ended.
    OnceFault::ReplyHeld,
];

/// What meets the fault.
#[derive(Clone, Copy, Debug)]
enum Call {
    Acquire,
    Renew,
    Release,
    ForceRelease,
    Inspect,
}

pub(super) async fn afterwards(stage: Stage) -> CaseResult {
    let ground = Ground::of(stage, CALL).await?;
    let (mut tally, mut most) = (Tally::default(), 0);
    for fault in FAULTS {
        for call in [Call::Acquire, Call::Renew, Call::Release, Call::ForceRelease, Call::Inspect] {
            for passed in 0..POINTS {
                let Some(failures) = point(&ground, fault, call, passed, &mut tally).await? else { break };
                tally.goes_on(&Point::Met);
                most = most.max(failures);
            }
        }
    }
    let mut evidence = tally.evidence(&ground)?;
    evidence.insert("most_failures_until_right".to_owned(), most.into());
    Ok(evidence)
}

/// How often the client failed until its answers were right; `None` when the call was over before the fault.
async fn point(
    ground: &Ground,
    fault: OnceFault,
    call: Call,
    passed: u32,
    tally: &mut Tally,
) -> Result<Option<u32>, Stop> {
    let client = ground.client().await?;
    let attempt = Attempt::new(ground.name()?, ground.stage.run.long())?;
    let lease = acquire(&ground.observer, &ground.name()?, ground.stage.run.long()).await?;
    ground.path().once_after(passed, fault);
    let answer: Result<(), LeaseError> = match call {
        Call::Acquire => client.acquire(&attempt).await.map(drop),
        Call::Renew => client.renew(&lease).await.map(drop),
        Call::Release => client.release(&lease).await.map(drop),
        Call::ForceRelease => client.force_release(&order_for(&lease)?).await.map(drop),
        Call::Inspect => client.inspect(lease.resource()).await.map(drop),
    };
    if !ground.heal() {
        return Ok(None);
    }
    match &answer {
        Ok(()) => tally.answer(fault, &format!("{call:?} ended well")),
        Err(error) => tally.error(fault, error),
    }
    let (end, mut failures) = (now().saturating_add(RECOVERY), 0_u32);
    loop {
        let error = match right(&ground.stage, &client).await {
            Ok(()) => return Ok(Some(failures)),
            Err(Amiss::Failed(error)) => error,
            Err(wrong @ Amiss::Wrong(_)) => {
                let Stop::Refuted(wrong) = Stop::from(wrong) else { return Ok(None) };
                return Err(Stop::Refuted(format!("after {fault:?} at request {passed} of {call:?}: {wrong}")));
            }
        };
        from_the_way(&error)?;
        failures = failures.saturating_add(1);
        ensure!(now() < end, "{RECOVERY:?} after {fault:?} at request {passed} of {call:?} the client fails: {error}");
        pause_for(Duration::from_millis(20)).await;
    }
}
