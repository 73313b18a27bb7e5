//! One etcd.

use super::wire::put;
use super::{began_a_term, clock, disk, kill, operator, space};
use crate::program::Backend;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage};
use lease_servers::{Backup, EtcdSetup, Server, etcd_status, process_state};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An etcd, and what was saved of it.
pub(super) struct One {
    pub(super) server: Server,
    pub(super) backup: Option<Backup>,
    /// A snapshot for a restore that changes the cluster's token.
    pub(super) snapshot: Option<PathBuf>,
}

impl Rig for One {
    fn url(&self, _who: Worker) -> String {
        self.server.url().to_owned()
    }
}

pub(super) const SINGLE: &str = "etcd/single";
pub(super) const UNSYNCED: &str = "etcd/unsafe-no-fsync";

/// Long enough for a restart, on a machine with something else to do.
pub(super) const TTL: Duration = Duration::from_secs(5);
/// How many revisions others make between what is safe and the grants: so many that those which go back do not catch up.
const OTHERS_WRITE: u32 = 50;

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = stage(SETUPS, FAULTS);
    for faults in PARTS {
        scenes.extend(stage(SETUPS, faults));
    }
    // The scenes of one set-up together.
    scenes.sort_by_key(|scene| SETUPS.iter().position(|setup| setup.id == scene.setup));
    scenes
}

static PARTS: [&[Fault<One>]; 4] = [clock::FAULTS, operator::FAULTS, disk::FAULTS, space::FAULTS];

static SETUPS: &[SetUp<One>] = &[
    SetUp {
        id: SINGLE,
        means: "one etcd, which syncs each entry of its log before it answers",
        backends: &[Backend::Etcd],
        start: || start(&[]),
        settle: nothing,
    },
    SetUp {
        id: UNSYNCED,
        means: "one etcd that never syncs (`--unsafe-no-fsync`)",
        backends: &[Backend::Etcd],
        start: || start(&["--unsafe-no-fsync"]),
        settle: |one| sync(&one.server.folder().join("data")),
    },
];

static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "kill-restart",
        means: "the server is killed and started again on its data",
        on: &[SINGLE, UNSYNCED],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: kill_restart,
    },
    Fault {
        id: "frozen",
        means: "the server is stopped for longer than the TTL, and goes on",
        on: &[SINGLE],
        ttl: Duration::from_secs(2),
        outlasts: true,
        prepare: nothing,
        before: nothing,
        make: freeze,
    },
];

pub(super) fn start(arguments: &[&str]) -> Result<One, Trouble> {
    let extra_args = arguments.iter().map(ToString::to_string).collect();
    let server = lease_servers::etcd(&EtcdSetup { extra_args, ..EtcdSetup::default() })?;
    Ok(One { server, backup: None, snapshot: None })
}

/// Syncs what is in a folder: what the server does not do itself.
fn sync(folder: &Path) -> Result<(), Trouble> {
    let failed = |error: std::io::Error| Trouble::Failed(format!("cannot sync {}: {error}", folder.display()));
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            sync(&path)?;
        } else {
            std::fs::File::open(&path).and_then(|file| file.sync_all()).map_err(failed)?;
        }
    }
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

/// Others write: the revisions of the grants are far above what the fault leaves.
pub(super) fn others_write(one: &mut One) -> Result<(), Trouble> {
    (0..OTHERS_WRITE).try_for_each(|_| put(&one.server, "unrelated", b"1"))
}

fn kill_restart(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let before = etcd_status(&one.server)?;
    let old = kill(&mut one.server)?;
    one.server.restart()?;
    let new = one.server.pid().unwrap_or_default();
    Ok(began_a_term(&one.server, before)?.and("killed_pid", old).and("restarted_pid", new))
}

fn freeze(one: &mut One, moment: &Moment) -> Result<Witness, Trouble> {
    let pid = one.server.pid().unwrap_or_default();
    let begun = Instant::now();
    one.server.pause();
    std::thread::sleep(moment.ttl.saturating_add(Duration::from_millis(500)));
    let state = process_state(pid);
    one.server.resume();
    if state != Some('T') {
        return Err(Trouble::NotShown(format!("process {pid} was not stopped, but in state {state:?}")));
    }
    let frozen_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Witness::of("stopped_pid", pid).and("state_before_it_went_on", "T").and("frozen_ms", frozen_ms))
}
