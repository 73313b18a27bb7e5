//! What every backend does around a call: bound it, and look at a grant once more before it counts.

use crate::attempt::OVER_TTL;
use crate::{Acquisition, Attempt, Effect, Lease, LeaseBackend, LeaseError, Operation};
use std::future::Future;
use std::time::Duration;

/// Runs `call` for at most `limit`.
///
/// # Errors
/// [`LeaseError::Timeout`] with `effect` when the limit passes; else what the call says.
///
/// # Cancel safety
/// As the call.
pub async fn bounded<T>(
    limit: Duration,
    operation: Operation,
    effect: Effect,
    call: impl Future<Output = Result<T, LeaseError>>,
) -> Result<T, LeaseError> {
    tokio::time::timeout(limit, call).await.unwrap_or(Err(LeaseError::Timeout { operation, limit, effect }))
}

/// Gives the grant up if it is not above the attempt's floor. Whoever minted it should have seen to that; here nobody can forget it.
async fn check_floor(backend: &dyn LeaseBackend, attempt: &Attempt, lease: &Lease) -> Result<(), LeaseError> {
    let value = lease.token().map(crate::FencingToken::value);
    if value.is_some_and(|value| value > attempt.floor()) {
        return Ok(());
    }
    // The caller has it already, from before the attempt had this floor.
    let given_up = attempt.state().was_accepted() || backend.abandon(attempt).await.is_ok();
    let effect = if given_up { Effect::None } else { Effect::Unknown };
    match value {
        Some(value) => {
            let resource = attempt.resource().clone();
            Err(LeaseError::BelowFloor { resource, value, floor: attempt.floor(), effect })
        }
        None => Err(LeaseError::Store {
            operation: Operation::Acquire,
            reason: "this backend mints no fencing values, so none is above a floor; acquire without one".into(),
            effect,
            advice: crate::Advice::Fix,
            source: None,
        }),
    }
}

/// Turns a fresh grant into the answer of `acquire`: one that is not above the attempt's floor, or whose deadline passed before its reply came,
/// is given up.
///
/// # Errors
/// [`LeaseError::BelowFloor`], and [`LeaseError::Store`] where a floor was given and the grant has no token.
/// [`LeaseError::LateGrant`] when it came too late, whether or not the clean-up worked: the TTL bounds what is left.
/// [`LeaseError::AttemptOver`] when an earlier answer to the same attempt came in time: that grant may have been renewed since,
/// and is left alone.
///
/// # Cancel safety
/// The late grant may be left behind until its TTL ends.
pub async fn accept_grant(
    backend: &dyn LeaseBackend,
    attempt: &Attempt,
    lease: Lease,
) -> Result<Acquisition, LeaseError> {
    if attempt.floor() > 0 {
        check_floor(backend, attempt, &lease).await?;
    }
    if !lease.is_past_deadline() {
        attempt.state().accept();
        return Ok(Acquisition::Acquired(lease));
    }
    if attempt.state().was_accepted() {
        return Err(LeaseError::AttemptOver { resource: attempt.resource().clone(), reason: OVER_TTL });
    }
    // The error says that the effect is unknown, so a failed clean-up adds nothing to it.
    drop(backend.abandon(attempt).await);
    Err(LeaseError::LateGrant { resource: attempt.resource().clone() })
}
