//! One PostgreSQL.

use super::{HOUR_S, disk, is_anew, kill, logged, move_clock, operator, pid, started};
use crate::program::Backend;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage, until};
use lease_servers::{Backup, PostgresSetup, Server, postgres_query, process_state, resume_process, stop_process};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// A PostgreSQL, and a backup of it.
pub(super) struct One {
    pub(super) server: Server,
    pub(super) backup: Option<Backup>,
    /// Whether it answers a commit before it has written it, unless a session asks for more.
    pub(super) answers_early: bool,
    /// Whether what it has written is in the kernel's memory only.
    pub(super) never_syncs: bool,
    /// The process that writes what was answered early, once it is stopped.
    writer: Option<u32>,
}

impl Rig for One {
    fn url(&self, _who: Worker) -> String {
        self.server.url().to_owned()
    }
}

pub(super) const SINGLE: &str = "postgres/single";
pub(super) const COMMIT_OFF: &str = "postgres/commit-off";
pub(super) const FSYNC_OFF: &str = "postgres/fsync-off";

/// Long enough for a restart, on a machine with something else to do.
pub(super) const TTL: Duration = Duration::from_secs(6);

const POSTGRES: &[Backend] = &[Backend::Postgres];

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = stage(SETUPS, FAULTS);
    scenes.extend(stage(SETUPS, disk::FAULTS));
    scenes.extend(stage(SETUPS, operator::FAULTS));
    // The scenes of one set-up together; the sort keeps their order else.
    scenes.sort_by_key(|scene| SETUPS.iter().position(|setup| setup.id == scene.setup));
    scenes
}

static SETUPS: &[SetUp<One>] = &[
    SetUp {
        id: SINGLE,
        means: "one PostgreSQL with its default settings",
        backends: POSTGRES,
        start: || start(&[]),
        settle: nothing,
    },
    SetUp {
        id: COMMIT_OFF,
        means: "one PostgreSQL with `synchronous_commit = off`, which the sessions of the backend set to `on`",
        backends: POSTGRES,
        start: || Ok(One { answers_early: true, ..start(&[("synchronous_commit", "off"), ("autovacuum", "off")])? }),
        settle: nothing,
    },
    SetUp {
        id: FSYNC_OFF,
        means: "one PostgreSQL with `fsync = off`, which never syncs its files",
        backends: POSTGRES,
        start: || Ok(One { never_syncs: true, ..start(&[("fsync", "off")])? }),
        settle: nothing,
    },
];

static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "kill-restart",
        means: "all processes of the server are killed, and it is started again on its data",
        on: &[SINGLE, COMMIT_OFF, FSYNC_OFF],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: others_write,
        make: kill_restart,
    },
    Fault {
        id: "session-killed",
        means: "the process of one session is killed, upon which the server ends all others and recovers",
        on: &[SINGLE, COMMIT_OFF],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: others_write,
        make: kill_session,
    },
    Fault {
        id: "frozen",
        means: "all processes of the server are stopped for longer than the TTL, and go on",
        on: &[SINGLE],
        ttl: Duration::from_secs(3),
        outlasts: true,
        prepare: nothing,
        before: nothing,
        make: freeze,
    },
    Fault {
        id: "clock-forward",
        means: "the server's wall clock jumps an hour ahead",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: nothing,
        make: |one, _| move_clock(&one.server, HOUR_S),
    },
    Fault {
        id: "clock-back",
        means: "the server's wall clock jumps an hour back",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: nothing,
        make: |one, _| move_clock(&one.server, -HOUR_S),
    },
];

fn start(settings: &[(&str, &str)]) -> Result<One, Trouble> {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let server = lease_servers::postgres(&PostgresSetup { settings })?;
    Ok(One { server, backup: None, answers_early: false, never_syncs: false, writer: None })
}

/// Makes a table for somebody who knows nothing of leases and takes the server's default; where that answers early, the process
/// that would soon save it is stopped.
pub(super) fn others_write(one: &mut One) -> Result<(), Trouble> {
    postgres_query(&one.server, "CREATE TABLE others (n int)")?;
    if one.answers_early {
        one.writer = Some(until("the writer is stopped", || stop_writer(&one.server))?);
    }
    Ok(())
}

