//! A version condition in the caller's transaction: a write is refused when anything was written since its worker has read.

use crate::plain::Kit;
use crate::step::query;
use crate::wire::Sql;
use lease_core::{LeaseError, Namespace, Operation, ResourceName, Version, VersionError};
use sqlx::{Row as _, SqliteConnection};
use std::time::Duration;

const COLUMNS: &str = "(resource TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID";

/// `?1` resource.
const READ: &str = "SELECT coalesce((SELECT version FROM {t} WHERE resource = ?1), 0)";

/// Advances by one from the version that was read, under the file's write lock. `?1` resource, `?2` that version.
const ADVANCE: &str = "
INSERT INTO {t} AS v (resource, version)
SELECT ?1, ?2 + 1 WHERE ?2 = 0 OR EXISTS (SELECT 1 FROM {t} WHERE resource = ?1)
ON CONFLICT (resource) DO UPDATE SET version = excluded.version WHERE v.version = ?2";

/// A version per resource, for data in the same file. **Not fenced**: of two workers that have read the same, the first one wins, also when it is the stale
/// one; the other one has to read again. Nothing is lost either way.
///
/// All writers of a resource have to advance its version, each in the transaction that writes:
///
/// ```
/// use lease_core::{Namespace, ResourceName, VersionError};
/// use lease_sqlite::SqliteVersions;
/// use sqlx::{Connection as _, SqliteConnection};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/app.db?mode=rwc", folder.path().display());
/// let mut connection = SqliteConnection::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE account (euros INTEGER); INSERT INTO account VALUES (100)").execute(&mut connection).await?;
/// let versions = SqliteVersions::new(&Namespace::default())?;
/// versions.set_up(&mut connection).await?;
///
/// let account = ResourceName::parse("accounts/42")?;
/// let read = versions.read(&mut connection, &account).await?; // before the data
/// let euros: i64 = sqlx::query_scalar("SELECT euros FROM account").fetch_one(&mut connection).await?;
/// // … compute; the process may be paused here for any time …
/// let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
/// versions.advance(&mut transaction, &account, read).await?;
/// sqlx::query("UPDATE account SET euros = ?1").bind(euros - 90).execute(&mut *transaction).await?;
/// transaction.commit().await?;
///
/// // A worker that has read the same, and comes later.
/// let mut late = connection.begin_with("BEGIN IMMEDIATE").await?;
/// assert!(matches!(versions.advance(&mut late, &account, read).await, Err(VersionError::Changed { .. })));
/// # Ok(()) }
/// ```
///
/// Where the data are one row with a version column of their own, no helper is needed, but for looking at the number of rows:
///
/// ```
/// # async fn example(pool: sqlx::SqlitePool, euros: i64, read: i64) -> Result<(), Box<dyn std::error::Error>> {
/// let done = sqlx::query("UPDATE account SET euros = ?1, version = version + 1 WHERE id = 42 AND version = ?2")
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
pub struct SqliteVersions {
    kit: Kit,
    read: Sql,
    advance: Sql,
}

impl SqliteVersions {
    /// Versions in a table of `namespace`.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when SQLite keeps the namespace for itself.
    pub fn new(namespace: &Namespace) -> Result<Self, LeaseError> {
        let kit = Kit::new(namespace, Operation::Version, "version", COLUMNS)?;
        let (read, advance) = (kit.text(READ), kit.text(ADVANCE));
        Ok(Self { kit, read, advance })
    }

    /// The same with another limit of a call; default 2 s. The connection's own busy time-out may end it before.
    #[must_use]
    pub fn with_call_timeout(mut self, limit: Duration) -> Self {
        self.kit.call_timeout = limit;
        self
    }

    /// Creates the table where it is missing; any number of processes may do so at once. The connection must be in no transaction.
    ///
    /// # Errors
    /// [`LeaseError::NotSetUp`] when a table by that name has another shape.
    ///
    /// # Cancel safety
    /// It was created, or not.
    pub async fn set_up(&self, connection: &mut SqliteConnection) -> Result<(), LeaseError> {
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
    pub async fn read(
        &self,
        connection: &mut SqliteConnection,
        resource: &ResourceName,
    ) -> Result<Version, LeaseError> {
        self.kit.call(self.present(connection, resource)).await
    }

    /// Lets the transaction that `connection` is in go on only if the resource is at the version that was `read`, and advances it by one, with the
    /// transaction, which is one of the client, this crate's guarded and fenced ones included.
    ///
    /// Begin with `BEGIN IMMEDIATE`. A transaction that has read first can't write any more once somebody else has written: that is an error, and it
    /// has to be run again, from reading the version. A savepoint is no place for this: a nested transaction of the client is an error here; a savepoint
    /// that you made by SQL can't be seen.
    ///
    /// # Errors
    /// [`VersionError::Changed`] when somebody has written since. **Roll back then**, as `?` does by dropping the transaction: SQLite has nothing that
    /// makes a transaction of yours fail for good, so a caller that ignores this error can commit what else it wrote.
    ///
    /// # Cancel safety
    /// Nobody knows whether the statement runs, as after a time-out: roll the transaction back.
    pub async fn advance(
        &self,
        connection: &mut SqliteConnection,
        resource: &ResourceName,
        read: Version,
    ) -> Result<Version, VersionError> {
        self.kit.check_transaction(connection)?;
        // No version that was counted is out of range; any other one is not the present one.
        let number = i64::try_from(read.number()).unwrap_or(i64::MAX).min(i64::MAX.saturating_sub(1));
        let advance = query(&self.advance).bind(resource.as_str().to_owned()).bind(number);
        let work = async {
            let advanced = advance.execute(&mut *connection).await?.rows_affected() > 0;
            Ok((advanced, self.present(connection, resource).await?))
        };
        match self.kit.call(work).await? {
            (true, present) => Ok(present),
            (false, found) => Err(VersionError::Changed { resource: resource.clone(), read, found }),
        }
    }

    async fn present(
        &self,
        connection: &mut SqliteConnection,
        resource: &ResourceName,
    ) -> Result<Version, sqlx::Error> {
        let row = query(&self.read).bind(resource.as_str().to_owned()).fetch_one(connection).await?;
        let number: i64 = row.try_get(0)?;
        Ok(Version::new(u64::try_from(number).unwrap_or_default()))
    }
}
