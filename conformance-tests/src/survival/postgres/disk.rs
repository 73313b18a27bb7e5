//! One PostgreSQL on a disk of its own, whose power is cut, that is full, or that stalls.

use super::one::{COMMIT_OFF, FSYNC_OFF, One, SINGLE, TTL, others_write, with_a_row_of_others};
use super::{is_anew, log, logged, pid, started};
use crate::survival::scene::{Fault, Moment, Trouble, Witness, until};
use lease_servers::{postgres_query, process_state};
use std::process::Command;
use std::time::{Duration, Instant};

/// Room enough for an empty PostgreSQL and what a scene writes.
const MIB: u32 = 128;
/// For how long the disk stalls: longer than a call may take.
const STALL: Duration = Duration::from_millis(1_500);

pub(super) static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "power-cut",
        means: "the power is cut: what was not synced is gone; and the server is started again",
        on: &[SINGLE, COMMIT_OFF, FSYNC_OFF],
        // The disk is copied, and the server recovers on the copy.
        ttl: Duration::from_secs(12),
        outlasts: false,
        prepare: on_disk,
        before: |one| {
            others_write(one)?;
            if one.never_syncs { sync(one) } else { Ok(()) }
        },
        make: power_cut,
    },
    Fault {
        id: "disk-full",
        means: "the disk is full for a moment, so that no table can grow",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: others_write,
        make: disk_full,
    },
    Fault {
        id: "disk-full-log",
        means: "the disk is full when the write-ahead log needs a new file, by which the server ends; and it is started again",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: others_write,
        make: log_full,
    },
    Fault {
        id: "disk-stall",
        means: "writes to the disk wait for a moment, for longer than a call may take",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: others_write,
        make: disk_stall,
    },
];

fn on_disk(one: &mut One) -> Result<(), Trouble> {
    Ok(one.server.put_on_disk(MIB)?)
}

/// What somebody does in the server's stead: all that was written so far outlives a power cut.
fn sync(one: &mut One) -> Result<(), Trouble> {
    let synced = Command::new("sync").arg("-f").arg(one.server.folder().join("data")).status();
    match synced {
        Ok(status) if status.success() => Ok(()),
        other => Err(Trouble::Failed(format!("the disk cannot be synced: {other:?}"))),
    }
}

/// That a file which was not synced is gone afterwards is seen to by the disk.
fn power_cut(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let before = (pid(&one.server)?, started(&one.server)?);
    let loses = one.answers_early || one.never_syncs;
    let witness = with_a_row_of_others(one, loses, |one| {
        one.server.power_cut()?;
        is_anew(&one.server, (before.0, &before.1))
    })?;
    Ok(witness.and("unsynced_file", "gone"))
}

const NO_SPACE: &str = "No space left on device";
const GROW: &str = "INSERT INTO others SELECT generate_series(1, 100000)";

fn disk_full(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let (server, main) = (&one.server, pid(&one.server)?);
    server.fill_disk()?;
    let answer = postgres_query(server, GROW);
    server.clear_disk()?;
    let seen = match answer {
        Err(error) if error.to_string().contains(NO_SPACE) => first_line(&error.to_string()),
        other => return Err(Trouble::NotShown(format!("a table grew: {other:?}"))),
    };
    until("writes are taken again", || postgres_query(server, GROW).map(drop).map_err(|error| error.to_string()))?;
    if process_state(main).is_none() {
        return Err(Trouble::Failed("the server ended".to_owned()));
    }
    Ok(Witness::of("pid", main).and("a_write_meanwhile", seen))
}

fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| line.contains(NO_SPACE)).unwrap_or_default();
    line.chars().take(200).collect()
}

fn log_full(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let (main, before, from) = (pid(&one.server)?, started(&one.server)?, log(&one.server)?.len());
    one.server.fill_disk()?;
    // Files that it has made in advance are used up first.
    until("the server ends, its disk being full", || {
        let answer = postgres_query(&one.server, "SELECT pg_switch_wal(); INSERT INTO others VALUES (1)");
        match process_state(main) {
            None | Some('Z') => Ok(()),
            Some(state) => Err(format!("{answer:?}, and it is in state {state}")),
        }
    })?;
    let said = logged(&one.server, from, NO_SPACE)?;
    let panic = logged(&one.server, from, "PANIC")?;
    one.server.clear_disk()?;
    one.server.restart()?;
    Ok(is_anew(&one.server, (main, &before))?.and("its_log", said).and("its_panic", panic))
}

/// Writes until a write was held up. New sessions may be held up too, so this one is there before.
const WRITES: &str = "DO $$ DECLARE began timestamptz; BEGIN LOOP \
         began := clock_timestamp(); INSERT INTO others VALUES (2); COMMIT; \
         EXIT WHEN clock_timestamp() > began + interval '1.2 seconds'; \
         PERFORM pg_sleep(0.02); \
     END LOOP; END $$";

fn disk_stall(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let server = &one.server;
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| postgres_query(server, WRITES));
        let session = until("somebody writes", || {
            let answer = postgres_query(server, "SELECT pid FROM pg_stat_activity WHERE query LIKE 'DO %'");
            answer.map_err(|error| error.to_string())?.parse::<u32>().map_err(|error| error.to_string())
        })?;
        server.stall_disk()?;
        let begun = Instant::now();
        let shown = until("the session waits for the disk", || match process_state(session) {
            Some('D') => Ok(()),
            state => Err(format!("session {session} is in state {state:?}")),
        });
        std::thread::sleep(STALL);
        let waits = !writes.is_finished();
        let stalled_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let resumed = server.resume_disk();
        let answer = writes.join();
        shown?;
        resumed?;
        answer.map_err(|_| Trouble::Failed("the one who writes panicked".to_owned()))??;
        if !waits {
            return Err(Trouble::NotShown("the write did not wait".to_owned()));
        }
        Ok(Witness::of("session_pid", session).and("state_meanwhile", "D").and("stalled_ms", stalled_ms))
    })
}
