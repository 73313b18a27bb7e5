//! A PostgreSQL and its standby.

use super::{HOUR_S, kill, move_clock, standby, value};
use crate::program::Backend;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage, until};
use lease_servers::{PostgresPair, PostgresSetup, Replication, Server, postgres_query};
use std::sync::Arc;
use std::time::Duration;

/// A PostgreSQL and its standby, and who is sent where.
pub(super) struct Pair {
    // Shared with the thread of somebody who works on the primary meanwhile.
    servers: Arc<PostgresPair>,
    pub(super) is_synchronous: bool,
    /// The primary and A are on one side of a cut, the standby and B are on the other.
    isolated: bool,
    promoted: bool,
    pub(super) somebody: Option<standby::Somebody>,
}

impl Pair {
    fn start(replication: Replication) -> Result<Self, Trouble> {
        Ok(Self {
            servers: Arc::new(PostgresPair::start(&PostgresSetup::default(), replication)?),
            is_synchronous: replication == Replication::Synchronous,
            isolated: false,
            promoted: false,
            somebody: None,
        })
    }

    pub(super) fn servers(&self) -> &Arc<PostgresPair> {
        &self.servers
    }

    /// The two, to kill and to start them.
    pub(super) fn servers_mut(&mut self) -> Result<&mut PostgresPair, Trouble> {
        Arc::get_mut(&mut self.servers).ok_or_else(|| Trouble::Failed("somebody works on the servers still".to_owned()))
    }
}

impl Rig for Pair {
    fn url(&self, who: Worker) -> String {
        let is_beyond = self.isolated && who == Worker::B;
        let server = if self.promoted || is_beyond { self.servers.standby() } else { self.servers.primary() };
        server.url().to_owned()
    }
}

pub(super) const SYNC: &str = "postgres/standby-sync";
pub(super) const ASYNC: &str = "postgres/standby-async";

/// Long enough for a promotion, on a machine with something else to do.
pub(super) const TTL: Duration = Duration::from_secs(8);

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = stage(SETUPS, FAULTS);
    scenes.extend(stage(SETUPS, standby::FAULTS));
    scenes.sort_by_key(|scene| SETUPS.iter().position(|setup| setup.id == scene.setup));
    scenes
}

static SETUPS: &[SetUp<Pair>] = &[
    SetUp {
        id: SYNC,
        means: "a PostgreSQL that answers a commit when its standby has it too",
        backends: &[Backend::Postgres],
        start: || Pair::start(Replication::Synchronous),
        settle: |rig| Ok(rig.servers.wait_in_step()?),
    },
    SetUp {
        id: ASYNC,
        means: "a PostgreSQL with a standby; replication is asynchronous",
        backends: &[Backend::Postgres],
        start: || Pair::start(Replication::Asynchronous),
        settle: |rig| Ok(rig.servers.wait_in_step()?),
    },
];

static FAULTS: &[Fault<Pair>] = &[
    Fault {
        id: "failover",
        means: "the primary is killed, when a standby that nobody waits for has everything, and the standby is promoted",
        on: &[SYNC, ASYNC],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: |rig, _| {
            if !rig.is_synchronous {
                rig.servers.wait_in_step()?;
            }
            failover(rig)
        },
    },
    Fault {
        id: "failover-lag",
        means: "the standby is cut off before the grants; the primary is killed, the standby is promoted",
        on: &[ASYNC],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: |rig| Ok(rig.servers.cut_link()?),
        make: |rig, _| lagging_failover(rig),
    },
    Fault {
        id: "failover-lag-clock-behind",
        means: "the same, and the standby's clock is an hour behind",
        on: &[ASYNC],
        ttl: TTL,
        outlasts: false,
        prepare: |rig| Ok(rig.servers_mut()?.standby_mut().put_on_clock()?),
        before: |rig| Ok(rig.servers.cut_link()?),
        make: |rig, _| {
            let behind = move_clock(rig.servers.standby(), -HOUR_S)?;
            Ok(lagging_failover(rig)?.with(behind))
        },
    },
    Fault {
        id: "isolated-primary",
        means: "the primary and A are cut off from the standby and B; the standby is promoted, later the old primary is ended",
        on: &[SYNC, ASYNC],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: |rig| {
            rig.isolated = true;
            // With a synchronous standby there would be no grant without it.
            if rig.is_synchronous { Ok(()) } else { Ok(rig.servers.cut_link()?) }
        },
        make: isolated,
    },
];

