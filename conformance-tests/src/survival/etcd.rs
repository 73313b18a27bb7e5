//! etcd: one member, also one that never syncs; three members.

mod clock;
mod disk;
mod leader;
mod members;
mod one;
mod operator;
mod space;
mod version;
mod wire;

pub(super) use version::{ends_live_leases, queues_by_wall_clock};

use super::scene::{Scene, Trouble, Witness};
use lease_servers::{EtcdStatus, Server, etcd_status, process_state};

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = one::scenes();
    scenes.extend(members::scenes());
    scenes
}

/// Kills a member; its process id, which is gone then.
fn kill(server: &mut Server) -> Result<u32, Trouble> {
    let pid = server.pid().ok_or_else(|| Trouble::Failed("the member was down before the fault".to_owned()))?;
    server.kill();
    match process_state(pid) {
        None => Ok(pid),
        Some(state) => Err(Trouble::NotShown(format!("process {pid} is there after it was killed, in state {state}"))),
    }
}

/// Shows that a member, or its cluster, began a new term since it told this one: each start and each election does.
fn began_a_term(server: &Server, before: EtcdStatus) -> Result<Witness, Trouble> {
    let after = etcd_status(server)?;
    if after.term <= before.term {
        return Err(Trouble::NotShown(format!("the term is {} as before", after.term)));
    }
    Ok(Witness::of("term_before", before.term)
        .and("term_after", after.term)
        .and("revision_before", before.revision)
        .and("revision_after", after.revision))
}
