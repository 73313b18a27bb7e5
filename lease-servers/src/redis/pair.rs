//! A private Redis with a replica.

use super::wire::{info, redis_command, role};
use super::{RedisSetup, start};
use crate::wait::{LIMIT, until};
use crate::{Proxy, Server, ServerError};

/// A Redis and its replica. What the replica is sent passes through a [`Proxy`], so that it can be made to lag.
///
/// Redis replicates after it has answered. To stop the replica's process loses nothing: what was sent to it waits in the kernel. To
/// [`cut_link`](Self::cut_link) does: whatever is written then is on the primary only, and is lost by [`promote`](Self::promote).
#[derive(Debug)]
pub struct RedisPair {
    primary: Server,
    link: Proxy,
    replica: Server,
}

impl RedisPair {
    /// Starts both with the same setup and returns when the replica has everything.
    ///
    /// # Errors
    /// When `redis-server` is not installed, or one of them does not become ready.
    pub fn start(setup: &RedisSetup) -> Result<Self, ServerError> {
        let password = setup.password.as_ref().map(|p| format!("masterauth {p}\n")).unwrap_or_default();
        let primary = start(setup, &format!("{SWIFT}{password}"))?;
        let link = Proxy::to(primary.port())?;
        let replica = start(setup, &format!("{SWIFT}{password}replicaof 127.0.0.1 {}\n", link.port()))?;
        let pair = Self { primary, link, replica };
        pair.wait_in_step()?;
        Ok(pair)
    }

    /// The server that was the primary at the beginning. After a promotion it is the old one; it takes writes all the same until it is
    /// killed.
    #[must_use]
    pub fn primary(&self) -> &Server {
        &self.primary
    }

    /// The same, to kill it and to start it again.
    pub fn primary_mut(&mut self) -> &mut Server {
        &mut self.primary
    }

    /// The server that was the replica at the beginning. It keeps its role over a restart.
    #[must_use]
    pub fn replica(&self) -> &Server {
        &self.replica
    }

    /// The same, to kill it and to start it again.
    pub fn replica_mut(&mut self) -> &mut Server {
        &mut self.replica
    }

    /// What the replica reaches the primary through.
    #[must_use]
    pub fn link(&self) -> &Proxy {
        &self.link
    }

    /// Cuts the replica off from the primary, and returns when both have noticed.
    ///
    /// # Errors
    /// When one of them cannot be asked, or does not notice within a minute.
    pub fn cut_link(&self) -> Result<(), ServerError> {
        self.link.refuse(true);
        self.link.cut();
        until("the primary has no replica", LIMIT, || expect(&self.primary, "replication", "connected_slaves", "0"))?;
        self.until_link_is("down")
    }

    /// Joins them again after [`cut_link`](Self::cut_link), and returns when the replica has everything.
    ///
    /// # Errors
    /// When the replica does not catch up within a minute.
    pub fn restore_link(&self) -> Result<(), ServerError> {
        self.link.heal();
        self.wait_in_step()
    }

    /// Returns when the replica has everything that was written before the call.
    ///
    /// # Errors
    /// When one of them cannot be asked, or the replica has not caught up within a minute.
    pub fn wait_in_step(&self) -> Result<(), ServerError> {
        // A replica notices a moment later that its primary was started anew; the primary knows.
        until("the primary sends what is written", LIMIT, || {
            let first = info(&self.primary, "replication", "slave0").map_err(|e| e.to_string())?;
            if first.contains("state=online") { Ok(()) } else { Err(format!("its replica is `{first}`")) }
        })?;
        self.until_link_is("up")?;
        let written = offset(&self.primary, "master_repl_offset")?;
        until("the replica has what the primary had", LIMIT, || {
            let has = offset(&self.replica, "slave_repl_offset").map_err(|e| e.to_string())?;
            if has >= written { Ok(()) } else { Err(format!("{has} of {written} bytes")) }
        })?;
        // After a whole copy it writes its append-only file anew, and what it is told meanwhile would not outlive a kill.
        until("the replica's append-only file is whole", LIMIT, || {
            expect(&self.replica, "persistence", "aof_rewrite_scheduled", "0")?;
            expect(&self.replica, "persistence", "aof_rewrite_in_progress", "0")
        })
    }

    /// How much of what the primary has written the replica has not: bytes of the replication stream. It counts the primary's signs of
    /// life too.
    ///
    /// # Errors
    /// When one of them cannot be asked.
    pub fn lag_bytes(&self) -> Result<u64, ServerError> {
        let has = offset(&self.replica, "slave_repl_offset")?;
        Ok(offset(&self.primary, "master_repl_offset")?.saturating_sub(has))
    }

    /// Makes the replica a primary (`REPLICAOF NO ONE`), for good, and reads that back. The old primary is not told.
    ///
    /// # Errors
    /// When the replica cannot be asked, or is not a primary afterwards.
    pub fn promote(&self) -> Result<(), ServerError> {
        redis_command(&self.replica, &["REPLICAOF", "NO", "ONE"])?;
        redis_command(&self.replica, &["CONFIG", "REWRITE"])?;
        match role(&self.replica)?.as_str() {
            "master" => Ok(()),
            role => Err(ServerError::NotShown {
                what: "the replica was promoted".into(),
                seen: format!("its role is `{role}`"),
            }),
        }
    }

    fn until_link_is(&self, wanted: &str) -> Result<(), ServerError> {
        until(format!("the replica's link is {wanted}"), LIMIT, || {
            expect(&self.replica, "replication", "master_link_status", wanted)
        })
    }
}

fn expect(server: &Server, section: &str, field: &str, wanted: &str) -> Result<(), String> {
    match info(server, section, field) {
        Ok(found) if found == wanted => Ok(()),
        Ok(found) => Err(format!("`{found}` instead of `{wanted}`")),
        Err(error) => Err(error.to_string()),
    }
}

/// Without these a replica waits five seconds before its first copy, and ten for a sign of life.
const SWIFT: &str = "repl-diskless-sync-delay 0\nrepl-ping-replica-period 1\n";

fn offset(server: &Server, field: &str) -> Result<u64, ServerError> {
    let text = info(server, "replication", field)?;
    text.parse().map_err(|_| ServerError::Refused {
        what: format!("read {field} of the Redis on port {}", server.port()),
        answer: format!("it is `{text}`"),
    })
}
