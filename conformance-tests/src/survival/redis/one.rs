//! One Redis.

use super::{disk, is_anew, kill, memory, record, run_id};
use crate::program::Backend;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage};
use crate::survival::{CONTESTED, KEPT};
use lease_servers::{Backup, RedisSetup, Server, process_state, redis_command};
use std::time::{Duration, Instant, SystemTime};

/// A Redis, and a backup of it.
pub(super) struct One {
    pub(super) server: Server,
    backup: Option<Backup>,
}

impl Rig for One {
    fn url(&self, _who: Worker) -> String {
        self.server.url().to_owned()
    }
}

const BOTH: &[Backend] = &[Backend::Redis, Backend::RedisFred];
/// Both clients run the same scripts: what only the server's settings decide is shown with one of them.
const ONE: &[Backend] = &[Backend::Redis];

pub(super) const ALWAYS: &str = "redis/aof-always";
pub(super) const EVERYSEC: &str = "redis/aof-everysec";
const SNAPSHOTS: &str = "redis/snapshots";
const NOTHING_KEPT: &str = "redis/none";
pub(super) const ALL_KEYS: &str = "redis/allkeys-lru";
pub(super) const VOLATILE: &str = "redis/volatile-lru";

/// Long enough for a restart, on a machine with something else to do.
pub(super) const TTL: Duration = Duration::from_secs(4);

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = stage(SETUPS, FAULTS);
    scenes.extend(stage(SETUPS, disk::FAULTS));
    scenes.extend(stage(SETUPS, memory::FAULTS));
    // The scenes of one set-up together.
    scenes.sort_by_key(|scene| {
        let backend = scene.backend;
        (SETUPS.iter().position(|setup| setup.id == scene.setup), scene.setup, order(scene.fault), backend)
    });
    scenes
}

/// Faults of different files keep their order.
fn order(fault: &str) -> Option<usize> {
    FAULTS.iter().chain(disk::FAULTS).chain(memory::FAULTS).position(|other| other.id == fault)
}

static SETUPS: &[SetUp<One>] = &[
    SetUp {
        id: ALWAYS,
        means: "one Redis that syncs each write to its append-only file before it answers, and evicts nothing",
        backends: BOTH,
        start: || start(&RedisSetup::default()),
        settle: nothing,
    },
    SetUp {
        id: EVERYSEC,
        means: "one Redis that syncs its append-only file once a second",
        backends: ONE,
        start: || start(&RedisSetup { append_fsync: "everysec", ..RedisSetup::default() }),
        settle: sync,
    },
    SetUp {
        id: SNAPSHOTS,
        means: "one Redis that writes a snapshot now and then, the last one before the grants",
        backends: ONE,
        start: || start(&RedisSetup { append_only: false, snapshots: Some("3600 1"), ..RedisSetup::default() }),
        settle: |one| Ok(redis_command(&one.server, &["SAVE"]).map(drop)?),
    },
    SetUp {
        id: NOTHING_KEPT,
        means: "one Redis that keeps nothing on disk",
        backends: ONE,
        start: || start(&RedisSetup { append_only: false, ..RedisSetup::default() }),
        settle: nothing,
    },
    SetUp {
        id: ALL_KEYS,
        means: "one Redis that evicts any key when memory is short",
        backends: ONE,
        start: || start(&RedisSetup { maxmemory_policy: "allkeys-lru", ..RedisSetup::default() }),
        settle: nothing,
    },
    SetUp {
        id: VOLATILE,
        means: "one Redis that evicts keys with an expiry when memory is short",
        backends: ONE,
        start: || start(&RedisSetup { maxmemory_policy: "volatile-lru", ..RedisSetup::default() }),
        settle: nothing,
    },
];

static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "kill-restart",
        means: "the server is killed and started again on its data",
        on: &[ALWAYS, EVERYSEC, SNAPSHOTS, NOTHING_KEPT],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: kill_restart,
    },
    Fault {
        id: "frozen",
        means: "the server is stopped for longer than the TTL, and goes on",
        on: &[ALWAYS],
        ttl: Duration::from_secs(2),
        outlasts: true,
        prepare: nothing,
        before: nothing,
        make: freeze,
    },
    Fault {
        id: "clock-forward",
        means: "the server's wall clock jumps an hour ahead",
        on: &[ALWAYS],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: nothing,
        make: |one, _| move_clock(&one.server, HOUR_S),
    },
    Fault {
        id: "clock-back",
        means: "the server's wall clock jumps an hour back",
        on: &[ALWAYS],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: nothing,
        make: |one, _| move_clock(&one.server, -HOUR_S),
    },
    Fault {
        id: "flushall",
        means: "somebody sends FLUSHALL",
        on: &[ALWAYS],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: flush,
    },
    Fault {
        id: "record-deleted",
        means: "somebody deletes the records of the two leases that A holds",
        on: &[ALWAYS],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: delete,
    },
    Fault {
        id: "restore",
        means: "a backup from before the grants is put in the place of the data",
        on: &[ALWAYS],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: back_up,
        make: restore,
    },
    Fault {
        id: "restore-clock-behind",
        means: "a backup from before the grants is put in the place of the data, and the clock is an hour behind",
        on: &[ALWAYS],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: back_up,
        make: |one, moment| {
            let behind = move_clock(&one.server, -HOUR_S)?;
            Ok(restore(one, moment)?.with(behind))
        },
    },
];

