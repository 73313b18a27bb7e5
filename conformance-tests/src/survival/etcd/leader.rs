//! What happens to the leader of three etcd members.

use super::began_a_term;
use super::disk::waits_for_disk;
use super::members::{THREE, TTL, Three};
use super::wire::{get, put, record};
use crate::survival::CONTESTED;
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing, until};
use lease_servers::process_state;
use std::time::{Duration, Instant};

pub(super) static FAULTS: &[Fault<Three>] = &[
    Fault {
        id: "leader-killed",
        means: "the leader is killed, another one is elected, and the old one is started again",
        on: &[THREE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: kill_leader,
    },
    Fault {
        id: "leader-moved",
        means: "another member is made the leader",
        on: &[THREE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: move_leader,
    },
    Fault {
        id: "leader-keeps-moving",
        means: "another member is made the leader again and again, for three TTLs, and A renews nothing meanwhile",
        on: &[THREE],
        ttl: Duration::from_secs(4),
        outlasts: true,
        prepare: nothing,
        before: nothing,
        make: keep_moving,
    },
    Fault {
        id: "leader-frozen",
        means: "the leader is stopped, another one is elected, and the old one goes on",
        on: &[THREE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: freeze_leader,
    },
    Fault {
        id: "leader-isolated",
        means: "the leader, and A with it, is cut off from the others, who elect another one; and the cut heals",
        on: &[THREE],
        ttl: TTL,
        outlasts: false,
        prepare: a_with_the_leader,
        before: nothing,
        make: |rig, _| {
            let (old, _, witness) = isolate(rig)?;
            heal(rig, old, witness)
        },
    },
    Fault {
        id: "leader-isolated-past-ttl",
        means: "the leader, and A with it, is cut off from the others until B has been granted there; and the cut heals",
        on: &[THREE],
        ttl: Duration::from_secs(4),
        outlasts: true,
        prepare: a_with_the_leader,
        before: nothing,
        make: isolate_past_ttl,
    },
    Fault {
        id: "leader-disk-stall",
        means: "the leader's disk stalls for longer than the TTL, another one is elected, by which A renews; and the disk goes on",
        on: &[THREE],
        ttl: Duration::from_secs(5),
        outlasts: true,
        prepare: disk_of_the_leader,
        before: nothing,
        make: stall_leader,
    },
];

fn kill_leader(rig: &mut Three, _: &Moment) -> Result<Witness, Trouble> {
    let old = rig.cluster.leader()?;
    let before = rig.status(old)?;
    let pid = rig.kill(old)?;
    let new = rig.cluster.leader_instead_of(old)?;
    rig.writes(new)?;
    rig.cluster.restart(&[old])?;
    let witness = began_a_term(rig.member(new)?, before)?;
    Ok(witness.and("killed_pid", pid).and("leader_before", old).and("leader_after", new))
}

fn move_leader(rig: &mut Three, _: &Moment) -> Result<Witness, Trouble> {
    let old = rig.cluster.leader()?;
    let (before, new) = (rig.status(old)?, rig.other(&[old])?);
    rig.cluster.move_leader(new)?;
    rig.writes(new)?;
    Ok(began_a_term(rig.member(new)?, before)?.and("leader_before", old).and("leader_after", new))
}

/// The record is looked at in the end: nobody has renewed it for three TTLs, and it is the same one.
fn keep_moving(rig: &mut Three, moment: &Moment) -> Result<Witness, Trouble> {
    let first = rig.cluster.leader()?;
    let (before, key) = (rig.status(first)?, record(CONTESTED));
    let record = |rig: &Three| get(rig.member(first)?, &key, false);
    let (granted, begun) = (record(rig)?, Instant::now());
    let (lasts, pause) = (moment.ttl.saturating_mul(3), moment.ttl.checked_div(4).unwrap_or_default());
    let mut moves: u32 = 0;
    while begun.elapsed() < lasts {
        std::thread::sleep(pause);
        let next = rig.other(&[rig.cluster.leader()?])?;
        rig.cluster.move_leader(next)?;
        moves = moves.saturating_add(1);
    }
    let left = record(rig)?;
    if left.is_none() || left != granted {
        return Err(Trouble::NotShown(format!("A's record was {granted:?} and is {left:?}")));
    }
    let after_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let witness = began_a_term(rig.member(first)?, before)?;
    Ok(witness.and("moves", moves).and("records_of_a_there_after_ms", after_ms))
}

fn freeze_leader(rig: &mut Three, _: &Moment) -> Result<Witness, Trouble> {
    let old = rig.cluster.leader()?;
    let before = rig.status(old)?;
    let pid = rig.member(old)?.pid().unwrap_or_default();
    rig.member(old)?.pause();
    // It has to go on whatever happens meanwhile.
    let elected = rig.cluster.leader_instead_of(old).map_err(Trouble::from).and_then(|new| {
        rig.writes(new)?;
        Ok(new)
    });
    let state = process_state(pid);
    rig.member(old)?.resume();
    let new = elected?;
    if state != Some('T') {
        return Err(Trouble::NotShown(format!("process {pid} was not stopped, but in state {state:?}")));
    }
    rig.follows(old, rig.status(new)?.leader)?;
    let witness = began_a_term(rig.member(old)?, before)?;
    Ok(witness
        .and("stopped_pid", pid)
        .and("state_before_it_went_on", "T")
        .and("leader_before", old)
        .and("leader_after", new))
}

/// A reaches the leader only, B the others only.
fn a_with_the_leader(rig: &mut Three) -> Result<(), Trouble> {
    let leader = rig.cluster.leader()?;
    rig.for_a = vec![leader];
    rig.for_b = rig.others(&[leader]);
    Ok(())
}

/// The member that A reaches is the leader, and is cut off; with the new leader.
fn isolate(rig: &mut Three) -> Result<(usize, usize, Witness), Trouble> {
    let old = rig.for_a.first().copied().unwrap_or_default();
    rig.cluster.move_leader(old)?;
    let before = rig.status(old)?;
    rig.cluster.isolate(old);
    let new = rig.cluster.leader_instead_of(old)?;
    rig.writes(new)?;
    // It steps down when it has heard from nobody for a while.
    rig.follows(old, 0)?;
    let (there, here) = (rig.status(new)?, rig.status(old)?);
    if there.revision <= here.revision {
        return Err(Trouble::NotShown(format!("the two sides have the same history: {there:?} and {here:?}")));
    }
    let witness = began_a_term(rig.member(new)?, before)?
        .and("leader_before", old)
        .and("leader_after", new)
        .and("leader_of_the_old_one_meanwhile", "none")
        .and("revision_of_the_old_one_meanwhile", here.revision);
    Ok((old, new, witness))
}

fn heal(rig: &mut Three, old: usize, witness: Witness) -> Result<Witness, Trouble> {
    rig.cluster.heal();
    let leader = rig.cluster.leader()?;
    rig.follows(old, rig.status(leader)?.leader)?;
    Ok(witness)
}

/// The two sides see different holders for a while: what the old leader has is A's record, and the others have B's.
fn isolate_past_ttl(rig: &mut Three, _: &Moment) -> Result<Witness, Trouble> {
    let (old, new, witness) = isolate(rig)?;
    let key = record(CONTESTED);
    let a = get(rig.member(old)?, &key, true)?.ok_or_else(|| Trouble::NotShown("A's record is gone".to_owned()))?;
    let others = rig.member(new)?;
    let b = until("B is granted by the others", || match get(others, &key, false) {
        Ok(Some(found)) if found != a => Ok(found),
        other => Err(format!("{other:?}")),
    })?;
    let here = get(rig.member(old)?, &key, true)?;
    if here.as_ref() != Some(&a) {
        return Err(Trouble::NotShown(format!("the old leader has {here:?}, not {a:?} as before")));
    }
    let write = put(rig.member(old)?, "written-by-the-minority", b"1");
    let Err(refused) = write else {
        return Err(Trouble::NotShown("the old leader took a write".to_owned()));
    };
    let witness = witness
        .and("revision_of_the_record_at_the_old_leader", a.created)
        .and("revision_of_the_record_at_the_others", b.created)
        .and("a_write_at_the_old_leader", refused.to_string());
    heal(rig, old, witness)
}

/// The disk is the first member's, which leads, and neither worker asks: what it answers is another matter.
fn disk_of_the_leader(rig: &mut Three) -> Result<(), Trouble> {
    let member = rig.cluster.members_mut().first_mut();
    member.ok_or_else(|| Trouble::Failed("there are no members".to_owned()))?.put_on_disk(256)?;
    rig.cluster.move_leader(STALLED)?;
    rig.for_a = rig.others(&[STALLED]);
    rig.for_b = rig.for_a.clone();
    Ok(())
}

/// The member whose disk stalls.
const STALLED: usize = 0;

/// As long as it stalls, the old leader does not notice that it is none. A newer etcd asks the others before it ends a lease by its own
/// count; an older one sends the order to do so, and it is carried out as soon as the disk goes on.
fn stall_leader(rig: &mut Three, moment: &Moment) -> Result<Witness, Trouble> {
    rig.cluster.move_leader(STALLED)?;
    let (before, old) = (rig.status(STALLED)?, rig.member(STALLED)?);
    // From here the old leader counts.
    moment.renew().map_err(|error| Trouble::Failed(format!("A cannot renew before the fault: {error}")))?;
    old.stall_disk()?;
    let begun = Instant::now();
    let shown = std::thread::scope(|scope| {
        // What it has to write itself first: then it stands still.
        let write = scope.spawn(|| put(old, "held-up", b"1"));
        let shown = while_it_stalls(rig, moment, begun);
        let resumed = old.resume_disk();
        // What became of it is not asked: a leader that was followed may say that it does not know.
        drop(write.join());
        resumed?;
        shown
    })?;
    let (new, renewals) = shown;
    rig.follows(STALLED, rig.status(new)?.leader)?;
    // Behind whatever it had to send.
    rig.writes(STALLED)?;
    let stalled_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(began_a_term(rig.member(new)?, before)?
        .and("state_of_a_thread_meanwhile", "D")
        .and("stalled_ms", stalled_ms)
        .and("renewals_meanwhile", renewals)
        .and("leader_before", STALLED)
        .and("leader_after", new)
        .and("version", old.version()))
}

/// The new leader, and how often A has renewed by it, until the old one has counted to the end of A's TTL.
fn while_it_stalls(rig: &Three, moment: &Moment, begun: Instant) -> Result<(usize, u32), Trouble> {
    until("the leader waits for its disk", || waits_for_disk(rig.member(STALLED).map_err(|e| e.to_string())?))?;
    let new = rig.cluster.leader_instead_of(STALLED)?;
    let mut renewals: u32 = 0;
    let lasts = moment.ttl.saturating_add(Duration::from_secs(3));
    let mut last = String::new();
    while begun.elapsed() < lasts {
        match moment.renew() {
            Ok(()) => renewals = renewals.saturating_add(1),
            Err(error) => last = error,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    match moment.renew() {
        Ok(()) => Ok((new, renewals.saturating_add(1))),
        Err(error) => Err(Trouble::TooSlow(format!("A cannot renew by the new leader: {error}; before: {last}"))),
    }
}
