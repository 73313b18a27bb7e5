//! The guarded destination: a mark per resource, checked and raised in the caller's own transaction.

use crate::claims::Facts;
use crate::config::PostgresConfig;
use crate::error::{GUARD_REFUSED, of_statement, server_error};
use crate::fence::{idle_millis, refuse_savepoint};
use crate::pool::{Call, Checkout, Pool};
use crate::set_up::{self, Part};
use lease_core::{
    Authority, Claims, Effect, FencingToken, GrantId, GuardError, GuardedDestination, LeaseError, Namespace, Operation,
    Refusal, ResourceName, Stored, bounded,
};
use sqlx::{Connection as _, Postgres, SqlStr, Transaction};
use std::sync::Arc;
use std::time::Duration;

/// Admits a token, or makes the transaction fail. `$1` name, `$2` authority, `$3` idle limit in ms, `$4` value, `$5` grant.
///
/// The share lock on the trusted authority makes it wait for a concurrent `adopt`, and the other way round. The row of the mark is
/// locked until the transaction ends, and its latest version is what the value is compared with, at every isolation level: above READ
/// COMMITTED the server reports a serialization failure where that version is not the snapshot's. The commit waits until it is on disk,
/// whatever the session's default is: a mark that a crash takes back lets stale writes in.
pub(crate) const ADMIT: &str = "
WITH trusted AS MATERIALIZED (
    SELECT t.authority FROM {s}.trusted t WHERE t.authority = $2 FOR KEY SHARE
), admitted AS (
    INSERT INTO {s}.mark AS m (name, authority, value, grant_id)
    SELECT $1, $2, $4, $5 FROM trusted
    ON CONFLICT (name, authority) DO UPDATE SET value = EXCLUDED.value, grant_id = EXCLUDED.grant_id
     WHERE m.value < EXCLUDED.value OR (m.value = EXCLUDED.value AND m.grant_id = EXCLUDED.grant_id)
    RETURNING true
)
SELECT CASE WHEN EXISTS (SELECT FROM admitted) THEN concat({limit_idle}, {durable}) ELSE {s}.refuse_guard($1) END";

/// Compare-and-set of the trusted authority. `$1` the expected one or null, `$2` the new one.
pub(crate) const ADOPT: &str = "
WITH present AS MATERIALIZED (
    SELECT t.authority FROM {s}.trusted t FOR UPDATE
), changed AS (
    UPDATE {s}.trusted t SET authority = $2 FROM present WHERE present.authority = $1::text AND t.authority = $1::text
    RETURNING true
), first AS (
    INSERT INTO {s}.trusted (authority) SELECT $2 WHERE $1::text IS NULL AND NOT EXISTS (SELECT FROM present)
    ON CONFLICT (id) DO NOTHING
    RETURNING true
)
SELECT EXISTS (SELECT FROM changed) OR EXISTS (SELECT FROM first), (SELECT authority FROM present)";

/// `$1` name, `$2` value.
pub(crate) const WRITE: &str = "
INSERT INTO {s}.guarded (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value";

/// The register, and the mark under the trusted authority. `$1` name.
pub(crate) const READ: &str = "
SELECT g.value, m.value, m.grant_id
  FROM (SELECT) one
  LEFT JOIN {s}.guarded g ON g.name = $1
  LEFT JOIN {s}.trusted t ON true
  LEFT JOIN {s}.mark m ON m.name = $1 AND m.authority = t.authority";

/// How long the server lets a guarded transaction be idle, unless the caller says otherwise.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// The guard for the caller's own transactions in the destination's database. It takes tokens of any lease backend.
///
/// ```no_run
/// # async fn example(destination: lease_postgres::PostgresDestination, pool: sqlx::PgPool, token: lease_core::FencingToken)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let invoices = lease_core::ResourceName::parse("invoices/2026-12")?;
/// let mut transaction = pool.begin().await?;
/// destination.guard().admit(&mut transaction, &invoices, &token).await?; // before the first read
/// sqlx::query("UPDATE invoice SET sent = true WHERE month = '2026-12'").execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresGuard {
    admit: SqlStr,
    namespace: Namespace,
    call_timeout: Duration,
    idle_limit: Duration,
}

