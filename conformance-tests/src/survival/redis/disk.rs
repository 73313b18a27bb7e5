//! One Redis on a disk of its own, whose power is cut, that is full, or that stalls.

use super::one::{ALWAYS, EVERYSEC, One, TTL};
use super::{is_anew, run_id};
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing, until};
use lease_servers::{Server, process_state, redis_command};
use std::time::{Duration, Instant};

/// Room enough for what a scene writes.
const MIB: u32 = 32;
/// For how long the disk stalls: shorter than a call may take.
const STALL: Duration = Duration::from_millis(700);

pub(super) static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "power-cut",
        means: "the power is cut: what was not synced is gone; and the server is started again",
        on: &[ALWAYS, EVERYSEC],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: nothing,
        make: power_cut,
    },
    Fault {
        id: "disk-full",
        means: "the disk is full for a moment; a server that ends by that is started again",
        on: &[ALWAYS, EVERYSEC],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: nothing,
        make: disk_full,
    },
    Fault {
        id: "disk-stall",
        means: "writes to the disk wait for a moment",
        on: &[ALWAYS],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: nothing,
        make: disk_stall,
    },
];

fn on_disk(one: &mut One) -> Result<(), Trouble> {
    Ok(one.server.put_on_disk(MIB)?)
}

/// That a file which was not synced is gone afterwards is seen to below. Where the append-only file is synced once a second, a busy machine
/// may have let that second pass before the cut: then nothing was there to be lost, and the fault was not what it is to be.
fn power_cut(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let (before, size) = (run_id(&one.server)?, written(&one.server)?);
    let old = one.server.pid().unwrap_or_default();
    one.server.power_cut()?;
    let after = is_anew(&one.server, &before)?;
    let left = written(&one.server)?;
    let fsync = redis_command(&one.server, &["CONFIG", "GET", "appendfsync"])?;
    if fsync.ends_with("everysec") && left == size {
        return Err(Trouble::NotShown(format!("all {size} bytes of the append-only file had been synced before")));
    }
    Ok(Witness::of("killed_pid", old)
        .and("run_id_before", before)
        .and("run_id_after", after)
        .and("unsynced_file", "gone")
        .and("append_only_file_before_bytes", size)
        .and("append_only_file_after_bytes", left))
}

/// How long the append-only file is.
fn written(server: &Server) -> Result<String, Trouble> {
    super::info(server, "persistence", "aof_current_size")
}

fn disk_full(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let pid = one.server.pid().unwrap_or_default();
    one.server.fill_disk()?;
    // Longer than what is left of the file's last block.
    let long = "x".repeat(16 << 10);
    let seen = until("the disk's being full shows", || {
        let answer = redis_command(&one.server, &["SET", "filler", &long]);
        let ended = matches!(process_state(pid), None | Some('Z'));
        match answer {
            Err(_) if ended => Ok("it ended".to_owned()),
            Err(error) if error.to_string().contains("MISCONF") => Ok(error.to_string()),
            other => Err(format!("{other:?}, and it runs")),
        }
    })?;
    one.server.clear_disk()?;
    let witness = Witness::of("pid", pid).and("seen", seen.clone());
    if seen == "it ended" {
        one.server.restart()?;
        return Ok(witness.and("restarted_pid", one.server.pid().unwrap_or_default()));
    }
    until("writes are taken again", || {
        redis_command(&one.server, &["SET", "filler", ""]).map(drop).map_err(|error| error.to_string())
    })?;
    Ok(witness)
}

fn disk_stall(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let server = &one.server;
    let pid = server.pid().unwrap_or_default();
    server.stall_disk()?;
    let begun = Instant::now();
    let waited = std::thread::scope(|scope| {
        let write = scope.spawn(|| redis_command(server, &["SET", "held-up", "1"]));
        let shown = until("the server waits for its disk", || match process_state(pid) {
            Some('D') => Ok(()),
            other => Err(format!("its state is {other:?}")),
        });
        std::thread::sleep(STALL);
        let resumed = server.resume_disk();
        let answer = write.join();
        shown?;
        resumed?;
        answer.map_err(|_| Trouble::Failed("the write panicked".to_owned()))??;
        Ok::<_, Trouble>(begun.elapsed())
    })?;
    let stalled_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    Ok(Witness::of("pid", pid).and("state_meanwhile", "D").and("stalled_ms", stalled_ms))
}
