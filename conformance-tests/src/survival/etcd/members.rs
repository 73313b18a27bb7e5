//! Three etcd members, some of which are lost and come back.

use super::wire::put;
use super::{began_a_term, kill, leader};
use crate::program::Backend;
use crate::survival::scene::{Fault, Moment, Rig, Scene, SetUp, Trouble, Witness, Worker, nothing, stage, until};
use lease_servers::{EtcdCluster, EtcdSetup, EtcdStatus, Server, etcd_status};
use std::time::Duration;

/// The members, and which of them a worker reaches.
pub(super) struct Three {
    pub(super) cluster: EtcdCluster,
    /// Those that A reaches; all when there is none.
    pub(super) for_a: Vec<usize>,
    /// Those that B reaches; all when there is none.
    pub(super) for_b: Vec<usize>,
}

impl Rig for Three {
    fn url(&self, who: Worker) -> String {
        let only = if who == Worker::A { &self.for_a } else { &self.for_b };
        let ports = only.iter().filter_map(|index| self.cluster.members().get(*index)).map(Server::port);
        let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        if hosts.is_empty() { self.cluster.url() } else { format!("etcd://{}", hosts.join(",")) }
    }
}

impl Three {
    pub(super) fn member(&self, index: usize) -> Result<&Server, Trouble> {
        self.cluster.members().get(index).ok_or_else(|| Trouble::Failed(format!("there is no member {index}")))
    }

    pub(super) fn status(&self, index: usize) -> Result<EtcdStatus, Trouble> {
        Ok(etcd_status(self.member(index)?)?)
    }

    /// Kills a member; its process id.
    pub(super) fn kill(&mut self, index: usize) -> Result<u32, Trouble> {
        let member = self.cluster.members_mut().get_mut(index);
        kill(member.ok_or_else(|| Trouble::Failed(format!("there is no member {index}")))?)
    }

    /// Waits until a member takes a write: a majority has it then.
    pub(super) fn writes(&self, index: usize) -> Result<(), Trouble> {
        let member = self.member(index)?;
        until("a write is taken", || put(member, "written-meanwhile", b"1").map_err(|error| error.to_string()))
    }

    /// The members besides these.
    pub(super) fn others(&self, than: &[usize]) -> Vec<usize> {
        (0..self.cluster.members().len()).filter(|index| !than.contains(index)).collect()
    }

    pub(super) fn other(&self, than: &[usize]) -> Result<usize, Trouble> {
        self.others(than).first().copied().ok_or_else(|| Trouble::Failed("there is no other member".to_owned()))
    }

    /// Waits until a member knows this one as its leader.
    pub(super) fn follows(&self, index: usize, leader: u64) -> Result<(), Trouble> {
        until("the member has the leader that the others have", || match self.status(index) {
            Ok(status) if status.leader == leader => Ok(()),
            other => Err(format!("{other:?}, not {leader}")),
        })
    }
}

pub(super) const THREE: &str = "etcd/three";
/// Longer than an election and a restart take, on a machine with something else to do.
pub(super) const TTL: Duration = Duration::from_secs(8);

pub(super) fn scenes() -> Vec<Scene> {
    let mut scenes = stage(SETUPS, FAULTS);
    scenes.extend(stage(SETUPS, leader::FAULTS));
    scenes
}

static SETUPS: &[SetUp<Three>] = &[SetUp {
    id: THREE,
    means: "an etcd of three members, each of which syncs its log before it answers",
    backends: &[Backend::Etcd],
    start: || {
        let setup = EtcdSetup { heartbeat_ms: 100, election_ms: 1_000, ..EtcdSetup::default() };
        Ok(Three { cluster: EtcdCluster::start(&setup)?, for_a: Vec::new(), for_b: Vec::new() })
    },
    settle: nothing,
}];

static FAULTS: &[Fault<Three>] = &[
    Fault {
        id: "follower-lost",
        means: "a member that does not lead is killed, the others go on, and it is started again",
        on: &[THREE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: lose_follower,
    },
    Fault {
        id: "majority-lost",
        means: "the leader and another member are killed, the third one stands alone, and both are started again",
        on: &[THREE],
        ttl: Duration::from_secs(12),
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: lose_majority,
    },
    Fault {
        id: "majority-lost-past-ttl",
        means: "the leader and another member are killed, and are started again only when the TTL is over",
        on: &[THREE],
        ttl: Duration::from_secs(4),
        outlasts: true,
        prepare: nothing,
        before: nothing,
        make: |rig, moment| {
            let lost = kill_majority(rig)?;
            std::thread::sleep(moment.ttl);
            start_majority(rig, &lost)
        },
    },
    Fault {
        id: "restarts-in-turn",
        means: "one member after the other is killed and started again",
        on: &[THREE],
        ttl: Duration::from_secs(15),
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: restart_in_turn,
    },
];

fn lose_follower(rig: &mut Three, _: &Moment) -> Result<Witness, Trouble> {
    let leader = rig.cluster.leader()?;
    let lost = rig.other(&[leader])?;
    let pid = rig.kill(lost)?;
    rig.writes(leader)?;
    let written = rig.status(leader)?;
    rig.cluster.restart(&[lost])?;
    let caught_up = until("it has what was written meanwhile", || match rig.status(lost) {
        Ok(status) if status.revision >= written.revision => Ok(status.revision),
        other => Err(format!("{other:?}")),
    })?;
    Ok(Witness::of("killed_pid", pid)
        .and("leader", leader)
        .and("lost_member", lost)
        .and("revision_written_meanwhile", written.revision)
        .and("revision_of_the_member_after", caught_up))
}

/// A member that is killed, as it was.
struct Lost {
    index: usize,
    pid: u32,
}

/// Kills the leader and another one, and returns when the third knows of no leader.
fn kill_majority(rig: &mut Three) -> Result<[Lost; 2], Trouble> {
    let leader = rig.cluster.leader()?;
    let other = rig.other(&[leader])?;
    let alone = rig.other(&[leader, other])?;
    let mut lost = |index| rig.kill(index).map(|pid| Lost { index, pid });
    let both = [lost(leader)?, lost(other)?];
    rig.follows(alone, 0)?;
    Ok(both)
}

fn start_majority(rig: &mut Three, lost: &[Lost; 2]) -> Result<Witness, Trouble> {
    let alone = rig.other(&[lost[0].index, lost[1].index])?;
    // As long as it is alone it may ask for votes, which makes terms; and gets none.
    let meanwhile = rig.status(alone)?;
    if meanwhile.leader != 0 {
        return Err(Trouble::NotShown(format!("the member that was left had a leader: {meanwhile:?}")));
    }
    rig.cluster.restart(&[lost[0].index, lost[1].index])?;
    rig.cluster.leader()?;
    rig.writes(alone)?;
    Ok(began_a_term(rig.member(alone)?, meanwhile)?
        .and("killed_pids", format!("{} and {}", lost[0].pid, lost[1].pid))
        .and("leader_of_the_third_meanwhile", "none"))
}

fn lose_majority(rig: &mut Three, _: &Moment) -> Result<Witness, Trouble> {
    let lost = kill_majority(rig)?;
    start_majority(rig, &lost)
}

fn restart_in_turn(rig: &mut Three, _: &Moment) -> Result<Witness, Trouble> {
    let mut pids = Vec::new();
    for index in rig.others(&[]) {
        let old = rig.kill(index)?;
        rig.cluster.restart(&[index])?;
        rig.writes(index)?;
        pids.push(format!("{old} then {}", rig.member(index)?.pid().unwrap_or_default()));
    }
    Ok(Witness::of("pids_of_the_members", pids))
}
