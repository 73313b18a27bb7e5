//! Ending somebody else's grant, on an operator's order.

use crate::backend::{PostgresBackend, ROUNDS, SPENT_AT_LEAST, busy, millis};
use crate::error::{came_too_late, may_run_again};
use lease_core::{ForceRelease, Forced, LeaseError, Operation};

impl PostgresBackend {
    pub(crate) async fn force(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        let call = self.pool.call(Operation::ForceRelease);
        // An order has no value beyond the signed range.
        let named = i64::try_from(order.value()).unwrap_or(i64::MAX);
        let mut checkout = call.checkout().await?;
        for _ in 0..ROUNDS {
            let query = sqlx::query_as(self.pool.statements.force.clone())
                .bind(order.resource().as_str())
                .bind(named)
                .bind(millis(SPENT_AT_LEAST));
            let answer: Result<(String, Option<i64>), LeaseError> = call.row(&mut checkout, query).await;
            let (outcome, live) = match answer {
                // The grant ended while the statement waited for its row, or strangers waited in a circle around it: nothing was done.
                Err(error) if came_too_late(&error) || may_run_again(&error) => continue,
                answer => answer?,
            };
            match (outcome.as_str(), live) {
                ("ended", _) => return Ok(Forced::Ended),
                ("not held", _) => return Ok(Forced::NotHeld),
                ("other", Some(live)) => return Ok(Forced::OtherGrant { value: u64::try_from(live).unwrap_or(0) }),
                _ => {}
            }
        }
        Err(busy(Operation::ForceRelease))
    }
}
