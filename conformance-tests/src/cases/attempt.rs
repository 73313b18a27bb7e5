//! One attempt makes at most one grant, ever.

use super::{Case, case};
use crate::context::{
    CaseResult, Stage, Stop, acquire, acquire_with, ensure, evidence, is_held, millis, now, part, pause_for, refute,
    release,
};
use crate::judge::Rule;
use lease_core::{Acquisition, Attempt, LeaseBackend, LeaseError, Ttl};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        repeat_finds_same_grant,
        Rule::Core,
        "attempt/repeat-finds-same-grant",
        "Repeating an attempt finds its grant, with the same token and the same deadline.",
        "The same attempt is sent twice, by two clients. Both answers must be the same grant."
    ),
    case!(
        Together,
        repeat_does_not_extend,
        Rule::Core,
        "attempt/repeat-does-not-extend",
        "Repeating an attempt does not extend its grant.",
        "The same attempt is sent again when a part of the TTL is over. The remaining time by the store's clock must not have grown."
    ),
    case!(
        Together,
        after_release,
        Rule::Core,
        "attempt/over-after-release",
        "An attempt whose grant was released makes no other.",
        "Acquire, release, send the same attempt again, also with another grant between: `AttemptOver`, and the resource stays as it was."
    ),
    case!(
        Together,
        after_abandon,
        Rule::Core,
        "attempt/over-after-abandon",
        "An abandoned attempt's grant is ended, and it makes no other.",
        "Acquire, abandon: the resource is free. The same attempt again, also with another grant between: `AttemptOver`."
    ),
    case!(
        Together,
        abandoned_first,
        Rule::Core,
        "attempt/abandoned-before-sent",
        "An attempt that was abandoned before it arrived makes no grant.",
        "Abandon an attempt that was never sent, then send it: `AttemptOver`, and the resource stays free."
    ),
    case!(
        Together,
        racing_abandon,
        Rule::Core,
        "attempt/racing-abandon",
        "Whichever arrives first, an attempt or its abandonment, nothing is left behind.",
        "An attempt and its abandonment are sent by two clients, at the same moment or either a little later, round after round; in every second one the attempt's sender does not know of the abandonment. When both have been answered the resource must be free. Each of the two must have been first at times."
    ),
    case!(
        Together,
        abandon_leaves_others_alone,
        Rule::Core,
        "attempt/abandon-leaves-holder-alone",
        "Abandoning an attempt that was not granted leaves the holder alone.",
        "One client holds; another attempt is told `Held` and is abandoned. The holder still holds."
    ),
];

async fn repeat_finds_same_grant(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let attempt = Attempt::new(stage.resource("r")?, stage.run.long())?;
    let first = acquire_with(&a, &attempt).await?;
    for client in [&a, &b] {
        let again = acquire_with(client, &attempt).await?;
        ensure!(
            (again.token(), again.deadline(), again.granted_ttl())
                == (first.token(), first.deadline(), first.granted_ttl()),
            "a repeat found another grant: {first:?}, then {again:?}"
        );
    }
    release(&a, &first).await?;
    Ok(evidence! { "token": first.token().map(ToString::to_string) })
}

async fn repeat_does_not_extend(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let limits = stage.run.limits;
    // So that a repeat which extends shows by more than the store's own rounding.
    let waited = limits.ttl_granularity.saturating_mul(2).max(Duration::from_millis(300));
    let asked = waited.saturating_mul(20).max(limits.min_ttl).min(limits.max_ttl);
    let attempt = Attempt::new(stage.resource("r")?, Ttl::parse(asked)?)?;
    let first = acquire_with(&client, &attempt).await?;
    let answered = now();
    pause_for(waited).await;
    acquire_with(&client, &attempt).await?;
    let elapsed = now().saturating_since(answered);
    let left = client.inspect(first.resource()).await?.held.map(|held| held.remaining);
    let Some(left) = left else {
        return Err(Stop::Refuted("after a repeat the resource looks free".into()));
    };
    // What can be left at most, with two clocks that differ by one percent.
    let most = first
        .granted_ttl()
        .saturating_sub(elapsed)
        .saturating_add(part(elapsed, 100))
        .saturating_add(limits.ttl_granularity)
        .saturating_add(Duration::from_millis(5));
    ensure!(
        left <= most,
        "{elapsed:?} after a grant of {:?}, and right after a repeat, {left:?} is left",
        first.granted_ttl()
    );
    release(&client, &first).await?;
    Ok(evidence! {
        "granted_ttl_ms": millis(first.granted_ttl()),
        "elapsed_ms": millis(elapsed),
        "left_ms": millis(left),
    })
}

/// The attempt is over, whoever sends it.
async fn over(client: &dyn LeaseBackend, attempt: &Attempt, when: &str) -> Result<(), Stop> {
    match client.acquire(attempt).await {
        Err(LeaseError::AttemptOver { .. }) => Ok(()),
        other => Err(Stop::Refuted(format!("{when} the attempt should be over; the answer was {other:?}"))),
    }
}

