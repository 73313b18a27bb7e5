//! What becomes of the standby: it is away, it comes back, or somebody loses patience with commits that wait for it.

use super::pair::{ASYNC, Pair, SYNC, TTL, failover, lagging_failover, write_that_waits};
use super::{kill, log};
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing, until};
use lease_servers::{PostgresPair, postgres_query};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) static FAULTS: &[Fault<Pair>] = &[
    Fault {
        id: "failover-cut",
        means: "the standby is cut off, so that no commit ends; the primary is killed, the standby is promoted",
        on: &[SYNC],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: failover_cut,
    },
    Fault {
        id: "failover-cancelled-wait",
        means: "the standby is cut off before the grants, and somebody cancels each wait for it; then the standby is promoted",
        on: &[SYNC],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: cancel_waits,
        make: failover_cancelled,
    },
    Fault {
        id: "standby-back",
        means: "the standby is killed, and is back after a while",
        on: &[SYNC, ASYNC],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: standby_back,
    },
    Fault {
        id: "standby-gone",
        means: "the standby is killed, and stays away",
        on: &[SYNC, ASYNC],
        // Nothing is waited for but A's deadline, and after it for a multiple of this.
        ttl: Duration::from_secs(4),
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: |rig, _| without_standby(rig),
    },
];

/// What the standby lacks: a table that nobody was told of.
fn failover_cut(rig: &mut Pair, _: &Moment) -> Result<Witness, Trouble> {
    rig.servers().cut_link()?;
    let waited = write_that_waits(rig.servers().primary())?;
    let witness = failover(rig)?.with(waited);
    let is_there = postgres_query(rig.servers().standby(), "SELECT to_regclass('held_up') IS NOT NULL")?;
    if is_there != "f" {
        return Err(Trouble::NotShown("the standby has what it was cut off from".to_owned()));
    }
    Ok(witness.and("what_was_written_then", "gone"))
}

/// Kills the standby, and shows what a commit does without it.
fn without_standby(rig: &mut Pair) -> Result<Witness, Trouble> {
    let old = kill(rig.servers_mut()?.standby_mut())?;
    let primary = rig.servers().primary();
    let witness = Witness::of("killed_pid", old);
    if rig.is_synchronous {
        return Ok(witness.with(write_that_waits(primary)?));
    }
    let streams = "SELECT count(*) FROM pg_stat_replication";
    until("the primary sends nothing", || match postgres_query(primary, streams) {
        Ok(count) if count == "0" => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    postgres_query(primary, "CREATE TABLE not_held_up ()")?;
    Ok(witness.and("standbys_that_the_primary_has", 0).and("a_write_meanwhile", "answered"))
}

fn standby_back(rig: &mut Pair, _: &Moment) -> Result<Witness, Trouble> {
    let witness = without_standby(rig)?;
    rig.servers_mut()?.standby_mut().restart()?;
    rig.servers().wait_in_step()?;
    Ok(witness.and("restarted_pid", rig.servers().standby().pid().unwrap_or_default()))
}

/// Somebody at work on the primary.
pub(super) struct Somebody(JoinHandle<()>);

/// Cancels, again and again, whatever session of a lease backend waits for the standby.
const CANCEL: &str = "DO $$ DECLARE began timestamptz := clock_timestamp(); BEGIN \
     WHILE clock_timestamp() < began + interval '50 seconds' LOOP \
         PERFORM pg_stat_clear_snapshot(); \
         PERFORM pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'leasehold'; \
         PERFORM pg_sleep(0.02); \
     END LOOP; END $$";

fn cancel_waits(rig: &mut Pair) -> Result<(), Trouble> {
    rig.servers().cut_link()?;
    let servers: Arc<PostgresPair> = Arc::clone(rig.servers());
    let work = move || {
        // It is ended by force, so there is always an error, and the log has what it did.
        drop(postgres_query(servers.primary(), CANCEL));
    };
    rig.somebody = Some(Somebody(std::thread::spawn(work)));
    Ok(())
}

const CANCELLED: &str = "canceling wait for synchronous replication due to user request";

fn failover_cancelled(rig: &mut Pair, _: &Moment) -> Result<Witness, Trouble> {
    let primary = rig.servers().primary();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'DO %'";
    let ended = postgres_query(primary, end)?;
    let cancelled = log(primary)?.matches(CANCELLED).count();
    if let Some(Somebody(thread)) = rig.somebody.take() {
        thread.join().map_err(|_| Trouble::Failed("the one who cancels panicked".to_owned()))?;
    }
    if ended != "1" || cancelled == 0 {
        return Err(Trouble::NotShown(format!("{cancelled} waits were cancelled, by {ended}")));
    }
    Ok(lagging_failover(rig)?.and("cancelled_waits", cancelled))
}
