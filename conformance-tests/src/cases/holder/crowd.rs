//! Ten thousand guards at once.

use super::ends::held;
use super::shifted::Shifted;
use crate::context::{CONNECTING, CaseResult, Stage, Stop, ensure, evidence, millis, now, part, pause_for};
use lease_core::hold::{Keeper, LeaseGuard};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const MANY: usize = 10_000;
/// How many are timed, to decide how many there are: fewer where that is slow, so that the case does not take minutes.
const PROBE: usize = 200;
/// Fewer than these show nothing of a crowd.
const LEAST: usize = MANY / 10;
/// How many are acquired at the same time.
const AT_ONCE: usize = 50;
/// What a process may have more of with ten thousand guards than with none: connections of a pool, and their tasks.
const SHARED: usize = 64;
/// How many tasks there may be while they are renewed: a few for each renewal that is under way, which are few at one time.
const IN_A_ROUND: usize = 512;

pub(super) async fn ten_thousand(stage: Stage) -> CaseResult {
    let before = Load::now();
    let connecting = tokio::time::timeout(CONNECTING, stage.run.subject.client()).await;
    let client = connecting.map_err(|_| Stop::NotTried("connecting did not end within 60 s".into()))??;
    let shifted = Shifted::new(client);
    let keeper = Keeper::start(Arc::new(shifted.clone()))?;
    let begun = now();
    // The first ones open connections, and are not timed.
    let mut guards = acquire(&stage, &keeper, 0, PROBE).await?;
    let probing = now();
    guards.extend(acquire(&stage, &keeper, PROBE, 2 * PROBE).await?);
    let probed = now().saturating_since(probing);
    let count = how_many(probed)?;
    guards.extend(acquire(&stage, &keeper, 2 * PROBE, count).await?);
    let acquired = now().saturating_since(begun);
    let mut rounds = Vec::new();
    for _ in 0..2 {
        rounds.push(round(&stage, &shifted, &guards, before).await?);
    }
    let lost = guards.iter().find_map(LeaseGuard::loss);
    ensure!(lost.is_none(), "after two rounds a guard of {count} was lost: {lost:?}");
    let at_rest = Load::now().more_than(before);
    ensure!(at_rest.tasks <= SHARED, "{count} guards at rest have {} tasks", at_rest.tasks);
    ensure!(at_rest.sockets <= Some(SHARED), "{count} guards have {:?} connections", at_rest.sockets);
    let begun = now();
    drop(guards);
    let all = u64::try_from(count).unwrap_or(u64::MAX);
    while shifted.counts.releases() < all && now().saturating_since(begun) < Duration::from_mins(1) {
        pause_for(Duration::from_millis(10)).await;
    }
    let released = shifted.counts.releases();
    ensure!(released == all, "{count} guards were dropped, and their leases were released {released} times");
    Ok(evidence! {
        "guards_at_once": count,
        "fewer_because": (count < MANY).then(|| format!("{PROBE} grants took {} ms", millis(probed))),
        "acquired_in_ms": millis(acquired),
        "tasks_at_rest": at_rest.tasks,
        "connections_at_rest": at_rest.sockets,
        "renewal_rounds": rounds,
        "released": released,
    })
}

/// How many guards there are, by how long [`PROBE`] grants took. Where even the fewest would take minutes, they would be no crowd.
fn how_many(probed: Duration) -> Result<usize, Stop> {
    match millis(probed) {
        0..400 => Ok(MANY),
        400..800 => Ok(MANY / 2),
        800..8_000 => Ok(LEAST),
        took => Err(Stop::NotTried(format!("{PROBE} grants took {took} ms, so not even {LEAST} guards can be tried"))),
    }
}

/// Guards number `from` to `to`.
async fn acquire(stage: &Stage, keeper: &Keeper, from: usize, to: usize) -> Result<Vec<LeaseGuard>, Stop> {
    let mut running = JoinSet::new();
    for lane in 0..AT_ONCE {
        let (stage, keeper) = (stage.clone(), keeper.clone());
        running.spawn(async move {
            let mut guards = Vec::new();
            for number in (from..to).skip(lane).step_by(AT_ONCE) {
                let name = stage.resource(&number.to_string())?;
                guards.push(held(&keeper, &name, stage.run.long()).await?);
            }
            Ok::<_, Stop>(guards)
        });
    }
    let mut all = Vec::new();
    while let Some(lane) = running.join_next().await {
        all.extend(lane.map_err(|e| Stop::Refuted(format!("acquiring ended by itself: {e}")))??);
    }
    Ok(all)
}

/// One round of renewals: the clock moves over the time in which they are due, in steps, as it would by itself.
async fn round(
    stage: &Stage,
    shifted: &Shifted,
    guards: &[LeaseGuard],
    before: Load,
) -> Result<serde_json::Value, Stop> {
    let third = part(stage.run.long().duration(), 3);
    let counts = &shifted.counts;
    let (renewals_before, begun) = (counts.begun(), now());
    let mut most = before;
    // They are due in the last tenth of the third.
    shifted.advance(part(third, 100).saturating_mul(88));
    for _ in 0..28 {
        shifted.advance(part(third, 200));
        pause_for(Duration::from_millis(10)).await;
        most = most.or_more(Load::now());
    }
    let all = u64::try_from(guards.len()).unwrap_or(u64::MAX);
    let requests = || counts.begun().saturating_sub(renewals_before);
    while requests() < all || counts.under_way() > 0 {
        ensure!(
            now().saturating_since(begun) < Duration::from_mins(1),
            "after a minute only {} of {all} guards were renewed",
            requests()
        );
        most = most.or_more(Load::now());
        pause_for(Duration::from_millis(5)).await;
    }
    let requests = requests();
    ensure!(requests <= all.saturating_mul(2), "{all} guards took {requests} requests in one round");
    let most = most.more_than(before);
    ensure!(most.tasks <= IN_A_ROUND, "a round of {all} renewals had {} tasks at one time", most.tasks);
    ensure!(most.sockets <= Some(SHARED), "a round of {all} renewals had {:?} connections", most.sockets);
    Ok(serde_json::json!({
        "guards": all,
        "requests": requests,
        "took_ms": millis(now().saturating_since(begun)),
        "tasks_at_once": most.tasks,
        "connections_at_once": most.sockets,
    }))
}

/// What this process has open.
#[derive(Clone, Copy, Debug)]
struct Load {
    tasks: usize,
    /// As the system counts them: none where it does not tell.
    sockets: Option<usize>,
}

impl Load {
    fn now() -> Self {
        let files = std::fs::read_dir("/proc/self/fd").ok();
        let is_socket = |file: &std::fs::DirEntry| {
            std::fs::read_link(file.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
        };
        let sockets = files.map(|files| files.filter_map(Result::ok).filter(is_socket).count());
        Self { tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(), sockets }
    }

    fn or_more(self, other: Self) -> Self {
        Self { tasks: self.tasks.max(other.tasks), sockets: self.sockets.max(other.sockets) }
    }

    fn more_than(self, before: Self) -> Self {
        let sockets = self.sockets.zip(before.sockets).map(|(now, before)| now.saturating_sub(before));
        Self { tasks: self.tasks.saturating_sub(before.tasks), sockets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_has_fewer_guards_and_a_very_slow_one_none() {
        let after = |ms| how_many(Duration::from_millis(ms)).ok();
        assert_eq!([0, 399, 400, 800, 7_999].map(after), [MANY, MANY, MANY / 2, LEAST, LEAST].map(Some));
        assert!(matches!(how_many(Duration::from_secs(8)), Err(Stop::NotTried(_))));
    }
}