/// Kills the primary, promotes the standby, and reads back that it is one.
pub(super) fn failover(rig: &mut Pair) -> Result<Witness, Trouble> {
    let old = kill(rig.servers_mut()?.primary_mut())?;
    let promoted = promote(rig)?;
    Ok(Witness::of("killed_pid", old).with(promoted))
}

fn promote(rig: &mut Pair) -> Result<Witness, Trouble> {
    rig.servers.promote()?;
    rig.promoted = true;
    let standby = rig.servers.standby();
    let timeline = timeline(standby)?;
    // A new history has a number of its own.
    if timeline != "00000002" {
        return Err(Trouble::NotShown(format!("the promoted standby is on the time-line {timeline}")));
    }
    Ok(Witness::of("promoted_pid", standby.pid().unwrap_or_default())
        .and("in_recovery_read_back", postgres_query(standby, "SELECT pg_is_in_recovery()")?)
        .and("timeline_read_back", timeline))
}

fn timeline(server: &Server) -> Result<String, Trouble> {
    Ok(postgres_query(server, "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)")?)
}

/// A failover that loses what A was granted: read on both.
pub(super) fn lagging_failover(rig: &mut Pair) -> Result<Witness, Trouble> {
    let lost = rig.servers.lag_bytes()?;
    let primary = value(rig.servers.primary())?;
    let standby = value(rig.servers.standby())?;
    if lost == 0 || primary == standby {
        return Err(Trouble::NotShown(format!("the standby lacks {lost} bytes, and has the value {standby} of A's")));
    }
    let happened = failover(rig)?;
    Ok(happened.and("lost_log_bytes", lost).and("a_value_there", primary).and("value_on_the_standby", standby))
}

/// A write that nobody else waits for, and whether it waits for the standby. It is ended then, so that it stands in nobody's way.
pub(super) fn write_that_waits(server: &Server) -> Result<Witness, Trouble> {
    const WRITE: &str = "CREATE TABLE held_up ()";
    std::thread::scope(|scope| {
        let write = scope.spawn(|| postgres_query(server, WRITE));
        let seen = until("a commit waits for the standby", || {
            let sql = format!("SELECT pid FROM pg_stat_activity WHERE query = '{WRITE}' AND wait_event = 'SyncRep'");
            match postgres_query(server, &sql) {
                Ok(session) if !session.is_empty() => Ok(session),
                other => Err(format!("{other:?}")),
            }
        });
        let ended = match &seen {
            Ok(session) => postgres_query(server, &format!("SELECT pg_terminate_backend({session})")).map(drop),
            Err(_) => Ok(()),
        };
        let answer = write.join().map_err(|_| Trouble::Failed("the write panicked".to_owned()))?;
        let session = seen?;
        ended?;
        match answer {
            Err(_) => Ok(Witness::of("session_that_waits_for_the_standby", session)),
            Ok(answer) => Err(Trouble::NotShown(format!("the commit did not wait: {answer}"))),
        }
    })
}

fn isolated(rig: &mut Pair, _: &Moment) -> Result<Witness, Trouble> {
    let mut witness = if rig.is_synchronous {
        rig.servers.cut_link()?;
        write_that_waits(rig.servers.primary())?
    } else {
        let lost = rig.servers.lag_bytes()?;
        if lost == 0 {
            return Err(Trouble::NotShown("the standby has all that the primary wrote".to_owned()));
        }
        Witness::of("lost_log_bytes", lost)
    };
    witness = witness.with(promote(rig)?);
    let primary = rig.servers.primary();
    let beside = postgres_query(primary, "SELECT pg_is_in_recovery()")?;
    if beside != "f" {
        return Err(Trouble::NotShown("the old primary is none beside the new one".to_owned()));
    }
    witness = witness.and("old_primary_meanwhile_in_recovery", beside).and("old_primary_timeline", timeline(primary)?);
    let old = kill(rig.servers_mut()?.primary_mut())?;
    Ok(witness.and("killed_pid", old))
}
