//! What the plain alternatives to a guard have in common: their tables in the caller's file, and their errors.

use crate::schema::{self, Table};
use crate::wire::Sql;
use crate::{error, keys};
use lease_core::{Advice, Effect, LeaseError, Namespace, Operation, bounded};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteTransactionManager;
use sqlx_core::transaction::TransactionManager as _;
use std::time::Duration;
use tokio::time::Instant;

/// How long a call may take, unless the caller says otherwise: as long as every other call of this crate.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long setting up may wait for the write lock.
const PATIENCE: Duration = Duration::from_secs(30);

/// One of the alternatives in one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Kit {
    pub(crate) operation: Operation,
    pub(crate) call_timeout: Duration,
    table: Table,
}

impl Kit {
    /// # Errors
    /// [`LeaseError::InvalidConfig`] when SQLite keeps the namespace for itself.
    pub(crate) fn new(
        namespace: &Namespace,
        operation: Operation,
        suffix: &str,
        columns: &str,
    ) -> Result<Self, LeaseError> {
        keys::check_namespace(namespace)?;
        let table = Table::new(namespace.as_str(), suffix, columns);
        Ok(Self { operation, call_timeout: CALL_TIMEOUT, table })
    }

    /// A statement's text, with the table's name for each `{t}`.
    pub(crate) fn text(&self, template: &str) -> Sql {
        template.replace("{t}", &self.table.name).into()
    }

    /// Creates the table where it is missing, and refuses one of another shape.
    pub(crate) async fn set_up(&self, connection: &mut SqliteConnection) -> Result<(), LeaseError> {
        let now = Instant::now();
        schema::ensure(connection, std::slice::from_ref(&self.table), now.checked_add(PATIENCE).unwrap_or(now)).await
    }

    /// Runs a call in the caller's transaction, which is not committed: so it has no effect when it fails.
    pub(crate) async fn call<T>(&self, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, LeaseError> {
        let work = async { work.await.map_err(|error| self.failed(error)) };
        bounded(self.call_timeout, self.operation, Effect::None, work).await
    }

    fn failed(&self, error: sqlx::Error) -> LeaseError {
        if schema::is_missing_table(&error) {
            return LeaseError::NotSetUp {
                reason: format!("there is no table `{}` in this file", self.table.name),
                advice: "call `set_up` when the program starts".into(),
                source: Some(Box::new(error)),
            };
        }
        match error::of_read(error, self.operation) {
            // The client's busy time-out, or a snapshot that is not the latest any more: the transaction has read before somebody else wrote.
            LeaseError::Store { operation, effect, advice: Advice::TryAgain, reason, source } => LeaseError::Store {
                operation,
                reason: format!("run the transaction again, begun with BEGIN IMMEDIATE: {reason}"),
                effect,
                advice: Advice::TryAgain,
                source,
            },
            error => error,
        }
    }

    /// Checks that the connection is in a transaction, and in no savepoint of it.
    ///
    /// # Errors
    /// [`LeaseError::Unsupported`] otherwise. Nothing was sent.
    pub(crate) fn check_transaction(&self, connection: &SqliteConnection) -> Result<(), LeaseError> {
        let reason = match SqliteTransactionManager::get_transaction_depth(connection) {
            1 => return Ok(()),
            0 => {
                "this connection is in no transaction that its client knows of, so it would be committed by itself; \
                 begin one through the client (`begin`, `begin_with`)"
            }
            _ => {
                "this transaction is a savepoint in another one, and rolling it back would undo this alone; \
                 use the outermost transaction"
            }
        };
        Err(LeaseError::Unsupported { operation: self.operation, backend: "sqlite", reason })
    }
}
