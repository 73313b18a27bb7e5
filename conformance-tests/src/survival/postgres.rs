//! PostgreSQL: one server, whatever it promises of its disk; a pooler before it; a primary with a standby.

mod disk;
mod one;
mod operator;
mod pair;
mod pooler;
mod standby;

use super::scene::{Scene, Trouble, Witness, until};
use super::{CONTESTED, NAMESPACE};
use lease_servers::{Server, postgres_query, process_state};

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = one::scenes();
    scenes.extend(pooler::scenes());
    scenes.extend(pair::scenes());
    scenes
}

pub(super) const HOUR_S: i64 = 3_600;

/// The fencing value of A's and B's resource, as a server has it; empty where it has no such row.
fn value(server: &Server) -> Result<String, Trouble> {
    Ok(postgres_query(server, &format!("SELECT value FROM {NAMESPACE}.lease WHERE name = '{CONTESTED}'"))?)
}

/// When a server was started, by its own clock.
fn started(server: &Server) -> Result<String, Trouble> {
    Ok(postgres_query(server, "SELECT pg_postmaster_start_time()")?)
}

fn pid(server: &Server) -> Result<u32, Trouble> {
    server.pid().ok_or_else(|| Trouble::Failed("the server was down before the fault".to_owned()))
}

/// Kills a server with all its processes; the id of the first of them, which is gone then.
fn kill(server: &mut Server) -> Result<u32, Trouble> {
    let pid = pid(server)?;
    server.kill();
    match process_state(pid) {
        None => Ok(pid),
        Some(state) => Err(Trouble::NotShown(format!("process {pid} is there after it was killed, in state {state}"))),
    }
}

/// What shows that a server is another process than the one that had this id and this time of its start.
fn is_anew(server: &Server, (old, before): (u32, &str)) -> Result<Witness, Trouble> {
    let (new, after) = (pid(server)?, started(server)?);
    if new == old || after == before {
        return Err(Trouble::NotShown(format!("the server is the same process {old}, started at {before}")));
    }
    Ok(Witness::of("killed_pid", old)
        .and("restarted_pid", new)
        .and("started_before", before)
        .and("started_after", after))
}

/// What a server has logged.
fn log(server: &Server) -> Result<String, Trouble> {
    std::fs::read_to_string(server.folder().join("log"))
        .map_err(|error| Trouble::Failed(format!("the server's log cannot be read: {error}")))
}

/// The last line of a server's log that has this text, as soon as there is one, from so many bytes on.
fn logged(server: &Server, from: usize, text: &str) -> Result<String, Trouble> {
    until(&format!("the server logs: {text}"), || {
        let log = log(server).map_err(|error| error.to_string())?;
        let new = log.get(from..).unwrap_or_default();
        let line = new.lines().rev().find(|line| line.contains(text));
        line.map(|line| line.chars().take(200).collect()).ok_or_else(|| "nothing of it".to_owned())
    })
}

/// Moves the clock, which reads it back, and tells the server's time against ours.
fn move_clock(server: &Server, ahead_s: i64) -> Result<Witness, Trouble> {
    server.set_clock(ahead_s)?;
    let seconds = "SELECT floor(extract(epoch FROM clock_timestamp()))";
    let there: i64 = postgres_query(server, seconds)?.parse().unwrap_or_default();
    let here = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let here = i64::try_from(here.as_secs()).unwrap_or_default();
    Ok(Witness::of("server_time_s", there).and("our_time_s", here).and("ahead_s", there.saturating_sub(here)))
}