async fn after_release(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let attempt = Attempt::new(stage.resource("r")?, stage.run.long())?;
    let lease = acquire_with(&a, &attempt).await?;
    release(&a, &lease).await?;
    // As a request that was held up would arrive: the store has to know by itself.
    over(&b, &attempt.as_held_up(), "for the store, after its release,").await?;
    over_and_nothing_changed(&stage, &a, &b, &attempt, "after its release").await
}

async fn after_abandon(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let attempt = Attempt::new(stage.resource("r")?, stage.run.long())?;
    acquire_with(&a, &attempt).await?;
    a.abandon(&attempt).await?;
    over(&b, &attempt.as_held_up(), "for the store, after it was abandoned,").await?;
    over_and_nothing_changed(&stage, &a, &b, &attempt, "after it was abandoned").await?;
    over(&b, &attempt.as_held_up(), "for the store, abandoned, and after another grant,").await?;
    Ok(evidence! {})
}

async fn abandoned_first(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let attempt = Attempt::new(stage.resource("r")?, stage.run.long())?;
    b.abandon(&attempt).await?;
    over(&a, &attempt.as_held_up(), "for the store, abandoned before it was sent,").await?;
    over_and_nothing_changed(&stage, &a, &b, &attempt, "abandoned before it was sent").await
}

async fn over_and_nothing_changed(
    stage: &Stage,
    a: &dyn LeaseBackend,
    b: &dyn LeaseBackend,
    attempt: &Attempt,
    when: &str,
) -> CaseResult {
    let resource = attempt.resource();
    ensure!(b.inspect(resource).await?.held.is_none(), "{when} the attempt's resource looks held");
    over(a, attempt, when).await?;
    over(b, attempt, when).await?;
    let between = acquire(b, resource, stage.run.long()).await?;
    over(a, attempt, &format!("{when}, and while another grant is live,")).await?;
    ensure!(is_held(a, resource, stage.run.long()).await?, "{when} the attempt's repeat ended another grant");
    release(b, &between).await?;
    over(a, attempt, &format!("{when}, and after another grant,")).await?;
    ensure!(a.inspect(resource).await?.held.is_none(), "{when} the attempt's repeat left its resource held");
    Ok(evidence! {})
}

/// How many rounds at least; and how many at most, until each of the two has been first.
const ROUNDS: u32 = 36;
const MOST_ROUNDS: u32 = 240;

async fn racing_abandon(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let (mut rounds, mut granted, mut over) = (0_u32, 0_u32, 0_u32);
    while rounds < ROUNDS || (granted.min(over) == 0 && rounds < MOST_ROUNDS) {
        let attempt = Attempt::new(resource.clone(), stage.run.long())?;
        // In every second round the sender does not know of the abandonment, so that the store has to.
        let sent = if rounds.is_multiple_of(2) { attempt.clone() } else { attempt.as_held_up() };
        // At the same moment, or either of them a little later.
        let later = Duration::from_micros(stage.run.random() % 5_000);
        let (first, second) = match rounds % 3 {
            0 => (Duration::ZERO, Duration::ZERO),
            1 => (Duration::ZERO, later),
            _ => (later, Duration::ZERO),
        };
        let acquire = async {
            wait(first).await;
            a.acquire(&sent).await
        };
        let abandon = async {
            wait(second).await;
            b.abandon(&attempt).await
        };
        let (answer, abandoned) = tokio::join!(acquire, abandon);
        abandoned?;
        match answer {
            Ok(Acquisition::Acquired(_)) => granted = granted.saturating_add(1),
            Err(LeaseError::AttemptOver { .. }) => over = over.saturating_add(1),
            other => refute!("round {rounds}: the attempt was answered by {other:?}"),
        }
        ensure!(
            b.inspect(&resource).await?.held.is_none(),
            "round {rounds}: attempt and abandonment have been answered, and the resource is held"
        );
        rounds = rounds.saturating_add(1);
    }
    if granted.min(over) == 0 {
        return Err(Stop::NotTried(format!(
            "in {rounds} rounds the same one was always first: {granted} grants, {over} refusals"
        )));
    }
    Ok(evidence! { "rounds": rounds, "granted_first": granted, "abandoned_first": over })
}

/// No time at all is no point at which others run.
async fn wait(time: Duration) {
    if !time.is_zero() {
        pause_for(time).await;
    }
}

async fn abandon_leaves_others_alone(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let held = acquire(&a, &resource, stage.run.long()).await?;
    let attempt = Attempt::new(resource.clone(), stage.run.long())?;
    ensure!(
        matches!(b.acquire(&attempt).await?, Acquisition::Held(_)),
        "a second client was granted a lease that is held"
    );
    b.abandon(&attempt).await?;
    ensure!(
        is_held(&b, &resource, stage.run.long()).await?,
        "abandoning an attempt that was not granted freed the holder's resource"
    );
    release(&a, &held).await?;
    Ok(evidence! {})
}
