//! An operator's order ends the grant that it names, and no other.

use super::{Case, case};
use crate::context::{
    CaseResult, Stage, Stop, acquire, acquire_with, ensure, evidence, is_held, now, pause_for, refute, release, renew,
    token,
};
use crate::judge::Rule;
use lease_core::{
    Acquisition, Attempt, Claim, Fence, FenceError, FencingToken, ForceRelease, Forced, HolderLabel, Lease,
    LeaseBackend, LeaseError, Release, Renewal, ResourceName,
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
        "Round after round two clients send the same order while a third one tries to acquire, all at random moments. One order must say `Ended`; the other one `NotHeld`, or `OtherGrant` with the value of the grant that came in between, which must still be live. It goes on until an order has met such a grant; where none does, nothing was tried."
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

/// The order that ends this grant. A store without tokens has no value to name; it is asked all the same, and says that it cannot.
pub(super) fn order_for(lease: &Lease) -> Result<ForceRelease, LeaseError> {
    let value = lease.token().map_or(1, FencingToken::value);
    let who = HolderLabel::parse("conformance suite")?;
    ForceRelease::new(lease.resource().clone(), value, who, "a case of the suite")
}

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

/// How many rounds at least; and how many at most, until an order has met the grant that came in between.
const ROUNDS: u32 = 20;
const MOST_ROUNDS: u32 = 400;

/// Over how much time the calls of a round are spread: twice what an order takes, within these.
const SPREAD: [Duration; 2] = [Duration::from_millis(3), Duration::from_millis(200)];

async fn racing_acquires(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let c = stage.client().await?;
    let resource = stage.resource("r")?;
    let (mut rounds, mut met) = (0_u32, 0_u32);
    let mut spread = SPREAD[0];
    while rounds < ROUNDS || (met == 0 && rounds < MOST_ROUNDS) {
        let value = token(&acquire(&a, &resource, stage.run.long()).await?)?.value();
        let order = order(&resource, value)?;
        let later = || {
            let most = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos(stage.run.random().checked_rem(most).unwrap_or_default())
        };
        let (one, two, next) =
            tokio::join!(sent(&a, &order, later()), sent(&b, &order, later()), next(&stage, &c, &resource, later()));
        let ((one, took), (two, took_too), next) = (one?, two?, next?);
        let live = token(&next)?.value();
        match (one, two) {
            (Forced::Ended, Forced::NotHeld) | (Forced::NotHeld, Forced::Ended) => {}
            (Forced::Ended, Forced::OtherGrant { value }) | (Forced::OtherGrant { value }, Forced::Ended)
                if value == live =>
            {
                met = met.saturating_add(1);
            }
            _ => refute!(
                "round {rounds}: two orders for {value}, which {live} followed, were answered by {one:?} and {two:?}"
            ),
        }
        release(&c, &renew(&c, &next).await?).await?;
        spread = took.max(took_too).saturating_mul(2).clamp(SPREAD[0], SPREAD[1]);
        rounds = rounds.saturating_add(1);
    }
    tried(rounds, met)?;
    Ok(evidence! { "rounds": rounds, "orders_that_met_the_next_grant": met })
}

/// Only an order that arrives while the next grant is live could end it by mistake.
fn tried(rounds: u32, met: u32) -> Result<(), Stop> {
    if met == 0 {
        return Err(Stop::NotTried(format!("in {rounds} rounds no order arrived while the next grant was live")));
    }
    Ok(())
}

/// Sends an order after a while; its answer, and how long that took.
async fn sent(
    client: &dyn LeaseBackend,
    order: &ForceRelease,
    later: Duration,
) -> Result<(Forced, Duration), LeaseError> {
    pause_for(later).await;
    let begun = now();
    let answer = client.force_release(order).await?;
    Ok((answer, now().saturating_since(begun)))
}

/// Tries from after a while on until the grant that was there has been ended.
async fn next(stage: &Stage, client: &dyn LeaseBackend, name: &ResourceName, later: Duration) -> Result<Lease, Stop> {
    pause_for(later).await;
    let end = now().saturating_add(stage.run.freed_within(Duration::ZERO));
    loop {
        let attempt = Attempt::new(name.clone(), stage.run.long())?;
        if let Acquisition::Acquired(lease) = client.acquire(&attempt).await? {
            return Ok(lease);
        }
        ensure!(now() < end, "two orders have been sent, and {name} is held for as long as one can wait");
        tokio::task::yield_now().await;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_that_nobody_ran_is_not_tried() {
        assert!(matches!(tried(400, 0), Err(Stop::NotTried(_))));
        assert!(tried(20, 1).is_ok());
    }
}
