//! An operator's order ends the grant that it names, and no other.

use super::{Case, case};
use crate::context::{
    CaseResult, Stage, Stop, acquire, acquire_with, ensure, evidence, is_held, pause_for, refute, release, renew, token,
};
use crate::judge::Rule;
use lease_core::{
    Acquisition, Attempt, Claim, Fence, FenceError, ForceRelease, Forced, HolderLabel, LeaseBackend, LeaseError,
    Release, Renewal, ResourceName,
};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        ends_the_named_grant,
        Rule::Core,
        "force/ends-the-named-grant",
        "A force-release ends the grant that it names, at once; the next token is larger, and the old holder is told.",
        "A holds. B reads the fencing value by `inspect` and orders the end of that grant. C acquires at once. A's renewal must be `Lost` and its release `NotHeld`, and C still holds."
    ),
    case!(
        Together,
        other_grant_untouched,
        Rule::Core,
        "force/other-grant-left-alone",
        "A force-release that names an ended grant leaves the newer one alone.",
        "A acquires and releases, B acquires; the order names A's value. The answer must be `OtherGrant` with B's value, and B still holds and renews. On a free resource it must be `NotHeld`, also for a name that was never held."
    ),
    case!(
        Together,
        repeated,
        Rule::Core,
        "force/repeated",
        "The repeat of a force-release does nothing more, whatever came in between.",
        "The same order twice: `NotHeld`. Another client acquires, the same order again: `OtherGrant`, and the newer grant stays."
    ),
    case!(
        Together,
        attempt_is_over,
        Rule::Core,
        "force/attempt-over",
        "What the broken grant's attempt still has on its way makes no grant.",
        "After the force-release the same attempt arrives again, as one that was held up, at once and after another grant: `AttemptOver`, and the resource stays as it was."
    ),
    case!(
        Together,
        racing_acquires,
        Rule::Core,
        "force/racing-acquires",
        "Orders and acquisitions at the same time never end a grant that no order named.",
        "Round after round two clients send the same order while a third one tries to acquire. One order must say `Ended`, no other one; the grant that came in between must still be live."
    ),
    case!(
        Together,
        fence_refuses,
        Rule::Claim(Claim::NativeFenceLiveOwner),
        "force/native-fence-refuses",
        "The native fence refuses a grant from the moment it was ended by force.",
        "A holds and writes through the store's own fence; the grant is ended by force; A's next write must be refused, and the register keeps what it held."
    ),
];

fn order(resource: &ResourceName, value: u64) -> Result<ForceRelease, Stop> {
    let who = HolderLabel::parse("conformance suite")?;
    Ok(ForceRelease::new(resource.clone(), value, who, "a case of the suite")?)
}

/// Orders the end of a grant, and must hear that it was ended.
async fn end(client: &dyn LeaseBackend, resource: &ResourceName, value: u64) -> Result<(), Stop> {
    let answer = client.force_release(&order(resource, value)?).await?;
    ensure!(answer == Forced::Ended, "the force-release of a live grant was answered by {answer:?}");
    Ok(())
}

async fn ends_the_named_grant(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let c = stage.client().await?;
    let resource = stage.resource("r")?;
    let broken = acquire(&a, &resource, stage.run.long()).await?;
    let value = token(&broken)?.value();
    let seen = b.inspect(&resource).await?.held.and_then(|held| held.value);
    ensure!(seen == Some(value), "`inspect` shows {seen:?} as the value of a grant with {value}");
    end(&b, &resource, value).await?;
    ensure!(a.inspect(&resource).await?.held.is_none(), "after a force-release the resource looks held");
    let next = acquire(&c, &resource, stage.run.long()).await?;
    let later = token(&next)?.value();
    ensure!(later > value, "after a force-release of {value} the next grant has {later}");
    let renewal = a.renew(&broken).await?;
    ensure!(matches!(renewal, Renewal::Lost(_)), "the broken grant's renewal was answered by {renewal:?}");
    let answer = a.release(&broken).await?;
    ensure!(answer == Release::NotHeld, "the broken grant's release was answered by {answer:?}");
    release(&c, &renew(&c, &next).await?).await?;
    // Also when nobody took it in between.
    let broken = acquire(&a, &resource, stage.run.long()).await?;
    end(&b, &resource, token(&broken)?.value()).await?;
    let renewal = a.renew(&broken).await?;
    ensure!(matches!(renewal, Renewal::Lost(_)), "with nobody after it, the renewal was answered by {renewal:?}");
    let answer = a.release(&broken).await?;
    ensure!(answer == Release::NotHeld, "with nobody after it, the release was answered by {answer:?}");
    ensure!(b.inspect(&resource).await?.held.is_none(), "the broken grant came back");
    Ok(evidence! { "broken_value": value, "next_value": later })
}

