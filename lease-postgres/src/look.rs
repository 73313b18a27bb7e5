//! Looking at leases: observations, which may be stale on arrival.

use crate::backend::{PostgresBackend, micros};
use lease_core::{Inspection, LeaseError, Listed, NamePage, Operation, ResourceName};

impl PostgresBackend {
    /// One resource.
    pub(crate) async fn look_at(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let call = self.call(Operation::Inspect);
        let mut checkout = call.checkout().await?;
        let query = sqlx::query_as(self.pool.statements.inspect.clone()).bind(resource.as_str());
        let rows: Vec<Seen> = call.rows(&mut checkout, query).await?;
        Ok(match rows.into_iter().next() {
            None => Inspection::free(None),
            Some(seen) if seen.0 => Inspection::held(listed(resource.clone(), seen)),
            // A row that only remembers a spent owner never had a value of its own.
            Some(seen) => Inspection::free(seen.4.then(|| u64::try_from(seen.3).unwrap_or(0))),
        })
    }

    /// Those that are held, in order.
    pub(crate) async fn page(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: u32,
    ) -> Result<NamePage, LeaseError> {
        let call = self.call(Operation::List);
        let mut checkout = call.checkout().await?;
        let limit = limit.max(1);
        let query = sqlx::query_as(self.pool.statements.list.clone())
            .bind(prefix)
            .bind(after.map_or("", ResourceName::as_str))
            .bind(crate::keys::prefix_end(prefix))
            // One more than asked, to know whether there is a next page.
            .bind(i64::from(limit).saturating_add(1));
        let rows: Vec<Seen> = call.rows(&mut checkout, query).await?;
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = rows.len() > most;
        let mut grants = Vec::with_capacity(rows.len().min(most));
        for seen in rows.into_iter().take(most) {
            grants.push(listed(ResourceName::parse(&seen.1)?, seen));
        }
        let next_after = if more { grants.last().map(|grant: &Listed| grant.resource.clone()) } else { None };
        Ok(NamePage { grants, next_after })
    }
}

/// Live, name, holder, value, whether the value is a grant's, then µs: remaining, since the grant, since the latest renewal.
type Seen = (bool, String, String, i64, bool, i64, i64, i64);

fn listed(resource: ResourceName, seen: Seen) -> Listed {
    let (_, _, holder, value, _, remaining, granted_ago, renewed_ago) = seen;
    Listed::new(resource, holder, u64::try_from(value).ok(), micros(remaining))
        .with_times(Some(micros(granted_ago)), Some(micros(renewed_ago)))
}
