//! What the report has of survival: one guarantee, under one server fault, in one set-up.

use crate::timeline::Timeline;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// One guarantee of one lease backend under one server fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurvivalCell {
    /// The set-up of the servers, such as `redis/aof-everysec`.
    pub setup: String,
    /// The lease backend's name.
    pub backend: String,
    /// The fault, such as `power-cut`.
    pub fault: String,
    /// What was watched.
    pub guarantee: Guarantee,
    /// What became of it.
    pub outcome: Outcome,
    /// What was expected, as it was committed before the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Outcome>,
    /// What was seen, in one sentence; why, where it was not tried.
    pub finding: String,
    /// How often the scene was played.
    pub trials: u32,
    /// That the fault really happened: process ids, roles, times, bytes, as they were read.
    #[serde(default)]
    pub witness: BTreeMap<String, Value>,
    /// Tokens, answers, contents. The end of a name says what a number is, as in the other cells.
    #[serde(default)]
    pub evidence: BTreeMap<String, Value>,
    /// The scene, where the guarantee did not survive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

impl SurvivalCell {
    /// Whether it is what was expected.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.expected == Some(self.outcome)
    }
}

/// What is watched in each scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// No other worker is granted the resource before the holder's own deadline.
    Exclusion,
    /// The holder can renew once the fault is over, within its TTL.
    LeaseKept,
    /// A grant after the fault has a larger token than each one before it, or one of a new authority, which no guard takes unasked.
    TokenOrder,
    /// The resource is granted again within a bound.
    Granting,
    /// A stale write is refused where the old holder had sealed or written.
    FenceReached,
    /// A stale write is refused where the old holder had never been.
    FenceUnreached,
    /// A stale write is refused where nothing checks it: the control, which has to break.
    NoGuard,
}

impl Guarantee {
    /// Every guarantee, in the order of tables.
    pub const ALL: [Self; 7] = [
        Self::Exclusion,
        Self::LeaseKept,
        Self::TokenOrder,
        Self::Granting,
        Self::FenceReached,
        Self::FenceUnreached,
        Self::NoGuard,
    ];

    /// The name in reports and in `survival.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::LeaseKept => "lease-kept",
            Self::TokenOrder => "token-order",
            Self::Granting => "granting",
            Self::FenceReached => "fence-reached",
            Self::FenceUnreached => "fence-unreached",
            Self::NoGuard => "no-guard",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of a guarantee. Ordered: of several trials the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It could not be seen.
    NotTried,
    /// Not refuted.
    Survives,
    /// It did not hold, and whoever relies on it is told: a new authority, or a guard that refuses the lower token.
    Noticed,
    /// It did not hold, and nothing says so.
    Breaks,
}

impl Outcome {
    /// The name in reports and in `survival.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotTried => "not_tried",
            Self::Survives => "survives",
            Self::Noticed => "noticed",
            Self::Breaks => "breaks",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
