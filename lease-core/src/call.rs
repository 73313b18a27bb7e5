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

/// Turns a fresh grant into the answer of `acquire`: one whose deadline passed before its reply came is given up.
///
/// # Errors
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
