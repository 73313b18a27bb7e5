//! What the server's settings let this backend claim.

use lease_core::{Claim, Claims, LeaseError, Limits, Ttl};
use std::time::Duration;

/// The server as it described itself when the present connection was made. What could not be read is `None`, and is not claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) version: Option<String>,
    cluster: Option<bool>,
    role: Option<String>,
    replicas: Option<u64>,
    append_only: Option<bool>,
    append_fsync: Option<String>,
    /// Whether the file is not synced while it is rewritten, whatever `append_fsync` says.
    rewrite_unsynced: Option<bool>,
    eviction: Option<String>,
}

impl Settings {
    /// Reads them from the text of `INFO`, and from the names and values that `CONFIG GET` answered.
    pub(crate) fn read(info: Option<&str>, config: &[String]) -> Self {
        let field = |name: &str| {
            info.unwrap_or_default()
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(|v| v.trim().to_owned()))
        };
        let value =
            |name: &str| config.chunks_exact(2).find_map(|pair| (pair.first()? == name).then(|| pair.get(1))?);
        let flag = |name: &str| field(name).map(|value| value == "1");
        Self {
            version: field("redis_version"),
            cluster: flag("cluster_enabled"),
            role: field("role"),
            replicas: field("connected_slaves").and_then(|n| n.parse().ok()),
            append_only: flag("aof_enabled"),
            append_fsync: value("appendfsync").cloned(),
            rewrite_unsynced: value("no-appendfsync-on-rewrite").map(|value| value == "yes"),
            eviction: field("maxmemory_policy"),
        }
    }

    /// # Errors
    /// [`LeaseError::NotSetUp`] when this server is of a kind that leases do not work on.
    pub(crate) fn check_usable(&self) -> Result<(), LeaseError> {
        let refuse = |reason: &str, advice: &str| {
            Err(LeaseError::NotSetUp { reason: reason.into(), advice: advice.into(), source: None })
        };
        if self.cluster == Some(true) {
            return refuse(
                "the server is a node of a Redis Cluster (cluster_enabled:1)",
                "give the address of a server that is not clustered",
            );
        }
        if self.role.as_deref() == Some("slave") {
            return refuse("the server is a replica", "give the address of its primary");
        }
        Ok(())
    }

    /// Nothing is removed for lack of memory.
    fn keeps_everything(&self) -> bool {
        self.eviction.as_deref() == Some("noeviction")
    }

    /// What was answered is still there after a crash: each write is synced before its answer, nothing is evicted, and no replica, which
    /// may lack the latest writes, could take over.
    fn is_durable(&self) -> bool {
        self.keeps_everything()
            && self.append_only == Some(true)
            && self.append_fsync.as_deref() == Some("always")
            && self.rewrite_unsynced == Some(false)
            && self.replicas == Some(0)
    }

    pub(crate) fn backend_claims(&self) -> Claims {
        Claims::of(&[Claim::NativeFenceLiveOwner, Claim::IdleNamesForgotten])
            .and_if(self.keeps_everything(), Claim::CrossProcess)
            .and_if(self.keeps_everything(), Claim::FencingToken)
            .and_if(self.keeps_everything(), Claim::MintsAboveFloor)
            .and_if(self.is_durable(), Claim::LeaseSurvivesRestart)
            .and_if(self.is_durable(), Claim::TokenSurvivesRestart)
    }

    pub(crate) fn destination_claims(&self) -> Claims {
        Claims::of(&[Claim::RefusalUncommittable]).and_if(self.is_durable(), Claim::MarkSurvivesRestart)
    }
}

/// The largest fencing value: a Lua number is a double, exact up to here.
pub(crate) const MAX_VALUE: u64 = 1 << 53;

/// Milliseconds both ways. A century in microseconds past today's clock is below 2^53, so the scripts' arithmetic stays exact.
pub(crate) fn limits(call_timeout: Duration) -> Limits {
    Limits::new(Duration::from_millis(1), Ttl::MAX, Duration::from_millis(1))
        .with_expiry_lag(Duration::from_millis(50))
        .with_max_token_value(MAX_VALUE)
        .with_call_timeout(call_timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\
        # Persistence\r\naof_enabled:1\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n# Cluster\r\ncluster_enabled:0\r\n";

    fn settings(from: &str, to: &str, fsync: Option<&str>) -> Settings {
        let config = fsync.map(|fsync| ["appendfsync", fsync, "no-appendfsync-on-rewrite", "no"]);
        settings_with(from, to, config.as_ref().map_or(&[], |config| config.as_slice()))
    }

    fn settings_with(from: &str, to: &str, config: &[&str]) -> Settings {
        assert!(INFO.contains(from));
        let config: Vec<String> = config.iter().map(|text| (*text).to_owned()).collect();
        Settings::read(Some(&INFO.replace(from, to)), &config)
    }

    #[test]
    fn claims_follow_the_settings() {
        let durable = settings("", "", Some("always"));
        let survives = |s: &Settings| {
            (
                s.backend_claims().has(Claim::LeaseSurvivesRestart),
                s.destination_claims().has(Claim::MarkSurvivesRestart),
            )
        };
        assert_eq!(durable.version.as_deref(), Some("7.0.15"));
        assert_eq!(survives(&durable), (true, true));
        for (from, to, fsync) in [
            ("aof_enabled:1", "aof_enabled:0", Some("always")),
            ("", "", Some("everysec")),
            ("", "", None),
            ("noeviction", "volatile-lru", Some("always")),
            ("noeviction", "allkeys-lru", Some("always")),
            ("connected_slaves:0", "connected_slaves:1", Some("always")),
        ] {
            assert_eq!(survives(&settings(from, to, fsync)), (false, false), "{to} {fsync:?}");
        }
        assert!(!settings("noeviction", "allkeys-lru", None).backend_claims().has(Claim::FencingToken));
        for config in [
            &["no-appendfsync-on-rewrite", "yes", "appendfsync", "always"][..],
            &["appendfsync", "always"],
            &["no-appendfsync-on-rewrite", "no"],
        ] {
            assert_eq!(survives(&settings_with("", "", config)), (false, false), "{config:?}");
        }
        let unread = Settings::read(None, &[]);
        assert!(!unread.backend_claims().has(Claim::CrossProcess));
        assert!(unread.check_usable().is_ok());
    }

    #[test]
    fn unusable_servers_are_refused() {
        assert!(settings("cluster_enabled:0", "cluster_enabled:1", None).check_usable().is_err());
        assert!(settings("role:master", "role:slave", None).check_usable().is_err());
    }

    #[test]
    fn a_century_stays_exact() {
        let year_2126 = 4_922_000_000_000_000_u64;
        let century = u64::try_from(Ttl::MAX.as_micros()).unwrap();
        assert!(year_2126 + century < MAX_VALUE);
    }
}
