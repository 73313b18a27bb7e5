//! Many holders, each in some trouble: lost in time when it lasts, kept when it does not.

use super::fault::Kind;
use super::group::Group;
use super::many::{Told, all, over_all, ttl};
use crate::context::{
    CaseResult, Stage, Stop, acquire_when_free, ensure, evidence, millis, now, part, pause_for, release, renew,
};
use crate::figures;
use crate::history::Recorded;
use crate::task::Task;
use crate::worker::Seen;
use lease_core::{BootInstant, Lease, LeaseBackend as _, ResourceName, Ttl};
use serde_json::{Value, json};
use std::time::Duration;

/// From the last permit to the answer that told the observer of its grant.
const TO_NEXT_GRANT: &str = "least_time_from_last_permit_to_next_grant_us";
/// From the deadline that the last permit told to when the guard noticed.
const AFTER_DEADLINE: &str = "latest_loss_after_deadline_us";
/// The least that was left when a renewal came.
const SLACK: &str = "least_renewal_slack_ms";
const TROUBLE: &str = "trouble_ms";

pub(super) async fn loss_by_deadline(stage: Stage) -> CaseResult {
    let (mut seen, told) = all(&stage, &[Kind::ReplyStalled], lost).await?;
    seen.insert(TO_NEXT_GRANT.to_owned(), json!(over_all(&told, TO_NEXT_GRANT, u64::min)));
    seen.insert(AFTER_DEADLINE.to_owned(), json!(over_all(&told, AFTER_DEADLINE, u64::max)));
    Ok(seen)
}

/// A machine on which something takes so long does not let every holder hear of its loss before the deadline.
const SLOW: Duration = Duration::from_millis(100);

/// What an observer saw when it took a lease over.
struct Taken {
    /// Its first try.
    lease: Lease,
    /// The call that got it.
    returned: BootInstant,
}

async fn lost(stage: Stage, kind: Kind, count: u32) -> Result<Told, Stop> {
    let ttl = ttl(&stage, Duration::from_millis(1_500));
    let mut group = Group::start(&stage, kind, ttl, count).await?;
    let observer = stage.client().await?;
    let granted = stage.run.limits.granted_ttl(ttl)?;
    let (trouble, worker, names) = group.parts(&stage);
    let names = names.to_vec();
    let (begun, witness) = trouble.begin(worker, &names).await?;
    let mut slowest = Duration::ZERO;
    match kind {
        // Nobody can be granted anything while the server is away.
        Kind::ServerFrozen | Kind::ServerKilled => {
            pause_for(granted.saturating_add(part(granted, 4))).await;
            let (trouble, worker, _) = group.parts(&stage);
            trouble.end(worker).await?;
        }
        // With the record, what kept others out is gone. What is left to show is that the holder learns of it, by its deadline at the
        // latest: so the observer waits for that.
        Kind::RecordDeleted => slowest = slowest_answer(&observer, &names, granted).await,
        _ => {}
    }
    let taking = names.iter().map(|name| take(stage.clone(), observer.clone(), name.clone(), ttl, granted));
    let mut taken = Vec::new();
    for one in taking.map(Task::spawn).collect::<Vec<_>>() {
        taken.push(one.await.map_err(|e| Stop::Refuted(format!("the observer ended by itself: {e}")))??);
    }
    if !kind.hits_all() {
        let (trouble, worker, _) = group.parts(&stage);
        trouble.end(worker).await?;
    }
    // Time for a late good answer to arrive, which must revive nothing.
    pause_for(part(granted, 2)).await;
    let seen = group.seen_when(|_, seen| seen.signalled_ns > 0).await?;
    let told = judge_lost(kind, (begun, slowest), &names, &seen, &taken)?;
    for taken in &taken {
        let lease = match renew(&observer, &taken.lease).await {
            // A busy machine may have let the observer's own lease end meanwhile.
            Err(_) if taken.lease.is_past_deadline() => continue,
            renewed => renewed?,
        };
        release(&observer, &lease).await?;
    }
    group.worker.end().await.map_err(Stop::NotTried)?;
    Ok(Told { witness, ..told })
}

async fn take(
    stage: Stage,
    observer: Recorded,
    name: ResourceName,
    ttl: Ttl,
    granted: Duration,
) -> Result<Taken, Stop> {
    // A server that was just started needs a moment, and so does a client to find it again.
    let end = now().saturating_add(stage.run.freed_within(granted));
    loop {
        match acquire_when_free(&stage, &observer, &name, ttl, granted).await {
            Ok(lease) => return Ok(Taken { lease, returned: now() }),
            Err(stop) if now() >= end => return Err(stop),
            Err(_) => pause_for(Duration::from_millis(20)).await,
        }
    }
}

