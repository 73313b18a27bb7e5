//! A version condition in the caller's transaction: a write is refused when anything was written since its worker has read.

use crate::error::server_error;
use crate::fence::{idle_millis, refuse_savepoint};
use crate::plain::Kit;
use lease_core::{Effect, LeaseError, Namespace, Operation, ResourceName, Version, VersionError, bounded};
use sqlx::postgres::PgConnection;
use sqlx::{Postgres, SqlStr, Transaction};
use std::time::Duration;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS {s}.version (
    name text COLLATE \"C\" PRIMARY KEY,
    version bigint NOT NULL
) WITH (fillfactor = 70);
CREATE OR REPLACE FUNCTION {s}.refuse_version(resource text) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    found bigint;
BEGIN
    SELECT v.version INTO found FROM {s}.version v WHERE v.name = resource;
    RAISE EXCEPTION USING ERRCODE = 'LH004', MESSAGE = 'it was written since it was read', DETAIL = coalesce(found, 0)::text;
END $$;
";

/// SQLSTATE of a version that has changed.
const CHANGED: &str = "LH004";

/// `$1` name.
const READ: &str = "SELECT coalesce((SELECT v.version FROM {s}.version v WHERE v.name = $1), 0)";

/// Advances by one from the version that was read. `$1` name, `$2` that version, `$3` idle limit in ms.
///
/// The row is locked until the transaction ends, and its latest version is what is compared, at every isolation level: above READ COMMITTED the
/// server reports a serialization failure where that one is not the snapshot's.
const ADVANCE: &str = "
WITH advanced AS (
    INSERT INTO {s}.version AS v (name, version)
    SELECT $1, $2 + 1 WHERE $2 = 0 OR EXISTS (SELECT FROM {s}.version p WHERE p.name = $1)
    ON CONFLICT (name) DO UPDATE SET version = EXCLUDED.version WHERE v.version = $2
    RETURNING v.version
)
SELECT CASE WHEN EXISTS (SELECT FROM advanced) THEN (SELECT a.version FROM advanced a) ELSE {s}.refuse_version($1) END,
       {limit_idle}";

/// What the account `ACCOUNT` needs for version conditions in the namespace `leasehold`, and no more.
pub const VERSION_GRANTS: &[&str] =
    &["GRANT USAGE ON SCHEMA leasehold TO ACCOUNT", "GRANT SELECT, INSERT, UPDATE ON leasehold.version TO ACCOUNT"];

/// A version per resource, for data in this database. **Not fenced**: of two workers that have read the same, the first one wins, also when it is the
/// stale one; the other one has to read again. Nothing is lost either way.
///
/// All writers of a resource have to advance its version, each in the transaction that writes:
///
/// ```no_run
/// # async fn example(versions: lease_postgres::PostgresVersions, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let account = lease_core::ResourceName::parse("accounts/42")?;
/// let mut connection = pool.acquire().await?;
/// let read = versions.read(&mut connection, &account).await?; // before the data
/// let euros: i64 = sqlx::query_scalar("SELECT euros FROM account WHERE id = 42").fetch_one(&mut *connection).await?;
/// // … compute; the process may be paused here for any time …
/// let mut transaction = pool.begin().await?;
/// versions.advance(&mut transaction, &account, read).await?;
/// sqlx::query("UPDATE account SET euros = $1 WHERE id = 42").bind(euros - 90).execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// Where the data are one row with a version column of their own, no helper is needed, but for looking at the number of rows:
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, euros: i64, read: i64) -> Result<(), Box<dyn std::error::Error>> {
/// let done = sqlx::query("UPDATE account SET euros = $1, version = version + 1 WHERE id = 42 AND version = $2")
///     .bind(euros)
///     .bind(read)
///     .execute(&pool)
///     .await?;
/// if done.rows_affected() != 1 {
///     return Err("written since it was read: read again".into());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresVersions {
    kit: Kit,
    read: SqlStr,
    advance: SqlStr,
}

impl PostgresVersions {
    /// Versions in the schema `namespace`.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when PostgreSQL keeps the namespace for itself.
    pub fn new(namespace: &Namespace) -> Result<Self, LeaseError> {
        let kit = Kit::new(namespace, Operation::Version, TABLES, VERSION_GRANTS)?;
        let (read, advance) = (kit.text(READ), kit.limiting_text(ADVANCE, "$3"));
        Ok(Self { kit, read, advance })
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

    /// The present version. Read it before the data: a version that is older than the data only costs another round, one that is newer would let a write
    /// through that was computed from what is gone.
    ///
    /// # Errors
    /// When the store cannot be read.
    ///
    /// # Cancel safety
    /// No effect.
    pub async fn read(&self, connection: &mut PgConnection, resource: &ResourceName) -> Result<Version, LeaseError> {
        let query = sqlx::query_scalar(self.read.clone()).bind(resource.as_str());
        let work = async { query.fetch_one(connection).await.map_err(|error| self.kit.failed(error)) };
        let number: i64 = bounded(self.kit.call_timeout, Operation::Version, Effect::None, work).await?;
        Ok(Version::new(u64::try_from(number).unwrap_or_default()))
    }

    /// Lets the transaction go on only if the resource is at the version that was `read`, and advances it by one, with the transaction. Another
    /// transaction that has advanced it and is not over is waited for.
    ///
    /// It is right at every isolation level. A savepoint is no place for it, as for the guard.
    ///
    /// # Errors
    /// [`VersionError::Changed`] when somebody has written since. The transaction has failed then: PostgreSQL turns a commit into a rollback, also if the
    /// caller ignores this error. So has it after any other error that the server reported, but not after a time-out; a serialization failure at
    /// REPEATABLE READ and SERIALIZABLE says to read again, in a new transaction.
    ///
    /// # Cancel safety
    /// Nobody knows whether the statement runs, as after a time-out: roll the transaction back. That waits, as the call did, until the other
    /// transaction is over, unless the session has a `lock_timeout`.
    pub async fn advance(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        resource: &ResourceName,
        read: Version,
    ) -> Result<Version, VersionError> {
        refuse_savepoint(Operation::Version, transaction)?;
        // No version that was counted is out of range; any other one is not the present one.
        let number = i64::try_from(read.number()).unwrap_or(i64::MAX).min(i64::MAX.saturating_sub(1));
        let query = sqlx::query_as(self.advance.clone())
            .bind(resource.as_str())
            .bind(number)
            .bind(idle_millis(self.kit.idle_limit));
        let work = async {
            match query.fetch_one(&mut **transaction).await {
                Ok(row) => Ok(Ok(row)),
                Err(error) => found(&error).map(Err).ok_or_else(|| self.kit.failed(error)),
            }
        };
        let answer: Result<(i64, String), Version> =
            bounded(self.kit.call_timeout, Operation::Version, Effect::None, work).await?;
        match answer {
            Ok((number, _)) => Ok(Version::new(u64::try_from(number).unwrap_or_default())),
            Err(found) => Err(VersionError::Changed { resource: resource.clone(), read, found }),
        }
    }
}

/// The version that the server found instead, if that is what the error says.
fn found(error: &sqlx::Error) -> Option<Version> {
    let server = server_error(error).filter(|e| e.code() == CHANGED)?;
    server.detail()?.parse().ok().map(Version::new)
}
