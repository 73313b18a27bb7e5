//! One etcd on a disk of its own, whose power is cut, that is full, or that stalls.

use super::began_a_term;
use super::one::{One, SINGLE, TTL, UNSYNCED, others_write};
use super::wire::put;
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing, until};
use lease_servers::{Server, etcd_status, process_state};
use std::time::{Duration, Instant};

/// Room enough for etcd, whose log takes 64 at once, and the next part of it as much.
const MIB: u32 = 256;
/// For how long the disk stalls: shorter than a call may take.
const STALL: Duration = Duration::from_millis(700);

pub(super) static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "power-cut",
        means: "the power is cut: what was not synced is gone; and the server is started again",
        on: &[SINGLE, UNSYNCED],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: others_write,
        make: power_cut,
    },
    Fault {
        id: "disk-full",
        means: "the disk is full for a moment; the server ends by that, and is started again",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: on_disk,
        before: nothing,
        make: disk_full,
    },
    Fault {
        id: "disk-stall",
        means: "writes to the disk wait for a moment",
        on: &[SINGLE],
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

/// That a file which was not synced is gone afterwards is seen to by the disk.
fn power_cut(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let before = etcd_status(&one.server)?;
    let old = one.server.pid().unwrap_or_default();
    one.server.power_cut()?;
    let new = one.server.pid().unwrap_or_default();
    let status = etcd_status(&one.server)?;
    if (new == old) || status.member != before.member {
        return Err(Trouble::NotShown(format!("process {old} before and {new} after, {status:?}")));
    }
    Ok(Witness::of("killed_pid", old)
        .and("restarted_pid", new)
        .and("unsynced_file", "gone")
        .and("revision_before", before.revision)
        .and("revision_after", status.revision))
}

fn disk_full(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let before = etcd_status(&one.server)?;
    let pid = one.server.pid().unwrap_or_default();
    one.server.fill_disk()?;
    // The log has its room already; the data have to grow.
    let much = vec![b'x'; 1 << 20];
    until("the server ends, its disk being full", || {
        let answer = put(&one.server, "filler", &much);
        match process_state(pid) {
            None | Some('Z') => Ok(()),
            Some(state) => Err(format!("{answer:?}, and it is in state {state}")),
        }
    })?;
    let log = std::fs::read_to_string(one.server.folder().join("log")).unwrap_or_default();
    let Some(said) = log.lines().rev().find(|line| line.contains("no space left on device")) else {
        return Err(Trouble::NotShown("the server ended, and its log does not say that there is no space".to_owned()));
    };
    let said: String = said.chars().take(200).collect();
    one.server.clear_disk()?;
    one.server.restart()?;
    let new = one.server.pid().unwrap_or_default();
    Ok(began_a_term(&one.server, before)?.and("ended_pid", pid).and("its_log", said).and("restarted_pid", new))
}

fn disk_stall(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let server = &one.server;
    let pid = server.pid().unwrap_or_default();
    server.stall_disk()?;
    let begun = Instant::now();
    let waited = std::thread::scope(|scope| {
        let write = scope.spawn(|| put(server, "held-up", b"1"));
        let shown = until("the server waits for its disk", || waits_for_disk(server));
        std::thread::sleep(STALL);
        let is_held_up = !write.is_finished();
        let resumed = server.resume_disk();
        let answer = write.join();
        shown?;
        resumed?;
        answer.map_err(|_| Trouble::Failed("the write panicked".to_owned()))??;
        if is_held_up { Ok(begun.elapsed()) } else { Err(Trouble::NotShown("the write did not wait".to_owned())) }
    })?;
    let stalled_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    Ok(Witness::of("pid", pid).and("state_of_a_thread_meanwhile", "D").and("stalled_ms", stalled_ms))
}

/// Whether one of its threads waits for a disk.
pub(super) fn waits_for_disk(server: &Server) -> Result<(), String> {
    let pid = server.pid().unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
    let ids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let states: String = ids.filter_map(process_state).collect();
    if states.contains('D') { Ok(()) } else { Err(format!("its threads are in the states {states}")) }
}
