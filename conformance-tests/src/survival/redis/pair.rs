//! A Redis and its replica.

use super::one::{HOUR_S, TTL, move_clock};
use super::{is_anew, kill, run_id};
use crate::program::Backend;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage, until};
use lease_servers::{RedisPair, RedisSetup, Server, redis_command};

/// A Redis and its replica, and which of them clients are sent to.
struct Pair {
    pair: RedisPair,
    promoted: bool,
}

impl Pair {
    fn start(setup: &RedisSetup) -> Result<Self, Trouble> {
        Ok(Self { pair: RedisPair::start(setup)?, promoted: false })
    }

    fn serving(&self) -> &Server {
        if self.promoted { self.pair.replica() } else { self.pair.primary() }
    }
}

impl Rig for Pair {
    fn url(&self, _who: Worker) -> String {
        self.serving().url().to_owned()
    }
}

pub(super) fn scenes() -> Vec<Scene> {
    stage(SETUPS, FAULTS)
}

const PAIR: &str = "redis/pair";
const PAIR_NOTHING_KEPT: &str = "redis/pair-none";

static SETUPS: &[SetUp<Pair>] = &[
    SetUp {
        id: PAIR,
        means: "a Redis with a replica, which sync each write to their append-only files; replication is asynchronous",
        backends: &[Backend::Redis, Backend::RedisFred],
        start: || Pair::start(&RedisSetup::default()),
        settle: |rig| Ok(rig.pair.wait_in_step()?),
    },
    SetUp {
        id: PAIR_NOTHING_KEPT,
        means: "a Redis with a replica, which keep nothing on disk",
        backends: &[Backend::Redis],
        start: || Pair::start(&RedisSetup { append_only: false, ..RedisSetup::default() }),
        settle: |rig| Ok(rig.pair.wait_in_step()?),
    },
];

static FAULTS: &[Fault<Pair>] = &[
    Fault {
        id: "failover",
        means: "the primary is killed once the replica has everything, and the replica is promoted",
        on: &[PAIR],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: |rig, _| {
            rig.pair.wait_in_step()?;
            failover(rig)
        },
    },
    Fault {
        id: "failover-lag",
        means: "the replica is cut off before the grants; the primary is killed, the replica is promoted",
        on: &[PAIR],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: |rig| Ok(rig.pair.cut_link()?),
        make: |rig, _| lagging_failover(rig),
    },
    Fault {
        id: "failover-lag-clock-behind",
        means: "the same, and the replica's clock is an hour behind",
        on: &[PAIR],
        ttl: TTL,
        outlasts: false,
        prepare: |rig| Ok(rig.pair.replica_mut().put_on_clock()?),
        before: |rig| Ok(rig.pair.cut_link()?),
        make: |rig, _| {
            let behind = move_clock(rig.pair.replica(), -HOUR_S)?;
            Ok(lagging_failover(rig)?.with(behind))
        },
    },
    Fault {
        id: "primary-restart",
        means: "the primary is killed and is back, empty, before anybody promotes the replica, which copies it",
        on: &[PAIR_NOTHING_KEPT],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: primary_restart,
    },
];

fn failover(rig: &mut Pair) -> Result<Witness, Trouble> {
    let old = kill(rig.pair.primary_mut())?;
    rig.pair.promote()?;
    rig.promoted = true;
    let role = super::info(rig.pair.replica(), "replication", "role")?;
    if role != "master" {
        return Err(Trouble::NotShown(format!("the replica's role is {role}")));
    }
    let new = rig.pair.replica().pid().unwrap_or_default();
    Ok(Witness::of("killed_pid", old).and("promoted_pid", new).and("role_read_back", role))
}

fn lagging_failover(rig: &mut Pair) -> Result<Witness, Trouble> {
    let lost = rig.pair.lag_bytes()?;
    if lost == 0 {
        return Err(Trouble::NotShown("the replica has all that the primary wrote".to_owned()));
    }
    Ok(failover(rig)?.and("lost_stream_bytes", lost))
}

fn primary_restart(rig: &mut Pair, _: &Moment) -> Result<Witness, Trouble> {
    // What somebody writes there after the restart is not this key.
    const EARLIER: &str = "written-before";
    redis_command(rig.pair.primary(), &["SET", EARLIER, "1"])?;
    rig.pair.wait_in_step()?;
    let before = run_id(rig.pair.primary())?;
    let old = kill(rig.pair.primary_mut())?;
    rig.pair.primary_mut().restart()?;
    let after = is_anew(rig.pair.primary(), &before)?;
    until("the replica has copied that there is nothing", || {
        match redis_command(rig.pair.replica(), &["EXISTS", EARLIER]) {
            Ok(count) if count == "0" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    let new = rig.pair.primary().pid().unwrap_or_default();
    Ok(Witness::of("killed_pid", old)
        .and("restarted_pid", new)
        .and("run_id_before", before)
        .and("run_id_after", after)
        .and("what_the_replica_had", "gone"))
}
