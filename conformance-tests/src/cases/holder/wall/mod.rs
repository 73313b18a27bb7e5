//! The wall clock of a worker jumps by hours, and nothing changes.

mod plain;
mod scene;
mod storm;

use crate::context::{CaseResult, Stage, Stop, ensure, evidence, pause_for};
use crate::worker::{Answer, Command, Seen, now_ns};
use lease_core::ResourceName;
pub(super) use plain::plain_lease;
use scene::{Scene, THREE_HOURS, Taken, nanos};
use serde_json::{Value, json};
use std::time::Duration;
use storm::Storm;

/// The TTL of a lease that has to outlive the jumps.
const TTL: Duration = Duration::from_secs(3);

/// The TTL of a lease whose end is waited for.
const SHORT_TTL: Duration = Duration::from_millis(1_500);

/// How long a slow machine may take to let a holder see what has happened.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often to look.
const LOOK: Duration = Duration::from_millis(20);

/// The name of the guarded lease in the worker.
const LEASE: &str = "lease";

pub(super) async fn renewed(stage: Stage) -> CaseResult {
    let mut scene = Scene::start(stage, TTL).await?;
    let (mut permits, mut storms) = (0_u64, 0);
    let (mut most_left, mut gap) = (0, 0);
    let name = scene.stage.resource("r")?;
    for hours in [THREE_HOURS, -THREE_HOURS] {
        scene.jump(hours, "before the lease was acquired").await?;
        watch(&mut scene, &name, true).await?;
        until(&mut scene, &name, "right after the acquisition", |seen| seen.permits > 0).await?;
        scene.jump(hours.saturating_neg(), "between the acquisition and the first renewal").await?;
        holds_on(&mut scene, &name, "a jump after the acquisition").await?;
        scene.jump(hours, "between two renewals").await?;
        holds_on(&mut scene, &name, "a jump between two renewals").await?;
        let storm = Storm::begin(scene.clock.clone(), hours)?;
        outlives_deadline(&mut scene, &name, "jumps all the time, also during renewals").await?;
        storms = storm.end().await?.saturating_add(storms);
        scene.is_now_at(hours)?;
        scene.jump(0, "back, before the release").await?;
        let seen = scene.seen(LEASE).await?;
        released(&mut scene, &seen).await?;
        scene.is_free(&name).await?;
        permits = permits.saturating_add(seen.permits);
        (most_left, gap) = (seen.most_left_ns.max(most_left), seen.longest_gap_ns.max(gap));
    }
    let mut seen = scene.end().await?;
    seen.extend(evidence! {
        "permits": permits,
        "lost": 0,
        "jumps_without_a_pause": storms,
        "most_that_a_permit_said_is_left_ms": most_left / 1_000_000,
        "longest_gap_between_asking_us": gap / 1_000,
    });
    Ok(seen)
}

/// Lets the worker hold the lease and ask for permits.
async fn watch(scene: &mut Scene, name: &ResourceName, renews: bool) -> Result<(), Stop> {
    let ttl_ms = scene.ttl.as_millis();
    let watch = Command::Watch { lease: LEASE.into(), resource: name.as_str().into(), ttl_ms, renews };
    match scene.tell(watch).await?.answer {
        Answer::Acquired { token, .. } => scene.grows(token),
        other => Err(Stop::Refuted(format!("{name} should be free, but the answer was {other:?}"))),
    }
}

/// Waits for a renewal; meanwhile the lease stays held, for everybody.
async fn holds_on(scene: &mut Scene, name: &ResourceName, when: &str) -> Result<(), Stop> {
    let before = scene.seen(LEASE).await?;
    // A renewal moves the deadline by a third of the TTL.
    let moved = before.last_deadline_ns.saturating_add(nanos(scene.granted) / 6);
    until(scene, name, when, |seen| seen.last_deadline_ns > moved).await
}

/// Waits until there is a permit from after the deadline that stands now.
async fn outlives_deadline(scene: &mut Scene, name: &ResourceName, when: &str) -> Result<(), Stop> {
    let before = scene.seen(LEASE).await?;
    until(scene, name, when, |seen| seen.last_permit_ns > before.last_deadline_ns).await
}

