//! A unique idempotency record in the caller's transaction: at most once per key, first one wins, not fenced.

use crate::error::{of_statement, server_error};
use crate::fence::{idle_millis, refuse_savepoint};
use crate::plain::Kit;
use lease_core::{Effect, IdempotencyKey, LeaseError, Namespace, Once, OnceError, Operation, bounded};
use sqlx::postgres::PgConnection;
use sqlx::{Postgres, SqlStr, Transaction};
use std::time::Duration;

/// A record without its primary key would let two effects in; `ON CONFLICT (key)` fails on a table that lacks it.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS {s}.once (
    key text COLLATE \"C\" PRIMARY KEY,
    payload bytea NOT NULL,
    recorded_at timestamptz NOT NULL,
    keep_until timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS once_keep_until ON {s}.once (keep_until);
CREATE OR REPLACE FUNCTION {s}.refuse_once() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'LH003', MESSAGE = 'this was done before with another payload';
END $$;
";

/// SQLSTATE of a conflict.
const CONFLICT: &str = "LH003";

/// Makes the record. `$1` key, `$2` payload, `$3` retention in ms, `$4` idle limit in ms. It waits for another transaction that has made it and is not over. The
/// commit waits until the record is on disk: where the effect is outside of this database, a record that a crash takes back lets it be made twice.
const CLAIM: &str = "
WITH claimed AS (
    INSERT INTO {s}.once (key, payload, recorded_at, keep_until)
    SELECT $1, $2, clock_timestamp(), clock_timestamp() + $3 * interval '1 millisecond'
    ON CONFLICT (key) DO NOTHING
    RETURNING true
)
SELECT EXISTS (SELECT FROM claimed),
       CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
            THEN set_config('synchronous_commit', 'on', true) END,
       {limit_idle}";

/// Compares with what was recorded. `$1` key, `$2` payload.
const COMPARE: &str = "
SELECT CASE WHEN o.payload = $2 THEN true ELSE {s}.refuse_once() END FROM {s}.once o WHERE o.key = $1";

/// `$1` how many at most.
const FORGET: &str = "
DELETE FROM {s}.once WHERE key IN
    (SELECT o.key FROM {s}.once o WHERE o.keep_until < clock_timestamp() ORDER BY o.keep_until LIMIT $1)";

/// What the account `ACCOUNT` needs for idempotency records in the namespace `leasehold`, and no more; `DELETE` is for
/// [`forget`](PostgresOnce::forget) only.
pub const ONCE_GRANTS: &[&str] =
    &["GRANT USAGE ON SCHEMA leasehold TO ACCOUNT", "GRANT SELECT, INSERT, DELETE ON leasehold.once TO ACCOUNT"];

/// Idempotency records in the database that owns the state. **At most once per key, first one wins, not fenced**: a stale worker that comes
/// first is the one whose effect stays.
///
/// The record and the effect are one transaction, so that neither is there without the other:
///
/// ```no_run
/// # async fn example(once: lease_postgres::PostgresOnce, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use lease_core::{IdempotencyKey, Once, ResourceName};
/// let account = ResourceName::parse("accounts/42")?;
/// let key = IdempotencyKey::new(&account, "charge/2026-12")?;
/// let mut transaction = pool.begin().await?;
/// match once.claim(&mut transaction, &key, b"90 euros").await? {
///     Once::First => {
///         sqlx::query("UPDATE account SET euros = euros - 90 WHERE id = 42").execute(&mut *transaction).await?;
///         transaction.commit().await?;
///     }
///     Once::Before => transaction.rollback().await?,
/// }
/// # Ok(()) }
/// ```
///
/// For an effect outside of the database send the key with the request, if the other side knows idempotency keys. If it does not, commit the
/// record first and make the effect then: a crash in between leaves it undone for good, and at most once is all that is left to have.
///
/// # Retention
///
/// A record is kept for at least the retention that it was made with, by the server's clock, and then until [`forget`](Self::forget) removes
/// it. A repetition after that is a second effect. So choose a retention that is longer than anything can come late: a paused worker, a queue,
/// a backup that is replayed.
#[derive(Clone, Debug)]
pub struct PostgresOnce {
    kit: Kit,
    retention: Duration,
    claim: SqlStr,
    compare: SqlStr,
    forget: SqlStr,
}

/// The server's timestamps end some 290,000 years from now.
const MOST_RETENTION_MS: i64 = 36_525 * 24 * 3_600 * 1_000;

impl PostgresOnce {
    /// Records in the schema `namespace`, kept for at least `retention`, a hundred years at most.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when PostgreSQL keeps the namespace for itself.
    pub fn new(namespace: &Namespace, retention: Duration) -> Result<Self, LeaseError> {
        let kit = Kit::new(namespace, Operation::Once, TABLES, ONCE_GRANTS)?;
        let (claim, compare, forget) = (kit.limiting_text(CLAIM, "$4"), kit.text(COMPARE), kit.text(FORGET));
        Ok(Self { kit, retention, claim, compare, forget })
    }

