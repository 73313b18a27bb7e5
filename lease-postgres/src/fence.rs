//! The native fence: a transaction that commits only if the grant was live, and during which nobody else can be granted.

use crate::backend::{PostgresBackend, value_of};
use crate::error::{FENCE_REFUSED, of_statement, server_error};
use crate::pool::Pool;
use lease_core::{Effect, FenceError, FencedRegister, Lease, LeaseError, Namespace, Operation, ResourceName, bounded};
use sqlx::postgres::PgTransactionManager;
use sqlx::{Postgres, SqlStr, Transaction};
use sqlx_core::transaction::TransactionManager as _;
use std::time::Duration;

/// The native fence for the caller's own transaction, in the database that holds the leases.
///
/// [`check`](Self::check) holds the lease's row until the transaction ends. While it is open the holder can renew and release,
/// and nobody else is granted the resource, even if the grant expires meanwhile: they are answered `Held`. So what the
/// transaction commits is never stale, and a transaction whose grant has ended before the check can't commit at all.
///
/// A holder that is paused inside the transaction holds up the next worker. The server ends a transaction that is idle for longer than
/// the limit, by default the lease's granted TTL. What it does not see as idle has no such limit: a `COPY` whose data do not come, a result
/// that nobody reads (set `statement_timeout` against these), and a transaction that was prepared for a two-phase commit.
///
/// ```no_run
/// # async fn example(backend: lease_postgres::PostgresBackend, lease: lease_core::Lease, pool: sqlx::PgPool)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// backend.transaction_fence().check(&mut transaction, &lease).await?; // before the first read
/// sqlx::query("UPDATE account SET balance = balance - 10 WHERE id = 1").execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresFence {
    check: SqlStr,
    namespace: Namespace,
    call_timeout: Duration,
    idle_limit: Option<Duration>,
}

impl PostgresFence {
    pub(crate) fn of(pool: &Pool) -> Self {
        let options = &pool.config.options;
        Self {
            check: pool.statements.fence_check.clone(),
            namespace: options.namespace.clone(),
            call_timeout: options.call_timeout,
            idle_limit: None,
        }
    }

    /// The same with another limit of an idle transaction: 1 ms to 24 days. It bounds how long a paused holder can hold up the
    /// next worker. A shorter limit that the session has already stays.
    #[must_use]
    pub fn with_idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = Some(limit);
        self
    }

    /// Lets the transaction go on only if the lease's grant is live, and keeps it from being granted to anybody else until the
    /// transaction ends. Call it first, before the transaction reads what it will change.
    ///
    /// At READ COMMITTED it judges the present moment. At REPEATABLE READ and SERIALIZABLE it judges the transaction's
    /// snapshot, which is the present one only if this is the first statement; a grant that somebody else was given since is refused
    /// all the same. A savepoint is no place for it: rolling back to one would give the row up, and let a refused transaction go on. A nested
    /// [`Transaction`] is an error here; a savepoint that you made by SQL can't be seen.
    ///
    /// # Errors
    /// [`FenceError::Refused`] when the grant has ended. The transaction has failed then: PostgreSQL turns a commit into a
    /// rollback, also if the caller ignores this error. So has it after any other error that the server reported, but not after a time-out.
    ///
    /// # Cancel safety
    /// Nobody knows whether the statement runs, as after a time-out: roll the transaction back. A commit might be unfenced.
    pub async fn check(&self, transaction: &mut Transaction<'_, Postgres>, lease: &Lease) -> Result<(), FenceError> {
        refuse_savepoint(Operation::FencedWrite, transaction)?;
        let idle = self.idle_limit.unwrap_or(lease.granted_ttl());
        let owner = lease.owner().reveal();
        let query = sqlx::query(self.check.clone())
            .bind(lease.resource().as_str())
            .bind(owner)
            .bind(idle_millis(idle))
            .bind(value_of(lease));
        let run = async {
            match query.execute(&mut **transaction).await {
                Ok(_) => Ok(true),
                Err(error) if server_error(&error).is_some_and(|e| e.code() == FENCE_REFUSED) => Ok(false),
                Err(error) => Err(of_statement(Operation::FencedWrite, &self.namespace, error)),
            }
        };
        // A check has no effect outside the transaction, whatever becomes of its answer.
        if bounded(self.call_timeout, Operation::FencedWrite, Effect::None, run).await? {
            Ok(())
        } else {
            Err(FenceError::Refused { resource: lease.resource().clone() })
        }
    }
}

/// A check that holds only until a rollback to a savepoint is none.
///
/// # Errors
/// [`LeaseError::Unsupported`] when the transaction is nested in another one. Nothing was sent.
pub(crate) fn refuse_savepoint(
    operation: Operation,
    transaction: &Transaction<'_, Postgres>,
) -> Result<(), LeaseError> {
    if PgTransactionManager::get_transaction_depth(transaction) <= 1 {
        return Ok(());
    }
    Err(LeaseError::Unsupported {
        operation,
        backend: "postgres",
        reason: "this transaction is a savepoint in another one, and rolling it back would undo the check; \
                 check the outermost transaction",
    })
}

/// The server keeps this limit in a 32-bit number of milliseconds, in which zero means none.
pub(crate) fn idle_millis(limit: Duration) -> i64 {
    i64::from(i32::try_from(limit.as_millis()).unwrap_or(i32::MAX)).max(1)
}

#[async_trait::async_trait]
impl FencedRegister for PostgresBackend {
    async fn write(&self, lease: &Lease, value: &str) -> Result<(), FenceError> {
        let call = self.pool.call(Operation::FencedWrite);
        let mut checkout = call.checkout().await?;
        let query = sqlx::query_as(self.pool.statements.fenced_write.clone())
            .bind(lease.resource().as_str())
            .bind(lease.owner().reveal())
            .bind(value)
            .bind(value_of(lease));
        let (written,): (bool,) = call.row(&mut checkout, query).await?;
        if written { Ok(()) } else { Err(FenceError::Refused { resource: lease.resource().clone() }) }
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<String>, LeaseError> {
        let call = self.pool.call(Operation::Read);
        let mut checkout = call.checkout().await?;
        let query = sqlx::query_as(self.pool.statements.fenced_read.clone()).bind(resource.as_str());
        let rows: Vec<(String,)> = call.rows(&mut checkout, query).await?;
        Ok(rows.into_iter().next().map(|(value,)| value))
    }
}
