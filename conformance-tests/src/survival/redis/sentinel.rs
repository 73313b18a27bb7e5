//! A Redis and its replica with Sentinels, which promote the replica by themselves.

use super::{kill, record};
use crate::program::Backend;
use crate::survival::CONTESTED;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage};
use lease_servers::{Direction, Mode, RedisPair, RedisSentinel, RedisSetup, redis_command};
use std::time::Duration;

/// The servers, and who is sent where.
struct Watched {
    all: RedisSentinel,
    /// The primary and A are on one side of a cut, the rest is on the other.
    isolated: bool,
    promoted: bool,
}

impl Rig for Watched {
    fn url(&self, who: Worker) -> String {
        let is_beyond = self.isolated && who == Worker::B;
        let pair = self.all.pair();
        let server = if self.promoted || is_beyond { pair.replica() } else { pair.primary() };
        server.url().to_owned()
    }
}

pub(super) fn scenes() -> Vec<Scene> {
    stage(SETUPS, FAULTS)
}

const SENTINEL: &str = "redis/sentinel";
/// Longer than Sentinels take, which wait three seconds before they do anything.
const TTL: Duration = Duration::from_secs(20);

/// The old primary is a replica only a while after the cut has healed.
const TTL_OF_A_CUT: Duration = Duration::from_secs(40);

static SETUPS: &[SetUp<Watched>] = &[SetUp {
    id: SENTINEL,
    means: "a Redis with a replica and three Sentinels; replication is asynchronous",
    backends: &[Backend::Redis],
    start: || Ok(Watched { all: RedisSentinel::start(&RedisSetup::default())?, isolated: false, promoted: false }),
    settle: |rig| Ok(rig.all.pair().wait_in_step()?),
}];

static FAULTS: &[Fault<Watched>] = &[
    Fault {
        id: "failover",
        means: "the primary is killed once the replica has everything, and the Sentinels promote the replica",
        on: &[SENTINEL],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: |rig, _| {
            rig.all.pair().wait_in_step()?;
            failover(rig)
        },
    },
    Fault {
        id: "failover-lag",
        means: "the replica gets nothing of the grants; the primary is killed, the Sentinels promote the replica",
        on: &[SENTINEL],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: |rig| {
            rig.all.pair().link().set(Direction::Replies, Mode::Hole);
            Ok(())
        },
        make: |rig, _| {
            let lost = lag(rig.all.pair())?;
            Ok(failover(rig)?.and("lost_stream_bytes", lost))
        },
    },
    Fault {
        id: "isolated-primary",
        means: "primary and holder are cut off from the rest, the Sentinels promote the replica, and the cut heals",
        on: &[SENTINEL],
        ttl: TTL_OF_A_CUT,
        outlasts: false,
        prepare: nothing,
        before: |rig| {
            rig.isolated = true;
            Ok(rig.all.pair().cut_link()?)
        },
        make: isolated,
    },
];

fn lag(pair: &RedisPair) -> Result<u64, Trouble> {
    match pair.lag_bytes()? {
        0 => Err(Trouble::NotShown("the replica has all that the primary wrote".to_owned())),
        lost => Ok(lost),
    }
}

fn failover(rig: &mut Watched) -> Result<Witness, Trouble> {
    let old = kill(rig.all.pair_mut().primary_mut())?;
    rig.all.pair().link().set(Direction::Replies, Mode::Pass);
    rig.all.wait_until_promoted()?;
    rig.promoted = true;
    let role = super::info(rig.all.pair().replica(), "replication", "role")?;
    let new = rig.all.pair().replica().pid().unwrap_or_default();
    Ok(Witness::of("killed_pid", old).and("promoted_pid", new).and("role_read_back", role))
}

fn isolated(rig: &mut Watched, _: &Moment) -> Result<Witness, Trouble> {
    let pair = rig.all.pair();
    let lost = lag(pair)?;
    rig.all.wait_until_promoted()?;
    let role = |server| super::info(server, "replication", "role");
    let roles = (role(pair.primary())?, role(pair.replica())?);
    if roles != ("master".to_owned(), "master".to_owned()) {
        return Err(Trouble::NotShown(format!("the two are not primaries at the same time: {roles:?}")));
    }
    let has_record = redis_command(pair.primary(), &["EXISTS", &record(CONTESTED)])?;
    pair.link().heal();
    rig.all.wait_until_demoted()?;
    rig.promoted = true;
    let demoted = role(pair.primary())?;
    Ok(Witness::of("roles_meanwhile", format!("{} and {}", roles.0, roles.1))
        .and("records_of_a_on_the_old_primary", has_record)
        .and("lost_stream_bytes", lost)
        .and("role_of_the_old_primary_after", demoted))
}
