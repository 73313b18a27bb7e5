//! What an instance declares, given the settings that were read back from its connection.

use crate::config::SqliteConfig;
use lease_core::{Claim, Claims, Limits, Ttl};
use std::time::Duration;

/// The settings that change the truth, as the latest connection reported them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The library's version.
    pub(crate) version: String,
    /// `PRAGMA journal_mode`.
    pub(crate) journal_mode: String,
    /// `PRAGMA synchronous`: 2 is FULL, 3 is EXTRA.
    pub(crate) synchronous: i64,
}

impl Settings {
    /// Whether a commit is on the disk when it returns. Less than FULL in WAL mode loses the tail at a power cut.
    fn durable(&self) -> bool {
        self.journal_mode == "wal" && self.synchronous >= 2
    }

    pub(crate) fn lease_claims(&self) -> Claims {
        Claims::of(&[
            Claim::FencingToken,
            Claim::MintsAboveFloor,
            Claim::NativeFenceLiveOwner,
            Claim::CrossProcess,
            Claim::ListByPrefix,
            Claim::IdleNamesForgotten,
        ])
        .and_if(self.durable(), Claim::LeaseSurvivesRestart)
        .and_if(self.durable(), Claim::TokenSurvivesRestart)
    }

    pub(crate) fn destination_claims(&self) -> Claims {
        Claims::of(&[Claim::RefusalUncommittable, Claim::MarkRollsBack])
            .and_if(self.durable(), Claim::MarkSurvivesRestart)
    }
}

/// The numbers. Expiry is judged by comparison, so nothing lags; one millisecond covers rounding.
pub(crate) fn limits(config: &SqliteConfig) -> Limits {
    let step = Duration::from_millis(1);
    Limits::new(step, Ttl::MAX, step).with_expiry_lag(step).with_call_timeout(config.options().call_timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_loses_commits_takes_the_claims_back() {
        let settings = |journal_mode: &str, synchronous| Settings {
            version: String::new(),
            journal_mode: journal_mode.into(),
            synchronous,
        };
        for (settings, durable) in [
            (settings("wal", 2), true),
            (settings("wal", 3), true),
            (settings("wal", 1), false),
            (settings("wal", 0), false),
            (settings("memory", 2), false),
        ] {
            let claims = settings.lease_claims();
            assert_eq!(claims.has(Claim::LeaseSurvivesRestart), durable);
            assert_eq!(claims.has(Claim::TokenSurvivesRestart), durable);
            assert_eq!(settings.destination_claims().has(Claim::MarkSurvivesRestart), durable);
        }
    }
}
