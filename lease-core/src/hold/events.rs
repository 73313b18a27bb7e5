//! What can be seen of a lease's life: `tracing` events with stable names under the target `leasehold`.
//!
//! The name is the field `event`; `resource` and `token` are on each one. No owner token anywhere. With the feature `metrics` the same
//! places count, without the resource as a label, so that the number of series stays small.

use super::clean_up::CleanUp;
use super::loss::Loss;
use super::permit::{Permit, StaleBehaviour};
use crate::{FencingToken, Lease, LeaseError, Release, ResourceName};
use std::time::Duration;
use tracing::{debug, info, warn};

/// Counts one, in a series whose labels are few.
#[cfg(feature = "metrics")]
macro_rules! count {
    ($name:literal $(, $label:literal => $value:expr)*) => { metrics::counter!($name $(, $label => $value)*).increment(1) };
}

/// Records a time in seconds.
#[cfg(feature = "metrics")]
macro_rules! record {
    ($name:literal, $time:expr) => {
        metrics::histogram!($name).record($time.as_secs_f64())
    };
}

#[cfg(not(feature = "metrics"))]
macro_rules! count {
    ($($any:tt)*) => {};
}

#[cfg(not(feature = "metrics"))]
macro_rules! record {
    ($($any:tt)*) => {};
}

pub(super) fn text(token: Option<&FencingToken>) -> String {
    token.map(ToString::to_string).unwrap_or_default()
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn attempt(resource: &ResourceName) {
    debug!(target: "leasehold", event = "attempt", %resource);
    count!("leasehold_attempts_total");
}

pub(super) fn granted(lease: &Lease, waited: Duration) {
    info!(target: "leasehold", event = "granted", resource = %lease.resource(), token = text(lease.token()),
        ttl_ms = ms(lease.granted_ttl()), waited_ms = ms(waited), confirmed_by = lease.confirmed_by());
    count!("leasehold_grants_total");
    record!("leasehold_wait_seconds", waited);
}

pub(super) fn renewed(lease: &Lease, slack: Duration) {
    debug!(target: "leasehold", event = "renewed", resource = %lease.resource(), token = text(lease.token()),
        slack_ms = ms(slack));
    count!("leasehold_renewals_total", "outcome" => "renewed");
    record!("leasehold_renewal_slack_seconds", slack);
}

pub(super) fn renewal_failed(lease: &Lease, error: &LeaseError, slack: Duration) {
    warn!(target: "leasehold", event = "renewal_failed", resource = %lease.resource(), token = text(lease.token()),
        %error, slack_ms = ms(slack));
    count!("leasehold_renewals_total", "outcome" => "failed");
}

pub(super) fn lost(loss: &Loss, lease: &Lease, held: Duration) {
    warn!(target: "leasehold", event = "lost", resource = %loss.resource(), token = text(lease.token()),
        reason = loss.cause().id(), held_ms = ms(held));
    count!("leasehold_losses_total", "reason" => loss.cause().id());
    record!("leasehold_hold_seconds", held);
}

pub(super) fn permit(permit: &Permit) {
    let token = || text(permit.token());
    if let StaleBehaviour::Unprotected { reason } = permit.behaviour() {
        info!(target: "leasehold", event = "permit", resource = %permit.resource, token = token(),
            behaviour = permit.behaviour().id(), reason);
    } else {
        debug!(target: "leasehold", event = "permit", resource = %permit.resource, token = token(),
            behaviour = permit.behaviour().id());
    }
    count!("leasehold_permits_total", "behaviour" => permit.behaviour().id());
}

pub(super) fn effect(permit: &Permit, committed: bool) {
    let name = if committed { "effect_committed" } else { "effect_refused" };
    info!(target: "leasehold", event = name, resource = %permit.resource, token = text(permit.token()),
        behaviour = permit.behaviour().id());
    if committed {
        count!("leasehold_effects_committed_total", "behaviour" => permit.behaviour().id());
    } else {
        count!("leasehold_stale_writes_refused_total", "behaviour" => permit.behaviour().id());
    }
}

pub(super) fn work_started(resource: &ResourceName, token: Option<&FencingToken>) {
    info!(target: "leasehold", event = "work_started", %resource, token = text(token));
}

pub(super) fn work_failed(resource: &ResourceName) {
    warn!(target: "leasehold", event = "work_failed", %resource);
    count!("leasehold_work_failures_total");
}

/// Nobody waited for this release, so nobody else sees its error.
pub(super) fn release_failed(lease: &Lease, error: &LeaseError) {
    warn!(target: "leasehold", event = "release_failed", resource = %lease.resource(), token = text(lease.token()), %error);
}

/// Too many wait for a store that does not answer.
pub(super) fn clean_up_dropped(clean_up: &CleanUp) {
    match clean_up {
        CleanUp::Release(grant) => {
            let lease = grant.lease();
            warn!(target: "leasehold", event = "clean_up_dropped", resource = %lease.resource(), token = text(lease.token()),
                clean_up = "release");
        }
        CleanUp::Abandon(attempt) => {
            warn!(target: "leasehold", event = "clean_up_dropped", resource = %attempt.resource(), token = "",
                clean_up = "abandon");
        }
    }
    count!("leasehold_clean_ups_dropped_total");
}

pub(super) fn released(lease: &Lease, answer: Release, held: Duration) {
    info!(target: "leasehold", event = "released", resource = %lease.resource(), token = text(lease.token()),
        answer = ?answer, held_ms = ms(held));
    count!("leasehold_releases_total");
    record!("leasehold_hold_seconds", held);
}