pub(super) const HOUR_S: i64 = 3_600;

fn start(setup: &RedisSetup) -> Result<One, Trouble> {
    Ok(One { server: lease_servers::redis(setup)?, backup: None })
}

/// Syncs the append-only file once: under `always` the next write does that.
fn sync(one: &mut One) -> Result<(), Trouble> {
    for fsync in ["always", "everysec"] {
        redis_command(&one.server, &["CONFIG", "SET", "appendfsync", fsync])?;
        redis_command(&one.server, &["SET", "unrelated", fsync])?;
    }
    Ok(())
}

fn kill_restart(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let before = run_id(&one.server)?;
    let old = kill(&mut one.server)?;
    one.server.restart()?;
    let after = is_anew(&one.server, &before)?;
    let new = one.server.pid().unwrap_or_default();
    Ok(Witness::of("killed_pid", old).and("restarted_pid", new).and("run_id_before", before).and("run_id_after", after))
}

fn freeze(one: &mut One, moment: &Moment) -> Result<Witness, Trouble> {
    let pid = one.server.pid().unwrap_or_default();
    let begun = Instant::now();
    one.server.pause();
    std::thread::sleep(moment.ttl.saturating_add(Duration::from_millis(500)));
    let state = process_state(pid);
    one.server.resume();
    if state != Some('T') {
        return Err(Trouble::NotShown(format!("process {pid} was not stopped, but in state {state:?}")));
    }
    let frozen_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Witness::of("stopped_pid", pid).and("state_before_it_went_on", "T").and("frozen_ms", frozen_ms))
}

/// Moves the clock, and reads the server's time against ours.
pub(super) fn move_clock(server: &Server, ahead_s: i64) -> Result<Witness, Trouble> {
    server.set_clock(ahead_s)?;
    let told = redis_command(server, &["TIME"])?;
    let there: i64 = told.lines().next().and_then(|seconds| seconds.parse().ok()).unwrap_or_default();
    let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let here = i64::try_from(here.as_secs()).unwrap_or_default();
    let seen_s = there.saturating_sub(here);
    if seen_s.saturating_sub(ahead_s).abs() > 5 {
        return Err(Trouble::NotShown(format!("the server's clock is {seen_s} s ahead of ours, not {ahead_s} s")));
    }
    Ok(Witness::of("server_time_s", there).and("our_time_s", here).and("ahead_s", seen_s))
}

/// In one step, so that nobody writes between the two.
fn flush(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let script = "local n = redis.call('DBSIZE') redis.call('FLUSHALL') return n .. ' ' .. redis.call('DBSIZE')";
    let told = redis_command(&one.server, &["EVAL", script, "0"])?;
    match told.split_once(' ') {
        Some((before, "0")) if before != "0" => Ok(Witness::of("keys_before", before).and("keys_after", "0")),
        _ => Err(Trouble::NotShown(format!("keys before and after: {told}"))),
    }
}

fn delete(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let (contested, kept) = (record(CONTESTED), record(KEPT));
    let deleted = redis_command(&one.server, &["DEL", &contested, &kept])?;
    if deleted != "2" {
        return Err(Trouble::NotShown(format!("{deleted} records were deleted, not 2")));
    }
    Ok(Witness::of("deleted_keys", format!("{contested} {kept}")).and("deleted", deleted))
}

/// What is written after the backup and is not there once it is restored.
const LATER: &str = "written-after-the-backup";

fn back_up(one: &mut One) -> Result<(), Trouble> {
    one.backup = Some(Backup::of(&one.server)?);
    Ok(redis_command(&one.server, &["SET", LATER, "1"]).map(drop)?)
}

fn restore(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let backup = one.backup.take().ok_or_else(|| Trouble::Failed("there is no backup".to_owned()))?;
    let before = run_id(&one.server)?;
    backup.restore_to(&mut one.server)?;
    let after = is_anew(&one.server, &before)?;
    let left = redis_command(&one.server, &["EXISTS", LATER])?;
    if left != "0" {
        return Err(Trouble::NotShown("a key that was written after the backup is there".to_owned()));
    }
    Ok(Witness::of("run_id_before", before).and("run_id_after", after).and("key_written_after_the_backup", "gone"))
}