async fn other_grant_untouched(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let (resource, never) = (stage.resource("r")?, stage.resource("never")?);
    let old = acquire(&a, &resource, stage.run.long()).await?;
    let value = token(&old)?.value();
    let answer = b.force_release(&order(&never, value)?).await?;
    ensure!(answer == Forced::NotHeld, "the force-release of a name that nobody held was answered by {answer:?}");
    release(&a, &old).await?;
    let answer = b.force_release(&order(&resource, value)?).await?;
    ensure!(answer == Forced::NotHeld, "the force-release of a released grant was answered by {answer:?}");
    let held = acquire(&b, &resource, stage.run.long()).await?;
    let live = token(&held)?.value();
    for other in [value, live.saturating_add(1)] {
        let answer = a.force_release(&order(&resource, other)?).await?;
        ensure!(
            answer == Forced::OtherGrant { value: live },
            "the holder has {live}, the order named {other}; the answer was {answer:?}"
        );
    }
    ensure!(is_held(&a, &resource, stage.run.long()).await?, "an order that named another grant freed the resource");
    release(&b, &renew(&b, &held).await?).await?;
    Ok(evidence! { "named_value": value, "held_value": live })
}

async fn repeated(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let value = token(&acquire(&a, &resource, stage.run.long()).await?)?.value();
    end(&b, &resource, value).await?;
    let again = b.force_release(&order(&resource, value)?).await?;
    ensure!(again == Forced::NotHeld, "the repeat was answered by {again:?}");
    let next = acquire(&a, &resource, stage.run.long()).await?;
    let again = b.force_release(&order(&resource, value)?).await?;
    let live = token(&next)?.value();
    ensure!(again == Forced::OtherGrant { value: live }, "the repeat after another grant was answered by {again:?}");
    release(&a, &next).await?;
    Ok(evidence! {})
}

async fn attempt_is_over(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let attempt = Attempt::new(stage.resource("r")?, stage.run.long())?;
    let resource = attempt.resource();
    let broken = acquire_with(&a, &attempt).await?;
    end(&b, resource, token(&broken)?.value()).await?;
    arrives_late(&a, &attempt, "right after the force-release").await?;
    ensure!(b.inspect(resource).await?.held.is_none(), "the broken grant's attempt left its resource held");
    let between = acquire(&b, resource, stage.run.long()).await?;
    arrives_late(&a, &attempt, "while another grant is live").await?;
    release(&b, &renew(&b, &between).await?).await?;
    arrives_late(&a, &attempt, "after another grant").await?;
    ensure!(b.inspect(resource).await?.held.is_none(), "the broken grant's attempt left its resource held");
    Ok(evidence! {})
}

/// The attempt reaches the store as a request that was held up: the store has to know by itself.
async fn arrives_late(client: &dyn LeaseBackend, attempt: &Attempt, when: &str) -> Result<(), Stop> {
    match client.acquire(&attempt.as_held_up()).await {
        Err(LeaseError::AttemptOver { .. }) => Ok(()),
        other => Err(Stop::Refuted(format!("{when} the broken grant's attempt was answered by {other:?}"))),
    }
}

const ROUNDS: u32 = 20;

async fn racing_acquires(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let c = stage.client().await?;
    let resource = stage.resource("r")?;
    let mut taken = 0_u32;
    for round in 0..ROUNDS {
        let value = token(&acquire(&a, &resource, stage.run.long()).await?)?.value();
        let (order, next) = (order(&resource, value)?, Attempt::new(resource.clone(), stage.run.long())?);
        let later = Duration::from_micros(stage.run.random() % 3_000);
        let acquiring = async {
            pause_for(later).await;
            c.acquire(&next).await
        };
        let (one, two, answer) = tokio::join!(a.force_release(&order), b.force_release(&order), acquiring);
        let (one, two) = (one?, two?);
        let ended = [one, two].iter().filter(|answer| **answer == Forced::Ended).count();
        ensure!(ended == 1, "round {round}: two orders for one grant were answered by {one:?} and {two:?}");
        match answer? {
            Acquisition::Acquired(lease) => {
                taken = taken.saturating_add(1);
                release(&c, &renew(&c, &lease).await?).await?;
            }
            Acquisition::Held(_) => {}
        }
    }
    Ok(evidence! { "rounds": ROUNDS, "taken_in_between": taken })
}

async fn fence_refuses(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let Fence::LiveOwner(register) = a.fence() else {
        return Err(Stop::Refuted("the backend has no fence that compares the live owner".into()));
    };
    let resource = stage.resource("r")?;
    let broken = acquire(&a, &resource, stage.run.long()).await?;
    if let Err(error) = register.write(&broken, "before").await {
        refute!("the holder's fenced write failed: {error}");
    }
    end(&b, &resource, token(&broken)?.value()).await?;
    match register.write(&broken, "after").await {
        Err(FenceError::Refused { .. }) => {}
        other => refute!("a fenced write after the grant was ended by force was answered by {other:?}"),
    }
    let holds = register.read(&resource).await?;
    ensure!(holds.as_deref() == Some("before"), "the register holds {holds:?}");
    Ok(evidence! { "register": holds })
}
