//! Ending somebody else's grant, on an operator's order.

use crate::backend::{Inner, SqliteBackend, one};
use lease_core::{ForceRelease, Forced, LeaseError, Operation};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

impl SqliteBackend {
    pub(crate) async fn force(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        let resource = order.resource().as_str().to_owned();
        // An order has no value beyond the signed range.
        let value = i64::try_from(order.value()).unwrap_or(i64::MAX);
        let Inner { database, statements, .. } = &*self.inner;
        let rows = database
            .write(Operation::ForceRelease, &statements.force, move |query, moment| {
                query.bind(resource.clone()).bind(value).bind(moment.boot.clone()).bind(moment.now)
            })
            .await?;
        one(&rows, Operation::ForceRelease, decode)
    }
}

fn decode(row: &SqliteRow) -> Result<Forced, sqlx::Error> {
    let ended: i64 = row.try_get("ended")?;
    let other: Option<i64> = row.try_get("other")?;
    Ok(match other {
        _ if ended > 0 => Forced::Ended,
        Some(value) => Forced::OtherGrant { value: u64::try_from(value).unwrap_or(0) },
        None => Forced::NotHeld,
    })
}
