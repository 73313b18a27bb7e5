//! A lease without a guard, acquired and renewed by hand.

use super::scene::{Scene, THREE_HOURS, nanos};
use super::storm::Storm;
use super::{LOOK, PATIENCE, SHORT_TTL};
use crate::context::{CaseResult, Stage, Stop, ensure, evidence, pause_for};
use crate::worker::{Answer, Command, Reply, now_ns};
use lease_core::ResourceName;
use std::time::Duration;

/// How many renewals at least, and into how many of them a jump has to fall.
const RENEWALS: u32 = 100;
const MET: u32 = 3;

/// What is counted over all leases of the case.
#[derive(Default)]
struct Counts {
    renewals: u32,
    met: u32,
    jumps: usize,
    lost_after: Vec<u64>,
}

pub(in super::super) async fn plain_lease(stage: Stage) -> CaseResult {
    let mut scene = Scene::start(stage, SHORT_TTL).await?;
    let mut counts = Counts::default();
    let name = scene.stage.resource("r")?;
    for hours in [THREE_HOURS, -THREE_HOURS] {
        scene.jump(hours, "before the lease was acquired").await?;
        let mut held = Held::acquire(&mut scene, &name, format!("released-{hours}")).await?;
        scene.jump(hours.saturating_neg(), "between acquire and renewal").await?;
        held.renew(&mut scene).await?;
        held.renew_in_a_storm(&mut scene, hours, &mut counts).await?;
        scene.jump(0, "back, before the release").await?;
        held.release(&mut scene).await?;
        scene.is_free(&name).await?;

        let mut held = Held::acquire(&mut scene, &name, format!("ended-{hours}")).await?;
        held.renew(&mut scene).await?;
        scene.jump(hours, "after the last renewal").await?;
        counts.lost_after.push(held.ends(&mut scene).await?);
    }
    let mut seen = scene.end().await?;
    seen.extend(evidence! {
        "renewals": counts.renewals,
        "renewals_with_a_jump_in_them": counts.met,
        "jumps_without_a_pause": counts.jumps,
        "past_its_deadline_after_ms": counts.lost_after,
    });
    Ok(seen)
}

/// A lease that the holder has.
struct Held {
    lease: String,
    name: ResourceName,
    /// Right before the last request that it lives by was sent, and right after that was answered.
    sent_ns: u64,
    answered_ns: u64,
}

impl Held {
    async fn acquire(scene: &mut Scene, name: &ResourceName, lease: String) -> Result<Self, Stop> {
        let acquire =
            Command::Acquire { lease: lease.clone(), resource: name.as_str().into(), ttl_ms: scene.ttl.as_millis() };
        let reply = scene.tell(acquire).await?;
        match reply.answer {
            Answer::Acquired { token, .. } => scene.grows(token)?,
            other => return Err(Stop::Refuted(format!("{name} should be free, but the answer was {other:?}"))),
        }
        let held = Self { lease, name: name.clone(), sent_ns: reply.began_ns, answered_ns: reply.ended_ns };
        held.is_held(scene, "after the acquisition").await?;
        Ok(held)
    }

    /// What the holder's own lease says, what it may say, and what the others see.
    async fn is_held(&self, scene: &mut Scene, when: &str) -> Result<(), Stop> {
        let (past, remaining, reply) = self.touch(scene).await?;
        let granted = nanos(scene.granted);
        ensure!(
            remaining <= granted,
            "{when}: the lease says that {remaining} ns are left; the granted TTL is {granted} ns"
        );
        let earliest = scene.earliest_end_ns(self.sent_ns);
        ensure!(!past || reply.ended_ns >= earliest, "{when}: the lease says that its deadline has passed");
        if let Some(taken) = scene.taken(&self.name).await? {
            ensure!(taken.returned_ns >= earliest, "{when}: the lease was granted to {}", taken.by);
            return Err(self.too_slow(when));
        }
        Ok(())
    }

    /// Whether its deadline has passed, and how many nanoseconds are left, by its own account.
    async fn touch(&self, scene: &mut Scene) -> Result<(bool, u64, Reply), Stop> {
        let reply = scene.tell(Command::Touch { lease: self.lease.clone() }).await?;
        match reply.answer {
            Answer::Touched { past_deadline, remaining_ms } => {
                Ok((past_deadline, nanos(Duration::from_millis(remaining_ms)), reply))
            }
            other => Err(Stop::NotTried(format!("the holder looks at its lease and says {other:?}"))),
        }
    }

