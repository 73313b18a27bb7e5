//! A private etcd of three members.

use super::wire::{EtcdStatus, etcd_call, etcd_status};
use super::{EtcdSetup, Member, member};
use crate::process::process_state;
use crate::server::free_port;
use crate::wait::{LIMIT, until};
use crate::{Proxy, Server, ServerError};

/// How many members. Two are a majority.
const MEMBERS: usize = 3;

/// An etcd of three members. They reach each other through a [`Proxy`] each, so that one can be cut off from the others and still be
/// reached by its clients.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Server>,
    /// What the others reach each member through.
    links: Vec<Proxy>,
    isolated: Option<usize>,
}

impl EtcdCluster {
    /// Starts the members with the same setup and returns when they take writes.
    ///
    /// # Errors
    /// When `etcd` is not installed, or a member does not become ready.
    pub fn start(setup: &EtcdSetup) -> Result<Self, ServerError> {
        let names: Vec<String> = (1..=MEMBERS).map(|number| format!("m{number}")).collect();
        let ports = names.iter().map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
        let links = ports.iter().map(|port| Proxy::to(*port)).collect::<Result<Vec<_>, _>>()?;
        let addresses = names.iter().zip(&links).map(|(name, link)| format!("{name}=http://127.0.0.1:{}", link.port()));
        let cluster = addresses.collect::<Vec<_>>().join(",");
        let mut members = Vec::new();
        for ((name, port), link) in names.iter().zip(ports).zip(&links) {
            let place = Member { name, peer_port: port, advertised_port: link.port(), cluster: &cluster };
            members.push(member(setup, &place)?);
        }
        let mut cluster = Self { members, links, isolated: None };
        cluster.wait_until_ready(&[0, 1, 2])?;
        Ok(cluster)
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[Server] {
        &self.members
    }

    /// The members, to pause and to kill them. To start one again, use [`restart`](Self::restart).
    pub fn members_mut(&mut self) -> &mut [Server] {
        &mut self.members
    }

    /// A URL with all members.
    #[must_use]
    pub fn url(&self) -> String {
        let all: Vec<_> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        format!("etcd://{}", all.join(","))
    }

    /// The leader: a member that says so itself, and on whom a majority agrees. Returns as soon as there is one.
    ///
    /// # Errors
    /// When there is none within a minute.
    pub fn leader(&self) -> Result<usize, ServerError> {
        until("a majority agrees on a leader", LIMIT, || self.agreed())
    }

    /// The leader, as soon as it is not `old` any more. A member that was killed, paused or isolated is the leader until the others have
    /// missed it.
    ///
    /// # Errors
    /// When there is no other within a minute.
    pub fn leader_instead_of(&self, old: usize) -> Result<usize, ServerError> {
        until(format!("a majority agrees on a leader other than member {old}"), LIMIT, || match self.agreed()? {
            same if same == old => Err("it is the same".to_owned()),
            other => Ok(other),
        })
    }

    /// Makes a member the leader, and returns when a majority agrees that it is.
    ///
    /// # Errors
    /// When it is not so within a minute.
    pub fn move_leader(&self, to: usize) -> Result<(), ServerError> {
        let place = |index: usize| self.members.get(index).ok_or_else(|| format!("there is no member {index}"));
        until(format!("member {to} is the leader"), LIMIT, || {
            let leader = self.agreed()?;
            if leader == to {
                return Ok(());
            }
            let target = etcd_status(place(to)?).map_err(|e| e.to_string())?.member;
            let order = format!("{{\"targetID\":\"{target}\"}}");
            etcd_call(place(leader)?, "/v3/maintenance/transfer-leadership", &order).map_err(|e| e.to_string())?;
            Err(format!("it is member {leader}, who was told to hand over"))
        })
    }

    /// Starts members again, all at once, since one alone may not become ready; returns when they take writes.
    ///
    /// # Errors
    /// When one of them does not become ready within a minute: without a majority of members none does.
    pub fn restart(&mut self, members: &[usize]) -> Result<(), ServerError> {
        for index in members {
            if let Some(member) = self.members.get_mut(*index) {
                member.launch()?;
            }
        }
        self.cut();
        self.wait_until_ready(members)
    }

    /// Cuts one member off from the others, in both directions; clients reach it as before. Another that was isolated is joined again.
    pub fn isolate(&mut self, member: usize) {
        self.heal();
        self.isolated = Some(member);
        self.cut();
    }

    /// Joins an isolated member again.
    pub fn heal(&mut self) {
        self.isolated = None;
        for link in &self.links {
            link.heal();
        }
    }

    /// Nobody reaches the isolated member; and the others are reached by each other only. What somebody else sends to a member that was
    /// started anew is refused until this is called again.
    fn cut(&self) {
        let Some(isolated) = self.isolated else { return };
        let others = self.members.iter().enumerate().filter(|(index, _)| *index != isolated);
        let others: Vec<u32> = others.filter_map(|(_, member)| member.pid()).collect();
        for (index, link) in self.links.iter().enumerate() {
            link.only_from(if index == isolated { Vec::new() } else { others.clone() });
        }
    }

    fn wait_until_ready(&mut self, members: &[usize]) -> Result<(), ServerError> {
        members.iter().filter_map(|index| self.members.get_mut(*index).map(Server::wait_until_ready)).collect()
    }

    fn agreed(&self) -> Result<usize, String> {
        // One that is paused takes connections and answers nothing.
        let runs = |member: &&Server| member.pid().is_some_and(|pid| process_state(pid) != Some('T'));
        let ask = |member: &Server| Some(member).filter(runs).and_then(|member| etcd_status(member).ok());
        let known: Vec<Option<EtcdStatus>> = self.members.iter().map(ask).collect();
        let leads = |status: &EtcdStatus| status.leader == status.member;
        let follows = |leader: &EtcdStatus| {
            known.iter().flatten().filter(|other| (other.leader, other.term) == (leader.member, leader.term)).count()
        };
        let majority = MEMBERS.div_euclid(2);
        let leader = known.iter().position(|s| s.as_ref().is_some_and(|s| leads(s) && follows(s) > majority));
        leader.ok_or_else(|| format!("{known:?}"))
    }
}