/// Stops the writer where it waits for something to do: anywhere else it may have a lock that each commit needs.
fn stop_writer(server: &Server) -> Result<u32, String> {
    let ask = |what: &str| {
        let sql = format!("SELECT {what} FROM pg_stat_activity WHERE backend_type = 'walwriter'");
        postgres_query(server, &sql).map_err(|error| error.to_string())
    };
    let writer = ask("pid")?;
    let pid = writer.parse().map_err(|_| format!("its process id is `{writer}`"))?;
    if !stop_process(pid) {
        return Err(format!("process {pid} is gone"));
    }
    let place = ask("wait_event")?;
    if place == "WalWriterMain" {
        return Ok(pid);
    }
    let gone = !resume_process(pid);
    Err(format!("process {pid} was stopped at `{place}`, and is gone: {gone}"))
}

/// Makes a fault directly after somebody else was told that a row is stored, and looks what became of the row. The servers that may lose
/// it have to: that shows that there was something to survive.
pub(super) fn with_a_row_of_others(
    one: &mut One,
    loses: bool,
    fault: impl FnOnce(&mut One) -> Result<Witness, Trouble>,
) -> Result<Witness, Trouble> {
    postgres_query(&one.server, "INSERT INTO others VALUES (1)")?;
    let witness = fault(one)?;
    let left = postgres_query(&one.server, "SELECT count(*) FROM others")?;
    match (loses, left.as_str()) {
        (true, "0") => Ok(witness.and("a_row_that_somebody_else_was_told_of", "gone")),
        (false, "1") => Ok(witness.and("a_row_that_somebody_else_was_told_of", "there")),
        _ => Err(Trouble::NotShown(format!("{left} rows of somebody else are left"))),
    }
}

fn kill_restart(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let before = started(&one.server)?;
    let loses = one.answers_early;
    with_a_row_of_others(one, loses, |one| {
        let old = kill(&mut one.server)?;
        one.server.restart()?;
        is_anew(&one.server, (old, &before))
    })
}

/// The oldest session of a backend, which is A's.
const SESSION: &str =
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold' ORDER BY backend_start LIMIT 1";

/// Sessions whose last statement asked for a lease. That of A's was a release.
const QUESTION: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND state = 'idle' \
     AND query LIKE '%l.incarnation, l.spent%'";

fn kill_session(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let (main, from) = (pid(&one.server)?, super::log(&one.server)?.len());
    let session = postgres_query(&one.server, SESSION)?;
    let loses = one.answers_early;
    with_a_row_of_others(one, loses, |one| {
        kill_one(&session)?;
        let died = logged(&one.server, from, &format!("(PID {session}) was terminated by signal 9"))?;
        logged(&one.server, from, "terminating any other active server processes")?;
        if let Some(writer) = one.writer.take() {
            // It was asked to end, and is stopped.
            kill_one(&writer.to_string())?;
        }
        let recovers = logged(&one.server, from, "all server processes terminated; reinitializing")?;
        until("the server answers again", || {
            postgres_query(&one.server, "SELECT 1").map(drop).map_err(|error| error.to_string())
        })?;
        if one.server.pid() != Some(main) || process_state(main).is_none() {
            return Err(Trouble::NotShown(format!("process {main} has ended, which is not of a session")));
        }
        let killed = session.parse::<u32>().unwrap_or_default();
        Ok(Witness::of("killed_pid", killed).and("main_pid", main).and("its_log", died).and("then", recovers))
    })
}

fn kill_one(pid: &str) -> Result<(), Trouble> {
    let id = pid.parse().ok().and_then(Pid::from_raw);
    let killed = id.map(|id| kill_process(id, Signal::KILL));
    if killed == Some(Ok(())) {
        Ok(())
    } else {
        Err(Trouble::Failed(format!("process {pid} cannot be killed: {killed:?}")))
    }
}

fn freeze(one: &mut One, moment: &Moment) -> Result<Witness, Trouble> {
    let main = pid(&one.server)?;
    let session = postgres_query(&one.server, SESSION)?.parse().unwrap_or_default();
    // B asks again and again, and its question has been answered at least once.
    until("B has asked", || match postgres_query(&one.server, QUESTION) {
        Ok(count) if count != "0" => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let begun = Instant::now();
    one.server.pause();
    std::thread::sleep(moment.ttl.saturating_add(Duration::from_millis(500)));
    let states = [process_state(main), process_state(session)];
    one.server.resume();
    if states != [Some('T'); 2] {
        return Err(Trouble::NotShown(format!("processes {main} and {session} were in the states {states:?}")));
    }
    let frozen_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Witness::of("stopped_pid", main)
        .and("stopped_session_pid", session)
        .and("states_before_they_went_on", "T")
        .and("frozen_ms", frozen_ms))
}
