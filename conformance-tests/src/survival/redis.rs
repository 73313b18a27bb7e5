//! Redis: one server, whatever it writes to its disk; a primary with a replica; the two with Sentinels.

mod disk;
mod memory;
mod one;
mod pair;
mod sentinel;

use super::scene::{Scene, Trouble};
use lease_servers::{Server, process_state, redis_command};

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = one::scenes();
    scenes.extend(pair::scenes());
    scenes.extend(sentinel::scenes());
    scenes
}

/// One field of a server's `INFO`.
fn info(server: &Server, section: &str, field: &str) -> Result<String, Trouble> {
    let text = redis_command(server, &["INFO", section])?;
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.map(|value| value.trim().to_owned()).ok_or_else(|| Trouble::Failed(format!("INFO has no field {field}")))
}

/// The server's own id of this start of it.
fn run_id(server: &Server) -> Result<String, Trouble> {
    info(server, "server", "run_id")
}

/// Where the lease of a resource lies.
fn record(resource: &str) -> String {
    format!("{}:{{{resource}}}:lease", super::NAMESPACE)
}

/// Kills a server; its process id, which is gone then.
fn kill(server: &mut Server) -> Result<u32, Trouble> {
    let pid = server.pid().ok_or_else(|| Trouble::Failed("the server was down before the fault".to_owned()))?;
    server.kill();
    match process_state(pid) {
        None => Ok(pid),
        Some(state) => Err(Trouble::NotShown(format!("process {pid} is there after it was killed, in state {state}"))),
    }
}

/// Shows that a server was started anew since it had this run id.
fn is_anew(server: &Server, before: &str) -> Result<String, Trouble> {
    let after = run_id(server)?;
    if after == before {
        return Err(Trouble::NotShown(format!("the server has the same run id as before, {before}")));
    }
    Ok(after)
}
