//! A private Redis with a replica, watched by Sentinels.

use super::wire::{info, redis_command};
use super::{RedisPair, RedisSetup, configuration, launch};
use crate::server::{Folder, free_port};
use crate::wait::until;
use crate::{Kind, Server, ServerError};
use std::time::Duration;

/// How many Sentinels. Two have to agree.
const SENTINELS: usize = 3;

/// How long to wait for what Sentinels do. One that sees the clock stand still for two seconds, as it does on a machine without time for it,
/// does nothing for half a minute.
const LIMIT: Duration = Duration::from_mins(3);

/// A [`RedisPair`] and three Sentinels, which promote the replica when the primary is gone for three seconds.
///
/// The Sentinels reach the primary through the pair's link, as the replica does. So [`RedisPair::cut_link`] isolates the primary from all of
/// them, and those of its clients who know its own port still reach it: they write what is lost. Clients who ask a Sentinel are told the link's
/// port as long as it is the primary.
#[derive(Debug)]
pub struct RedisSentinel {
    pair: RedisPair,
    sentinels: Vec<Server>,
}

impl RedisSentinel {
    /// Starts all of them and returns when the Sentinels know the pair and each other.
    ///
    /// # Errors
    /// When `redis-server` is not installed, or one of them does not become ready.
    pub fn start(setup: &RedisSetup) -> Result<Self, ServerError> {
        let pair = RedisPair::start(setup)?;
        let sentinels = (0..SENTINELS).map(|_| sentinel(&pair, setup)).collect::<Result<Vec<_>, _>>()?;
        let all = Self { pair, sentinels };
        until("each Sentinel knows the replica and the others", LIMIT, || {
            all.sentinels.iter().try_for_each(|sentinel| {
                let known = |field| field_of(sentinel, field);
                let others = (known("num-slaves")?, known("num-other-sentinels")?, known("flags")?);
                if others == ("1".into(), "2".into(), "master".into()) { Ok(()) } else { Err(format!("{others:?}")) }
            })
        })?;
        Ok(all)
    }

    /// The Redis and its replica.
    #[must_use]
    pub fn pair(&self) -> &RedisPair {
        &self.pair
    }

    /// The same, to kill one of them and to start it again.
    pub fn pair_mut(&mut self) -> &mut RedisPair {
        &mut self.pair
    }

    /// The Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The same, to pause and to kill them.
    pub fn sentinels_mut(&mut self) -> &mut [Server] {
        &mut self.sentinels
    }

    /// The name by which Sentinels know the pair.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Kills the primary and returns when the replica is promoted.
    ///
    /// # Errors
    /// When the Sentinels have not promoted it within three minutes.
    pub fn failover(&mut self) -> Result<(), ServerError> {
        self.pair.primary_mut().kill();
        self.wait_until_promoted()
    }

    /// Returns when the replica is a primary, and every running Sentinel says that it is the one.
    ///
    /// # Errors
    /// When it is not so within three minutes. They promote no replica that has long been without its primary.
    pub fn wait_until_promoted(&self) -> Result<(), ServerError> {
        let replica = self.pair.replica();
        until("the Sentinels have promoted the replica", LIMIT, || {
            let role = info(replica, "replication", "role").map_err(|e| e.to_string())?;
            if role != "master" {
                return Err(format!("its role is `{role}`"));
            }
            self.sentinels.iter().filter(|sentinel| sentinel.pid().is_some()).try_for_each(|sentinel| {
                let port = field_of(sentinel, "port")?;
                if port == replica.port().to_string() {
                    Ok(())
                } else {
                    Err(format!("one says that it is port {port}"))
                }
            })
        })
    }

    /// Returns when the old primary, which was killed and started again or isolated and joined again, is a replica of the new one and has what
    /// that has. What only the old one had is gone then.
    ///
    /// # Errors
    /// When it is not so within three minutes.
    pub fn wait_until_demoted(&self) -> Result<(), ServerError> {
        until("the old primary is a replica", LIMIT, || {
            let seen = |field| info(self.pair.primary(), "replication", field).map_err(|e| e.to_string());
            let state = (seen("role")?, seen("master_link_status")?);
            if state == ("slave".into(), "up".into()) { Ok(()) } else { Err(format!("{state:?}")) }
        })
    }
}

const NAME: &str = "private";

fn sentinel(pair: &RedisPair, setup: &RedisSetup) -> Result<Server, ServerError> {
    let (folder, port) = (Folder::new(Kind::Redis)?, free_port()?);
    let password = setup.password.as_ref().map(|p| format!("sentinel auth-pass {NAME} {p}\n")).unwrap_or_default();
    // A failover that failed is tried again after twice its time-out.
    let settings = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {} 2\n{password}\
         sentinel down-after-milliseconds {NAME} 3000\nsentinel failover-timeout {NAME} 5000\n",
        folder.data().display(),
        pair.link().port(),
    );
    let file = configuration(&folder, &settings)?;
    launch(folder, vec![file, "--sentinel".into()], port, format!("redis://127.0.0.1:{port}/"))
}

/// What a Sentinel says about the primary: names and values, one a line.
fn field_of(sentinel: &Server, name: &str) -> Result<String, String> {
    let text = redis_command(sentinel, &["SENTINEL", "MASTER", NAME]).map_err(|e| e.to_string())?;
    let mut lines = text.lines();
    while let (Some(found), Some(value)) = (lines.next(), lines.next()) {
        if found == name {
            return Ok(value.to_owned());
        }
    }
    Err(format!("it does not say `{name}`"))
}
