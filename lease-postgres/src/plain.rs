//! What the plain alternatives to a guard have in common: their texts, their tables in the caller's database, their errors.

use crate::error::of_statement;
use crate::keys;
use crate::set_up::migration;
use lease_core::{Effect, LeaseError, Namespace, Operation};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, SqlSafeStr as _, SqlStr};
use std::sync::Arc;
use std::time::Duration;

/// How long a call may take, unless the caller says otherwise: as long as every other call of this crate.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the server lets the caller's transaction be idle, unless the caller says otherwise: as behind the guard.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Limits how long the transaction may be idle, so that a worker that is paused in it does not hold up the next one for ever. A shorter limit that the
/// session has already stays.
const LIMIT_IDLE: &str = "(SELECT set_config('idle_in_transaction_session_timeout',
    (CASE WHEN c.ms > 0 THEN least(c.ms, $9) ELSE $9 END)::text, true) FROM (SELECT (extract(epoch FROM
    current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint AS ms) c)";

/// How long setting up may wait for other clients that do the same.
const SET_UP_MS: &str = "30000";

/// One of the alternatives in one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Kit {
    pub(crate) namespace: Namespace,
    pub(crate) operation: Operation,
    pub(crate) call_timeout: Duration,
    pub(crate) idle_limit: Duration,
    tables: &'static str,
    grants: &'static [&'static str],
}

impl Kit {
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when PostgreSQL keeps the namespace for itself.
    pub(crate) fn new(
        namespace: &Namespace,
        operation: Operation,
        tables: &'static str,
        grants: &'static [&'static str],
    ) -> Result<Self, LeaseError> {
        keys::check_namespace(namespace)?;
        let (call_timeout, idle_limit) = (CALL_TIMEOUT, IDLE_LIMIT);
        Ok(Self { namespace: namespace.clone(), operation, call_timeout, idle_limit, tables, grants })
    }

    /// A statement's text, for this namespace; it limits idling by its parameter `idle`, where it does.
    pub(crate) fn limiting_text(&self, template: &str, idle: &str) -> SqlStr {
        self.text(&template.replace("{limit_idle}", &LIMIT_IDLE.replace("$9", idle)))
    }

    /// A statement's text, for this namespace.
    pub(crate) fn text(&self, template: &str) -> SqlStr {
        // Safe: the only thing that is put in is the schema, which consists of a-z, 0-9 and _ by its type.
        let text: Arc<str> = template.replace("{s}", &keys::quoted_schema(&self.namespace)).into();
        AssertSqlSafe(text).into_sql_str()
    }

    pub(crate) fn migration(&self) -> String {
        migration(&self.namespace, self.tables)
    }

    /// Creates what is missing, in one transaction; any number of clients may do so at once.
    pub(crate) async fn set_up(&self, connection: &mut PgConnection) -> Result<(), LeaseError> {
        let failed = |error| of_statement(Operation::Connect, &self.namespace, error);
        let mut transaction = connection.begin().await.map_err(failed)?;
        sqlx::query(
            "SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $1, true),
                    pg_advisory_xact_lock(hashtextextended('leasehold set-up ' || $2, 0))",
        )
        .bind(SET_UP_MS)
        .bind(self.namespace.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
        let schema: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)")
            .bind(self.namespace.as_str())
            .fetch_one(&mut *transaction)
            .await
            .map_err(failed)?;
        // Only when it is missing: IF NOT EXISTS asks for the privilege even when there is nothing to do.
        let script = if schema { self.text(self.tables) } else { AssertSqlSafe(self.migration()).into_sql_str() };
        sqlx::raw_sql(script).execute(&mut *transaction).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)
    }

    /// The error of a statement in the caller's transaction, which is not committed: so it had no effect.
    pub(crate) fn failed(&self, error: sqlx::Error) -> LeaseError {
        match of_statement(self.operation, &self.namespace, error) {
            LeaseError::MissingPrivilege { operation, reason, source, .. } => {
                let grants: Vec<_> =
                    self.grants.iter().map(|grant| grant.replace("leasehold", self.namespace.as_str())).collect();
                LeaseError::MissingPrivilege { operation, reason, advice: grants.join("; "), source }
            }
            LeaseError::NotSetUp { reason, source, .. } => {
                let advice =
                    format!("create the tables in schema \"{}\": call `set_up`, or run `migration`", self.namespace);
                LeaseError::NotSetUp { reason, advice, source }
            }
            LeaseError::Connection { operation, reason, source, .. } => {
                LeaseError::Connection { operation, reason, effect: Effect::None, source }
            }
            error => error,
        }
    }
}