    async fn renew(&mut self, scene: &mut Scene) -> Result<Reply, Stop> {
        let reply = scene.tell(Command::Renew { lease: self.lease.clone() }).await?;
        match &reply.answer {
            Answer::Renewed { .. } => (self.sent_ns, self.answered_ns) = (reply.began_ns, reply.ended_ns),
            _ if reply.ended_ns >= scene.earliest_end_ns(self.sent_ns) => return Err(self.too_slow("a renewal")),
            other => return Err(Stop::Refuted(format!("the renewal of a live grant was answered by {other:?}"))),
        }
        self.is_held(scene, "after a renewal").await?;
        Ok(reply)
    }

    /// Renews while the clock jumps all the time.
    async fn renew_in_a_storm(&mut self, scene: &mut Scene, hours: i64, counts: &mut Counts) -> Result<(), Stop> {
        let storm = Storm::begin(scene.clock.clone(), hours)?;
        let (mut renewals, mut met) = (0_u32, 0_u32);
        let end = now_ns().saturating_add(nanos(PATIENCE));
        while renewals < RENEWALS || met < MET {
            let reply = self.renew(scene).await?;
            renewals = renewals.saturating_add(1);
            met = met.saturating_add(u32::from(storm.fell_into(reply.began_ns, reply.ended_ns)));
            if now_ns() >= end && met < MET {
                return Err(Stop::NotTried(format!("a jump fell into only {met} of {renewals} renewals")));
            }
        }
        counts.jumps = counts.jumps.saturating_add(storm.end().await?);
        (counts.renewals, counts.met) = (counts.renewals.saturating_add(renewals), counts.met.saturating_add(met));
        scene.is_now_at(hours)
    }

    async fn release(self, scene: &mut Scene) -> Result<(), Stop> {
        let reply = scene.tell(Command::Release { lease: self.lease.clone() }).await?;
        match &reply.answer {
            Answer::Released { how } if how == "Released" => Ok(()),
            _ if reply.ended_ns >= scene.earliest_end_ns(self.sent_ns) => Err(self.too_slow("the release")),
            other => Err(Stop::Refuted(format!("the release of a live grant was answered by {other:?}"))),
        }
    }

    /// Waits for its end, which must come at its real deadline; returns after how many milliseconds the holder saw it.
    async fn ends(self, scene: &mut Scene) -> Result<u64, Stop> {
        let (earliest, latest) = (scene.earliest_end_ns(self.sent_ns), scene.latest_end_ns(self.answered_ns));
        let mut last_live_ns = self.answered_ns;
        let seen_ns = loop {
            let (past, remaining, reply) = self.touch(scene).await?;
            ensure!(remaining <= nanos(scene.granted), "the lease says that {remaining} ns are left");
            if past {
                break reply.ended_ns;
            }
            last_live_ns = reply.began_ns;
            ensure!(last_live_ns < latest, "the lease says at {last_live_ns} ns that it lives, after {latest} ns");
            pause_for(LOOK).await;
        };
        ensure!(
            seen_ns >= earliest,
            "the lease says at {seen_ns} ns that its deadline has passed, before {earliest} ns"
        );
        let end = latest.saturating_add(nanos(scene.stage.run.freed_within(scene.granted).saturating_add(PATIENCE)));
        let taken = loop {
            if let Some(taken) = scene.taken(&self.name).await? {
                break taken;
            }
            ensure!(now_ns() < end, "nobody renews the lease, and it was never free");
            pause_for(LOOK).await;
        };
        ensure!(taken.returned_ns >= earliest, "granted to {} before {earliest} ns", taken.by);
        ensure!(last_live_ns < taken.returned_ns, "the lease said that it lives after it was granted to {}", taken.by);
        scene.grows(taken.token)?;
        let renewal = scene.tell(Command::Renew { lease: self.lease.clone() }).await?.answer;
        ensure!(matches!(renewal, Answer::Lost { .. }), "the renewal of an ended grant was answered by {renewal:?}");
        let release = scene.tell(Command::Release { lease: self.lease.clone() }).await?.answer;
        let not_held = matches!(&release, Answer::Released { how } if how == "NotHeld");
        ensure!(not_held, "the release of an ended grant was answered by {release:?}");
        Ok(seen_ns.saturating_sub(self.sent_ns) / 1_000_000)
    }

    fn too_slow(&self, when: &str) -> Stop {
        Stop::NotTried(format!("{when}: the machine was too slow to renew {} in time", self.name))
    }
}