impl PostgresGuard {
    fn of(pool: &Pool) -> Self {
        let options = &pool.config.options;
        Self {
            admit: pool.statements.admit.clone(),
            namespace: options.namespace.clone(),
            call_timeout: options.call_timeout,
            idle_limit: IDLE_LIMIT,
        }
    }

    /// The same with another limit of an idle transaction, 1 ms to 24 days; default 10 s. It bounds how long a worker that is paused
    /// inside its transaction can hold up the next one. A shorter limit that the session has already stays.
    #[must_use]
    pub fn with_idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = limit;
        self
    }

    /// Lets the transaction go on only if the token is at or above the mark of `resource`, and raises the mark with it: both
    /// are committed, or neither. Call it first, before the transaction reads what it will change.
    ///
    /// It is right at every isolation level. A savepoint is no place for it: rolling back to one would take the mark back, or a refusal, and
    /// what the transaction does outside is not guarded. A nested [`Transaction`] is an error here; a savepoint that you made by SQL
    /// can't be seen.
    ///
    /// Where the session's `synchronous_commit` is weaker than `on` it is raised to that, for this transaction only: a mark that a crash took
    /// back would let stale writes in.
    ///
    /// # Errors
    /// [`GuardError::Refused`] when the token is not admitted. The transaction has failed then: PostgreSQL turns a commit into a
    /// rollback, also if the caller ignores this error. So has it after any other error that the server reported, but not after a time-out; a
    /// serialization failure at REPEATABLE READ and SERIALIZABLE says to run the transaction again.
    ///
    /// # Cancel safety
    /// Nobody knows whether the statement runs, as after a time-out: roll the transaction back. A commit might be unguarded.
    pub async fn admit(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        resource: &ResourceName,
        token: &FencingToken,
    ) -> Result<(), GuardError> {
        match self.refusal(Operation::GuardedWrite, transaction, resource, token).await? {
            None => Ok(()),
            Some(refusal) => Err(GuardError::Refused { resource: resource.clone(), refusal }),
        }
    }

    /// Admits the token, or says why not.
    async fn refusal(
        &self,
        operation: Operation,
        transaction: &mut Transaction<'_, Postgres>,
        resource: &ResourceName,
        token: &FencingToken,
    ) -> Result<Option<Refusal>, LeaseError> {
        refuse_savepoint(operation, transaction)?;
        let query = sqlx::query(self.admit.clone())
            .bind(resource.as_str())
            .bind(token.authority().as_str())
            .bind(idle_millis(self.idle_limit))
            .bind(token.value_i64())
            .bind(token.grant().to_hex());
        let run = async {
            match query.execute(&mut **transaction).await {
                Ok(_) => Ok(None),
                Err(error) => match found_refusal(&error, token) {
                    Some(refusal) => Ok(Some(refusal)),
                    None => Err(of_statement(operation, &self.namespace, error)),
                },
            }
        };
        // Admission has no effect outside the transaction, whatever becomes of its answer.
        bounded(self.call_timeout, operation, Effect::None, run).await
    }
}

/// The reason of a refusal, from what the server found at that moment: `authority|mark|grant`.
fn found_refusal(error: &sqlx::Error, token: &FencingToken) -> Option<Refusal> {
    let server = server_error(error).filter(|e| e.code() == GUARD_REFUSED)?;
    let mut parts = server.detail()?.split('|');
    let trusted = parts.next().and_then(|text| Authority::parse(text).ok());
    let value = parts.next().and_then(|text| text.parse().ok());
    let grant = parts.next().and_then(GrantId::from_hex);
    // Admissible by now would mean that `adopt` came in between: the error of the server is what is left to report.
    Refusal::judge(trusted.as_ref(), value.zip(grant), token).err()
}

/// A guarded destination in PostgreSQL. Clones share their connections.
#[derive(Clone, Debug)]
pub struct PostgresDestination {
    pool: Arc<Pool>,
}

