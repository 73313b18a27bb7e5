//! A unique idempotency record in the caller's transaction: at most once per key, first one wins, not fenced.

use crate::plain::Kit;
use crate::step::query;
use crate::wire::Sql;
use lease_core::{IdempotencyKey, LeaseError, Namespace, Once, OnceError, Operation};
use sqlx::{AssertSqlSafe, SqliteConnection};
use std::time::Duration;

const COLUMNS: &str = "(key TEXT NOT NULL PRIMARY KEY, payload BLOB NOT NULL, recorded_ms INTEGER NOT NULL, \
                       keep_until_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID";

const INDEX: &str = "CREATE INDEX IF NOT EXISTS {t}_keep_until ON {t} (keep_until_ms)";

/// Makes the record, under the file's write lock. `?1` key, `?2` payload, `?3` retention in ms.
const CLAIM: &str = "
INSERT INTO {t} (key, payload, recorded_ms, keep_until_ms)
SELECT ?1, ?2, now, now + ?3 FROM (SELECT CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS now) WHERE true
ON CONFLICT (key) DO NOTHING";

/// Compares with what was recorded. `?1` key, `?2` payload.
const COMPARE: &str = "SELECT payload = ?2 FROM {t} WHERE key = ?1";

/// `?1` how many at most.
const FORGET: &str = "
DELETE FROM {t} WHERE key IN (SELECT key FROM {t}
 WHERE keep_until_ms <= CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) ORDER BY keep_until_ms LIMIT ?1)";

/// Idempotency records in the file that owns the state. **At most once per key, first one wins, not fenced**: a stale worker that comes first
/// is the one whose effect stays.
///
/// The record and the effect are one transaction, so that neither is there without the other:
///
/// ```
/// use lease_core::{IdempotencyKey, Namespace, Once, ResourceName};
/// use lease_sqlite::SqliteOnce;
/// use sqlx::{Connection as _, SqliteConnection};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/app.db?mode=rwc", folder.path().display());
/// let mut connection = SqliteConnection::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE account (euros INTEGER); INSERT INTO account VALUES (100)").execute(&mut connection).await?;
/// let once = SqliteOnce::new(&Namespace::default(), Duration::from_hours(24 * 30))?;
/// once.set_up(&mut connection).await?;
///
/// let key = IdempotencyKey::new(&ResourceName::parse("accounts/42")?, "charge/2026-12")?;
/// for _ in 0..2 {
///     let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
///     match once.claim(&mut transaction, &key, b"90 euros").await? {
///         Once::First => {
///             sqlx::query("UPDATE account SET euros = euros - 90").execute(&mut *transaction).await?;
///             transaction.commit().await?;
///         }
///         Once::Before => transaction.rollback().await?,
///     }
/// }
/// let left: i64 = sqlx::query_scalar("SELECT euros FROM account").fetch_one(&mut connection).await?;
/// assert_eq!(left, 10, "charged once");
/// # Ok(()) }
/// ```
///
/// For an effect outside of the file send the key with the request, if the other side knows idempotency keys. If it does not, commit the record
/// first and make the effect then: a crash in between leaves it undone for good, and at most once is all that is left to have. The record is
/// as durable as your connection's `synchronous`: FULL, which is the client's default.
///
/// # Retention
///
/// A record is kept for at least the retention that it was made with, by the wall clock, and then until [`forget`](Self::forget) removes it. A
/// repetition after that is a second effect. So choose a retention that is longer than anything can come late: a paused worker, a queue, a
/// backup that is replayed.
#[derive(Clone, Debug)]
pub struct SqliteOnce {
    kit: Kit,
    retention: Duration,
    index: Sql,
    claim: Sql,
    compare: Sql,
    forget: Sql,
}

/// A hundred years.
const MOST_RETENTION_MS: i64 = 36_525 * 24 * 3_600 * 1_000;