async fn until(scene: &mut Scene, name: &ResourceName, when: &str, enough: impl Fn(&Seen) -> bool) -> Result<(), Stop> {
    let end = now_ns().saturating_add(nanos(scene.granted.saturating_add(PATIENCE)));
    loop {
        let taken = scene.taken(name).await?;
        let seen = scene.seen(LEASE).await?;
        still_held(&seen, taken.as_ref(), (scene.granted, scene.slowest_ns()), when)?;
        if enough(&seen) {
            return Ok(());
        }
        ensure!(now_ns() < end, "{when}: neither renewed nor lost within {PATIENCE:?} after its TTL: {seen:?}");
        pause_for(LOOK).await;
    }
}

fn still_held(
    seen: &Seen,
    taken: Option<&Taken>,
    (granted, slowest_ns): (Duration, u64),
    when: &str,
) -> Result<(), Stop> {
    let most = nanos(granted);
    ensure!(
        seen.most_left_ns <= most,
        "{when}: a permit said that {} ns are left; the granted TTL is {most} ns",
        seen.most_left_ns
    );
    let told_ns = seen.loss.as_ref().map(|loss| loss.told_ns);
    let ended = told_ns.into_iter().chain(taken.map(|taken| taken.returned_ns)).min();
    let Some(ended) = ended else { return Ok(()) };
    // A machine that is busy with something else can cost a lease: at its deadline, not before, and where somebody else has seen that it is
    // busy: the holder's thread that asks for permits, or a client whose wall clock nobody moves. That the holder's own renewals had no
    // answer is no excuse: it is what a client does that reckons its time limits by the wall clock.
    let late = ended >= seen.earliest_deadline_ns();
    if late && seen.longest_gap_ns.max(slowest_ns) > most / 4 {
        return Err(Stop::NotTried(format!("{when}: the machine was too slow to renew in time: {seen:?}")));
    }
    let and_who = taken.map_or_else(String::new, |taken| format!("; it was granted to {}", taken.by));
    Err(Stop::Refuted(format!(
        "{when}: the lease was lost ({:?}) at {ended} ns{and_who}; its last permit said until {} ns",
        seen.loss.as_ref().map(|loss| &loss.cause),
        seen.earliest_deadline_ns()
    )))
}

async fn released(scene: &mut Scene, seen: &Seen) -> Result<(), Stop> {
    let reply = scene.tell(Command::ReleaseWatched { lease: LEASE.into() }).await?;
    match reply.answer {
        Answer::Released { how } if how == "Released" => Ok(()),
        other if reply.ended_ns >= seen.earliest_deadline_ns() => {
            Err(Stop::NotTried(format!("the machine was too slow to release in time: {other:?}")))
        }
        other => Err(Stop::Refuted(format!("the release of a live guard was answered by {other:?}"))),
    }
}

pub(super) async fn not_renewed(stage: Stage) -> CaseResult {
    let mut scene = Scene::start(stage, SHORT_TTL).await?;
    let mut ends = Vec::new();
    let mut at = 0;
    let name = scene.stage.resource("r")?;
    for to in [THREE_HOURS, -THREE_HOURS, 0] {
        let sent_ns = now_ns();
        watch(&mut scene, &name, false).await?;
        let answered_ns = now_ns();
        scene.jump(to, "after the lease was acquired").await?;
        ends.push(ends_in_time(&mut scene, &name, (sent_ns, answered_ns), to.saturating_sub(at)).await?);
        at = to;
    }
    let mut seen = scene.end().await?;
    seen.extend(evidence! { "ends": ends });
    Ok(seen)
}

