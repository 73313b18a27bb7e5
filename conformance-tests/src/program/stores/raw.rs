//! Calls through a store's own client, outside of the workspace's crates: bounded, and with a failure that the suite can report.

use lease_core::{Advice, Effect, LeaseError, Operation};
use std::time::Duration;

/// The longest that one raw call may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs one raw call within a limit.
pub(super) async fn bounded<T, E: std::error::Error + Send + Sync + 'static>(
    operation: Operation,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, LeaseError> {
    match tokio::time::timeout(LIMIT, call).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(failed(operation, error)),
        Err(_) => Err(LeaseError::Timeout { operation, limit: LIMIT, effect: Effect::Unknown }),
    }
}

/// What a store's own client said.
pub(super) fn failed(operation: Operation, error: impl std::error::Error + Send + Sync + 'static) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: error.to_string(),
        effect: Effect::Unknown,
        advice: Advice::Fix,
        source: Some(Box::new(error)),
    }
}
