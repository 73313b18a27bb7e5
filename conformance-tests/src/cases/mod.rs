//! The registry of cases: data, so that the program, the tests and a third party run the same ones.

mod answers;
mod attempt;
mod cancel;
mod clean_up;
mod declared;
mod destination;
mod exclusion;
mod expiry;
mod floor;
mod force;
mod holder;
#[cfg(feature = "http")]
mod http;
mod look;
mod names;
mod pause;
mod plain;
mod release;
mod renew;
mod restart;
mod token;
mod unknown;
mod wait;

use crate::context::{CaseResult, Stage};
use crate::judge::Rule;
use crate::subject::BoxFuture;
pub(crate) use destination::AtPlace;
pub(crate) use pause::run_pause;
use std::sync::OnceLock;

/// One case: one fact about a backend or a destination.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CaseInfo {
    /// Its id, such as `fencing/pause-past-ttl/guarded`. The destination, where there is one, is a field of the cell.
    pub id: &'static str,
    /// What it decides about. At a destination, a claim is the destination's.
    pub rule: Rule,
    /// The fact, in one sentence.
    pub title: &'static str,
    /// How it is tried, and what it means when it does not hold.
    pub explain: &'static str,
}

/// The groups whose cases wait for time limits and leases in trouble, so that a backend takes minutes.
const SLOW_GROUPS: [&str; 3] = ["cancel", "holder", "unknown"];

impl CaseInfo {
    /// The first part of its id.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.id.split_once('/').map_or(self.id, |(group, _)| group)
    }

    /// Whether its group takes minutes on a backend.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        SLOW_GROUPS.contains(&self.group())
    }
}

/// A case and how it is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) info: CaseInfo,
    pub(crate) how: How,
}

/// A case from its parts.
macro_rules! case {
    ($how:ident, $run:path, $rule:expr, $id:literal, $title:literal, $explain:literal) => {
        $crate::cases::Case {
            info: $crate::cases::CaseInfo { id: $id, rule: $rule, title: $title, explain: $explain },
            how: $crate::cases::How::$how(|at| Box::pin($run(at))),
        }
    };
}
use case;

impl Case {
    /// It measures times or disturbs a server, so nothing else may run.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.how, How::Alone(_)) || self.info.rule == Rule::Claim(lease_core::Claim::MarkSurvivesRestart)
    }
}

/// The future of one trial.
pub(crate) type Trial = BoxFuture<'static, CaseResult>;

/// How a case is run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// A part of the two-worker test: one pause serves all of them.
    Pause,
    /// By itself, at the same time as others: nothing in it depends on how fast anything is.
    Together(fn(Stage) -> Trial),
    /// By itself, with nothing else running: it measures times or disturbs the server.
    Alone(fn(Stage) -> Trial),
    /// At a destination, by itself.
    AtPlace(fn(AtPlace) -> Trial),
    /// At every place that has data which are written without a token, whichever backend's own it is.
    AtUnfenced(fn(AtPlace) -> Trial),
}

/// Every case there is, in the order of the report.
#[must_use]
pub fn cases() -> &'static [CaseInfo] {
    static INFOS: OnceLock<Vec<CaseInfo>> = OnceLock::new();
    INFOS.get_or_init(|| all().map(|case| case.info).collect())
}

/// The registry.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    [
        pause::CASES,
        plain::CASES,
        exclusion::CASES,
        expiry::CASES,
        renew::CASES,
        release::CASES,
        attempt::CASES,
        force::CASES,
        token::CASES,
        floor::CASES,
        clean_up::CASES,
        wait::CASES,
        names::CASES,
        look::CASES,
        declared::CASES,
        unknown::CASES,
        unknown::SILENT,
        cancel::CASES,
        holder::CASES,
        restart::CASES,
        destination::CASES,
        destination::RACING,
        destination::DROPPED,
        #[cfg(feature = "http")]
        http::CASES,
    ]
    .into_iter()
    .flatten()
}

/// The rule of a case, by id.
pub(crate) fn info(id: &str) -> Option<CaseInfo> {
    all().find(|case| case.info.id == id).map(|case| case.info)
}