/// Watches a lease that nothing renews: lost and free at its real deadline, and not before.
async fn ends_in_time(
    scene: &mut Scene,
    name: &ResourceName,
    (sent_ns, answered_ns): (u64, u64),
    jump: i64,
) -> Result<Value, Stop> {
    let when = format!("a jump by {jump} s");
    let (earliest, latest) = (scene.earliest_end_ns(sent_ns), scene.latest_end_ns(answered_ns));
    let end = latest.saturating_add(nanos(scene.stage.run.freed_within(scene.granted).saturating_add(PATIENCE)));
    let mut taken = None;
    let seen = loop {
        if taken.is_none() {
            taken = scene.taken(name).await?;
        }
        let seen = scene.seen(LEASE).await?;
        if now_ns() >= end || (taken.is_some() && seen.signalled_ns > 0) {
            break seen;
        }
        pause_for(LOOK).await;
    };
    let Some(loss) = &seen.loss else {
        return Err(Stop::Refuted(format!("{when}: nothing renews the lease, and it was never lost: {seen:?}")));
    };
    ensure!(loss.told_ns >= earliest, "{when}: lost ({}) at {} ns, before {earliest} ns", loss.cause, loss.told_ns);
    ensure!(
        seen.last_permit_ns < latest && seen.permits_after_loss == 0,
        "{when}: a permit was given at {} ns, after {latest} ns, or after the loss: {seen:?}",
        seen.last_permit_ns
    );
    ensure!(
        seen.most_left_ns <= nanos(scene.granted),
        "{when}: a permit said that {} ns are left, more than the granted TTL",
        seen.most_left_ns
    );
    ensure!(seen.signalled_ns > 0, "{when}: the loss was never signalled");
    let Some(taken) = taken else {
        return Err(Stop::Refuted(format!("{when}: nothing renews the lease, and it was never free")));
    };
    ensure!(taken.returned_ns >= earliest, "{when}: granted to {} before {earliest} ns", taken.by);
    ensure!(
        seen.last_permit_ns < taken.returned_ns,
        "{when}: a permit was given at {} ns although {} had been granted the lease by {} ns",
        seen.last_permit_ns,
        taken.by,
        taken.returned_ns
    );
    scene.grows(taken.token)?;
    Ok(json!({
        "jump_ms": jump.saturating_mul(1_000),
        "permits": seen.permits,
        "lost_after_ms": loss.told_ns.saturating_sub(sent_ns) / 1_000_000,
        "free_after_ms": taken.returned_ns.saturating_sub(sent_ns) / 1_000_000,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::SeenLoss;

    const GRANTED: Duration = Duration::from_secs(4);
    const SECOND: u64 = 1_000_000_000;

    /// A holder whose last permit was good for two seconds from its second on, and that was lost then.
    fn lost(cause: &str, told_ns: u64, longest_gap_ns: u64) -> Seen {
        let loss = SeenLoss { cause: cause.into(), at_ns: told_ns, told_ns };
        Seen {
            permits: 9,
            last_permit_ns: SECOND,
            last_left_ns: 2 * SECOND,
            last_deadline_ns: 3 * SECOND,
            most_left_ns: 4 * SECOND,
            loss: Some(loss),
            longest_gap_ns,
            ..Seen::default()
        }
    }

    #[test]
    fn only_a_busy_machine_that_others_saw_excuses_a_loss_at_the_deadline() {
        let judged = |seen: &Seen, slowest_ns| still_held(seen, None, (GRANTED, slowest_ns), "a jump");
        // Renewals without an answer, while the store answered everybody else.
        for cause in ["unresolved", "expired"] {
            assert!(matches!(judged(&lost(cause, 3 * SECOND, 1), 1), Err(Stop::Refuted(_))), "{cause}");
            assert!(matches!(judged(&lost(cause, 3 * SECOND, 2 * SECOND), 1), Err(Stop::NotTried(_))), "{cause}");
            assert!(matches!(judged(&lost(cause, 3 * SECOND, 1), 2 * SECOND), Err(Stop::NotTried(_))), "{cause}");
            // Before the deadline nothing excuses it.
            assert!(
                matches!(judged(&lost(cause, 2 * SECOND, 2 * SECOND), 2 * SECOND), Err(Stop::Refuted(_))),
                "{cause}"
            );
        }
    }
}
