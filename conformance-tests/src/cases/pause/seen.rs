//! What was seen of one pause, before it is judged.

use super::scene::Step;
use super::target::{Target, Unopened};
use crate::worker::{Answer, Told};
use lease_core::{FencingToken, Listed, Stored};
use std::time::Duration;

/// What was seen of one pause.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) backend: String,
    pub(super) mode: &'static str,
    pub(super) pid_a: u32,
    pub(super) pid_b: u32,
    /// A's state while it was stopped: right after, and right before it was resumed.
    pub(super) stopped: [String; 2],
    pub(super) pause: Duration,
    pub(super) granted_ttl: Duration,
    pub(super) token_a: Option<FencingToken>,
    pub(super) token_b: Option<FencingToken>,
    pub(super) a_last_live_ns: u64,
    pub(super) b_granted_ns: u64,
    pub(super) resumed_ns: u64,
    /// A's lease at its first touch after the pause, before any I/O.
    pub(super) past_deadline_at_first_touch: bool,
    pub(super) targets: Vec<AtTarget>,
    pub(super) unopened: Vec<Unopened>,
    pub(super) native: Option<AtRegister>,
    pub(super) a_renew: Answer,
    pub(super) a_release: Answer,
    pub(super) b_renew: Answer,
    /// The grant that the observer sees at the end.
    pub(super) holder: Option<Listed>,
    /// What the workers did, in order, for a picture.
    pub(super) steps: Vec<Step>,
}

/// One destination, as the observer read it.
#[derive(Debug)]
pub(super) struct AtTarget {
    pub(super) target: Target,
    /// What A had prepared before it was stopped.
    pub(super) stale: String,
    /// What B wrote or will write, computed from what it had read while A was stopped.
    pub(super) fresh: String,
    pub(super) before: Stored,
    pub(super) after: Stored,
    /// At the very end, after B's own write.
    pub(super) last: Stored,
    pub(super) told: Told,
    /// What B was told of its own write.
    pub(super) told_b: Told,
    pub(super) sent_ns: u64,
}

/// The register behind the backend's own fence.
#[derive(Debug)]
pub(super) struct AtRegister {
    pub(super) mark: bool,
    pub(super) stale: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
    pub(super) told: Told,
    pub(super) sent_ns: u64,
    /// The control: what A was told, and what the register held then. `None` where nobody can write it unchecked.
    pub(super) unchecked: Option<(Told, Option<String>)>,
}