/// Looks at the leases again and again for so long; the longest that an answer took.
async fn slowest_answer(observer: &Recorded, names: &[ResourceName], time: Duration) -> Duration {
    let end = now().saturating_add(time);
    let mut slowest = Duration::ZERO;
    for name in names.iter().cycle() {
        let asked = now();
        if asked >= end {
            break;
        }
        // An answer is not needed, only how long it takes.
        drop(observer.inspect(name).await);
        slowest = slowest.max(now().saturating_since(asked));
        pause_for(Duration::from_millis(20)).await;
    }
    slowest
}

fn judge_lost(
    kind: Kind,
    (begun, slowest): (BootInstant, Duration),
    names: &[ResourceName],
    seen: &[Seen],
    taken: &[Taken],
) -> Result<Told, Stop> {
    let (mut counted, mut discarded) = (0_u32, 0_u32);
    let (mut nearest, mut latest) = (u64::MAX, 0);
    let mut causes: Vec<&str> = Vec::new();
    for ((name, seen), taken) in names.iter().zip(seen).zip(taken) {
        let Some(cause) = judge_loss(kind, begun, name, seen, taken)? else {
            discarded = discarded.saturating_add(1);
            continue;
        };
        counted = counted.saturating_add(1);
        nearest = nearest.min(taken.returned.as_nanos().saturating_sub(seen.last_permit_ns));
        let noticed_ns = seen.loss.as_ref().map_or(0, |loss| loss.at_ns);
        latest = latest.max(noticed_ns.saturating_sub(seen.last_deadline_ns));
        causes.push(cause);
    }
    let longest_gap = Duration::from_nanos(seen.iter().map(|seen| seen.longest_gap_ns).max().unwrap_or_default());
    ensure!(
        kind != Kind::RecordDeleted || counted > 0 || longest_gap.max(slowest) >= SLOW,
        "{}: none of {discarded} holders learned it from the store, which answers within {slowest:?}",
        kind.name()
    );
    causes.sort_unstable();
    causes.dedup();
    let mut evidence = evidence! {
        "holders": counted,
        "holders_not_judged": discarded,
        "causes": causes,
        "permits_after_the_loss": seen.iter().map(|seen| seen.permits_after_loss).sum::<u64>(),
        "longest_gap_between_asking_us": longest_gap.as_micros(),
    };
    if counted > 0 {
        evidence.insert(TO_NEXT_GRANT.to_owned(), json!(nearest / 1_000));
        evidence.insert(AFTER_DEADLINE.to_owned(), json!(latest / 1_000));
    }
    Ok(Told { kind, witness: String::new(), evidence, counted, discarded })
}

/// The cause of one holder's loss; `None` when it shows nothing of the trouble, because the machine was too slow.
fn judge_loss<'a>(
    kind: Kind,
    begun: BootInstant,
    name: &ResourceName,
    seen: &'a Seen,
    taken: &Taken,
) -> Result<Option<&'a str>, Stop> {
    let who = format!("{} ({name})", kind.name());
    let loss = seen.loss.as_ref();
    let loss = loss.ok_or_else(|| Stop::Refuted(format!("{who}: a holder whose lease was taken over saw no loss")))?;
    ensure!(
        seen.permits_after_loss == 0,
        "{who}: {} permits were given after the loss: it was revived",
        seen.permits_after_loss
    );
    ensure!(
        seen.last_permit_ns < taken.returned.as_nanos(),
        "{who}: a permit was given at {} ns although another worker had been granted the lease by {} ns (loss: {}, told at {} ns)",
        seen.last_permit_ns,
        taken.returned.as_nanos(),
        loss.cause,
        loss.told_ns
    );
    ensure!(seen.signalled_ns > 0, "{who}: the loss was never signalled");
    if seen.permits == 0 || loss.told_ns < begun.as_nanos() {
        // Lost before the trouble began.
        return Ok(None);
    }
    if kind == Kind::RecordDeleted && loss.cause != "revoked" {
        // A busy store may not have answered before the deadline. It must have answered some holder, if it answers at all.
        let late = loss.told_ns >= seen.earliest_deadline_ns();
        ensure!(late, "{who}: the loss was called {}, not revoked", loss.cause);
        return Ok(None);
    }
    Ok(Some(&loss.cause))
}