impl SqliteOnce {
    /// Records in a table of `namespace`, kept for at least `retention`, a hundred years at most.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when SQLite keeps the namespace for itself.
    pub fn new(namespace: &Namespace, retention: Duration) -> Result<Self, LeaseError> {
        let kit = Kit::new(namespace, Operation::Once, "once", COLUMNS)?;
        let [index, claim, compare, forget] = [INDEX, CLAIM, COMPARE, FORGET].map(|text| kit.text(text));
        Ok(Self { kit, retention, index, claim, compare, forget })
    }

    /// The same with another limit of a call; default 2 s. The connection's own busy time-out may end it before.
    #[must_use]
    pub fn with_call_timeout(mut self, limit: Duration) -> Self {
        self.kit.call_timeout = limit;
        self
    }

    /// How long a record is kept at least.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// Creates the table where it is missing; any number of processes may do so at once. The connection must be in no transaction.
    ///
    /// # Errors
    /// [`LeaseError::NotSetUp`] when a table by that name has another shape.
    ///
    /// # Cancel safety
    /// It was created, or not.
    pub async fn set_up(&self, connection: &mut SqliteConnection) -> Result<(), LeaseError> {
        self.kit.set_up(connection).await?;
        let index = sqlx::raw_sql(AssertSqlSafe(self.index.to_string()));
        self.kit.call(async { index.execute(connection).await.map(drop) }).await
    }

    /// Makes the record of `key` in the transaction that `connection` is in, if there is none. The record comes and goes with the transaction, which
    /// is one of the client, this crate's guarded and fenced ones included.
    ///
    /// The `payload` is what the operation is to do, and is compared byte by byte with what was recorded. It is stored, so give a digest of a large one.
    ///
    /// Begin with `BEGIN IMMEDIATE`. A transaction that has read first can't write any more once somebody else has written: that is an error, and it
    /// has to be run again. A savepoint is no place for this: rolling back to one would take the record back, and leave what was done outside of it. A
    /// nested transaction of the client is an error here; a savepoint that you made by SQL can't be seen.
    ///
    /// # Errors
    /// [`OnceError::Conflict`] when the payload is another one. **Roll back then**, as `?` does by dropping the transaction: SQLite has nothing that makes
    /// a transaction of yours fail for good, so a caller that ignores this error can commit what else it wrote.
    ///
    /// # Cancel safety
    /// Nobody knows whether the statement runs, as after a time-out: roll the transaction back.
    pub async fn claim(
        &self,
        connection: &mut SqliteConnection,
        key: &IdempotencyKey,
        payload: &[u8],
    ) -> Result<Once, OnceError> {
        self.kit.check_transaction(connection)?;
        let retention = i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX).min(MOST_RETENTION_MS);
        let claim = query(&self.claim).bind(key.as_str().to_owned()).bind(payload.to_vec()).bind(retention);
        let compare = query(&self.compare).bind(key.as_str().to_owned()).bind(payload.to_vec());
        let same = self.kit.call(async {
            if claim.execute(&mut *connection).await?.rows_affected() > 0 {
                return Ok(None);
            }
            // Under the write lock, so the record is still there.
            let row = compare.fetch_one(&mut *connection).await?;
            sqlx::Row::try_get::<bool, _>(&row, 0).map(Some)
        });
        match same.await? {
            None => Ok(Once::First),
            Some(true) => Ok(Once::Before),
            Some(false) => Err(OnceError::Conflict { key: key.clone() }),
        }
    }

    /// Removes records whose retention is over, the oldest first, `most` at most, and says how many. Nothing else removes any: call it now and then.
    ///
    /// # Errors
    /// When the store fails.
    ///
    /// # Cancel safety
    /// They may have been removed.
    pub async fn forget(&self, connection: &mut SqliteConnection, most: u32) -> Result<u64, LeaseError> {
        let forget = query(&self.forget).bind(i64::from(most));
        self.kit.call(async { forget.execute(connection).await.map(|done| done.rows_affected()) }).await
    }
}