impl PostgresDestination {
    /// Connects; creates the tables where they are missing, unless the URL says `set_up=never`.
    ///
    /// # Errors
    /// As [`PostgresBackend::connect`](crate::PostgresBackend::connect).
    ///
    /// # Cancel safety
    /// Tables may have been created, all or none.
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        Self::connect_with(PostgresConfig::parse(url)?).await
    }

    /// Connects as `config` says.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(config: PostgresConfig) -> Result<Self, LeaseError> {
        Ok(Self { pool: Pool::connect(config, Part::Guard, &[]).await? })
    }

    /// Connects with edited statements, to show that a test notices.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and when an edit's text occurs in no statement.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn connect_edited(url: &str, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let config = PostgresConfig::parse(url)?;
        Ok(Self { pool: Pool::connect(config, Part::Guard, edits).await? })
    }

    /// The SQL that creates schema and tables of `namespace`, for whoever runs migrations. Running it again changes nothing.
    #[must_use]
    pub fn migration(namespace: &Namespace) -> String {
        set_up::migration(namespace, set_up::GUARD_TABLES)
    }

    /// The guard for the caller's own transactions in this database.
    #[must_use]
    pub fn guard(&self) -> PostgresGuard {
        PostgresGuard::of(&self.pool)
    }

    /// Removes everything that this destination has in the store, marks and trusted authority included: for tests and
    /// decommissioning. **Stale tokens are not refused any more afterwards.** An account that owns the tables drops them, and the
    /// schema if nothing else is in it; any other one empties them.
    ///
    /// # Errors
    /// As every operation.
    ///
    /// # Cancel safety
    /// All or nothing was removed.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        crate::clean_up::purge(&self.pool, Part::Guard).await
    }

    fn facts(&self) -> Facts {
        self.pool.facts()
    }

    /// Admits the token in a transaction of its own and writes with it, if there is something to write.
    async fn admit(
        &self,
        operation: Operation,
        resource: &ResourceName,
        token: &FencingToken,
        value: Option<&str>,
    ) -> Result<(), GuardError> {
        let call = self.pool.call(operation);
        let mut checkout = call.checkout().await?;
        let refused = {
            let work = self.transaction(&call, &mut checkout, (resource, token), value);
            call.bound(Effect::Unknown, work).await
        };
        match checkout.settle_transaction(refused)? {
            None => Ok(()),
            Some(refusal) => Err(GuardError::Refused { resource: resource.clone(), refusal }),
        }
    }

    async fn transaction(
        &self,
        call: &Call<'_>,
        checkout: &mut Checkout<'_>,
        (resource, token): (&ResourceName, &FencingToken),
        value: Option<&str>,
    ) -> Result<Option<Refusal>, LeaseError> {
        let failed = |error| call.failed(error);
        let mut transaction = checkout.use_connection()?.begin().await.map_err(failed)?;
        let refusal = self.guard().refusal(call.operation(), &mut transaction, resource, token).await?;
        if refusal.is_some() {
            transaction.rollback().await.map_err(failed)?;
            return Ok(refusal);
        }
        if let Some(value) = value {
            sqlx::query(self.pool.statements.guarded_write.clone())
                .bind(resource.as_str())
                .bind(value)
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)?;
        Ok(None)
    }
}

#[async_trait::async_trait]
impl GuardedDestination for PostgresDestination {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn claims(&self) -> Claims {
        self.facts().guard_claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        let call = self.pool.call(Operation::Adopt);
        let mut checkout = call.checkout().await?;
        loop {
            let query = sqlx::query_as(self.pool.statements.adopt.clone())
                .bind(expected_old.map(Authority::as_str))
                .bind(new.as_str());
            let (adopted, found): (bool, Option<String>) = call.row(&mut checkout, query).await?;
            match (adopted, found) {
                (true, _) => return Ok(()),
                // None was set when the statement began, and then another one was first: look again.
                (false, None) if expected_old.is_none() => {}
                (false, found) => {
                    let found = found.as_deref().map(Authority::parse).transpose()?;
                    return Err(GuardError::AdoptConflict { found });
                }
            }
        }
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.admit(Operation::Seal, resource, token, None).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        self.admit(Operation::GuardedWrite, resource, token, Some(value)).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        let call = self.pool.call(Operation::Read);
        let mut checkout = call.checkout().await?;
        let query = sqlx::query_as(self.pool.statements.guarded_read.clone()).bind(resource.as_str());
        let (value, mark, grant): (Option<String>, Option<i64>, Option<String>) =
            call.row(&mut checkout, query).await?;
        let mark = mark.and_then(|value| u64::try_from(value).ok());
        let grant = grant.as_deref().and_then(GrantId::from_hex);
        Ok(Stored::new(value, mark.zip(grant)))
    }
}