pub(super) async fn no_false_loss(stage: Stage) -> CaseResult {
    let (mut seen, told) = all(&stage, &[Kind::RecordDeleted], kept).await?;
    let trouble: Vec<u64> = told.iter().filter_map(|told| told.evidence.get(TROUBLE).and_then(Value::as_u64)).collect();
    seen.insert(TROUBLE.to_owned(), figures::spread(&trouble));
    seen.insert(SLACK.to_owned(), json!(over_all(&told, SLACK, u64::min)));
    seen.insert("lost".to_owned(), json!(0));
    Ok(seen)
}

async fn kept(stage: Stage, kind: Kind, count: u32) -> Result<Told, Stop> {
    // A server that was killed may take its time to come back.
    let ttl = ttl(&stage, Duration::from_secs(if kind == Kind::ServerKilled { 8 } else { 4 }));
    let granted = stage.run.limits.granted_ttl(ttl)?;
    let mut group = Group::start(&stage, kind, ttl, count).await?;
    let lasts = Duration::from_millis(stage.run.random().checked_rem(300).unwrap_or_default().saturating_add(400));
    let before = group.seen().await?;
    let (trouble, worker, names) = group.parts(&stage);
    let names = names.to_vec();
    let (begun, witness) = trouble.begin(worker, &names).await?;
    // A reply that never comes lasts as long as the holder waits for it.
    pause_for(if kind == Kind::ReplyStalled { Duration::ZERO } else { lasts }).await;
    let (trouble, worker, _) = group.parts(&stage);
    trouble.end(worker).await?;
    let lasted = now().saturating_since(begun);
    // Until the last deadline that stood when the trouble began has passed for certain.
    let over = begun.saturating_add(granted).saturating_add(Duration::from_millis(300));
    pause_for(over.saturating_since(now())).await;
    let is_told = |at: usize, seen: &Seen| {
        let old = before.get(at).map_or(0, |before| before.last_deadline_ns);
        seen.loss.is_some() || seen.last_permit_ns > old
    };
    let seen = group.seen_when(is_told).await?;
    let told = judge_kept(kind, (begun, lasted), &names, &before, &seen)?;
    group.worker.end().await.map_err(Stop::NotTried)?;
    Ok(Told { witness, ..told })
}

/// How long a client may take to find its server again: the time that is not counted as trouble.
const RECONNECT: Duration = Duration::from_secs(1);

fn judge_kept(
    kind: Kind,
    (begun, lasted): (BootInstant, Duration),
    names: &[ResourceName],
    before: &[Seen],
    seen: &[Seen],
) -> Result<Told, Stop> {
    let (mut counted, mut discarded, mut slack) = (0_u32, 0_u32, u64::MAX);
    for ((name, before), seen) in names.iter().zip(before).zip(seen) {
        let left = Duration::from_nanos(before.last_deadline_ns.saturating_sub(begun.as_nanos()));
        // What the machine kept the holder from doing made the trouble longer. A stopped worker's own pause is in `lasted` already.
        let gap = if kind == Kind::WorkerStopped { 0 } else { seen.longest_gap_ns };
        let trouble = lasted.saturating_add(Duration::from_nanos(gap));
        let bearable = left.saturating_mul(2).checked_div(3).unwrap_or_default().saturating_sub(RECONNECT);
        let fine = seen.loss.is_none() && seen.last_permit_ns > before.last_deadline_ns;
        if trouble < bearable {
            ensure!(
                fine,
                "{} ({name}): lost ({:?}) by trouble of {} ms with {} ms left",
                kind.name(),
                seen.loss.as_ref().map(|loss| &loss.cause),
                millis(trouble),
                millis(left)
            );
            counted = counted.saturating_add(1);
            slack = slack.min(seen.least_left_ns);
        } else {
            discarded = discarded.saturating_add(1);
        }
    }
    let mut evidence = evidence! {
        "holders": counted,
        "holders_not_judged": discarded,
        "lost": 0,
        "longest_gap_between_asking_us": seen.iter().map(|seen| seen.longest_gap_ns).max().unwrap_or_default() / 1_000,
    };
    // How long a reply is waited for is the holder's own choice.
    if kind != Kind::ReplyStalled {
        evidence.insert(TROUBLE.to_owned(), json!(millis(lasted)));
    }
    if counted > 0 {
        evidence.insert(SLACK.to_owned(), json!(slack / 1_000_000));
    }
    Ok(Told { kind, witness: String::new(), evidence, counted, discarded })
}