    /// The same with another limit of a call; default 2 s.
    #[must_use]
    pub fn with_call_timeout(mut self, limit: Duration) -> Self {
        self.kit.call_timeout = limit;
        self
    }

    /// The same with another limit of an idle transaction, 1 ms to 24 days; default 10 s. It bounds how long a worker that is paused
    /// inside its transaction can hold up the next one. A shorter limit that the session has already stays.
    #[must_use]
    pub fn with_idle_limit(mut self, limit: Duration) -> Self {
        self.kit.idle_limit = limit;
        self
    }

    /// How long a record is kept at least.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// The SQL that creates schema, table and function, for whoever runs migrations. Running it again changes nothing.
    #[must_use]
    pub fn migration(&self) -> String {
        self.kit.migration()
    }

    /// Creates what is missing, as [`migration`](Self::migration) does. Any number of clients may do so at once.
    ///
    /// # Errors
    /// When the account may not create it, or the connection is in a failed transaction.
    ///
    /// # Cancel safety
    /// All of it was created, or nothing.
    pub async fn set_up(&self, connection: &mut PgConnection) -> Result<(), LeaseError> {
        self.kit.set_up(connection).await
    }

    /// Makes the record of `key` in the transaction, if there is none. The record comes and goes with the transaction. Another transaction that has made
    /// it and is not over is waited for.
    ///
    /// The `payload` is what the operation is to do, and is compared byte by byte with what was recorded. It is stored, so give a digest of a large one.
    ///
    /// It is right at every isolation level. A savepoint is no place for it: rolling back to one would take the record back, and leave what was done
    /// outside of it. A nested [`Transaction`] is an error here; a savepoint that you made by SQL can't be seen. As the guard, it raises a
    /// `synchronous_commit` that is weaker than `on`, for this transaction only.
    ///
    /// # Errors
    /// [`OnceError::Conflict`] when the payload is another one. The transaction has failed then: PostgreSQL turns a commit into a rollback, also if
    /// the caller ignores this error. So has it after any other error that the server reported, but not after a time-out; a serialization failure at
    /// REPEATABLE READ and SERIALIZABLE says to run the transaction again.
    ///
    /// # Cancel safety
    /// Nobody knows whether the statement runs, as after a time-out: roll the transaction back. That waits, as the call did, until the other
    /// transaction is over, unless the session has a `lock_timeout`.
    pub async fn claim(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        key: &IdempotencyKey,
        payload: &[u8],
    ) -> Result<Once, OnceError> {
        refuse_savepoint(Operation::Once, transaction)?;
        let work = self.claim_or_compare(transaction, key, payload);
        match bounded(self.kit.call_timeout, Operation::Once, Effect::None, work).await? {
            Some(once) => Ok(once),
            None => Err(OnceError::Conflict { key: key.clone() }),
        }
    }

    /// `None` is a conflict.
    async fn claim_or_compare(
        &self,
        connection: &mut PgConnection,
        key: &IdempotencyKey,
        payload: &[u8],
    ) -> Result<Option<Once>, LeaseError> {
        let failed = |error| self.kit.failed(error);
        let retention = i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX).min(MOST_RETENTION_MS);
        loop {
            let (claimed, ..): (bool, Option<String>, String) = sqlx::query_as(self.claim.clone())
                .bind(key.as_str())
                .bind(payload)
                .bind(retention)
                .bind(idle_millis(self.kit.idle_limit))
                .fetch_one(&mut *connection)
                .await
                .map_err(failed)?;
            if claimed {
                return Ok(Some(Once::First));
            }
            // A statement of its own: the one before may have waited for the record, which is then newer than what it can see.
            let compare = sqlx::query_scalar(self.compare.clone()).bind(key.as_str()).bind(payload);
            let same: Option<bool> = match compare.fetch_optional(&mut *connection).await {
                Err(error) if server_error(&error).is_some_and(|e| e.code() == CONFLICT) => return Ok(None),
                answer => answer.map_err(failed)?,
            };
            if same.is_some() {
                return Ok(Some(Once::Before));
            }
            // Forgotten in between.
        }
    }

    /// Removes records whose retention is over, the oldest first, `most` at most, and says how many. Nothing else removes any: call it now and then.
    ///
    /// # Errors
    /// When the store fails.
    ///
    /// # Cancel safety
    /// They may have been removed.
    pub async fn forget(&self, connection: &mut PgConnection, most: u32) -> Result<u64, LeaseError> {
        let failed = |error| of_statement(Operation::CleanUp, &self.kit.namespace, error);
        let work = async {
            let done = sqlx::query(self.forget.clone()).bind(i64::from(most)).execute(connection).await;
            done.map(|done| done.rows_affected()).map_err(failed)
        };
        bounded(self.kit.call_timeout, Operation::CleanUp, Effect::Unknown, work).await
    }
}
