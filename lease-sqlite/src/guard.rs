//! The guarded destination: marks beside the caller's data, in one transaction. It takes tokens of any lease backend.

use crate::backend::one;
use crate::config::SqliteConfig;
use crate::connection::Database;
use crate::guard_wire::{GuardStatements, decode_mark, decode_trusted};
use crate::schema;
use crate::step::{Caller, Query, query};
use crate::transaction::OwnedTransaction;
use crate::wire::Sql;
use lease_core::{
    Authority, Claims, Effect, FencingToken, GuardError, GuardedDestination, LeaseError, Operation, Refusal,
    ResourceName, Stored,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A guarded destination in a SQLite file: the guard, and one register per resource. Clones share its connections.
#[derive(Clone, Debug)]
pub struct SqliteDestination {
    inner: Arc<Inner>,
}

/// The guard for the caller's own data: opens transactions that a token was admitted to.
#[derive(Clone, Debug)]
pub struct SqliteGuard {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Arc<Database>,
    statements: GuardStatements,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl SqliteDestination {
    /// Opens the file, creates it and the guard's tables where missing, and reads its settings. It trusts no authority until one is
    /// [adopted](GuardedDestination::adopt).
    ///
    /// # Errors
    /// As [`SqliteBackend::connect`](crate::SqliteBackend::connect).
    ///
    /// # Cancel safety
    /// An empty database may be left behind.
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        Self::connect_with(SqliteConfig::parse(url)?).await
    }

    /// As [`connect`](Self::connect), from a configuration.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(config: SqliteConfig) -> Result<Self, LeaseError> {
        let statements = GuardStatements::new(&config.options().namespace);
        Self::connect_on(config, statements).await
    }

    /// As [`connect`](Self::connect), with each `(from, to)` replaced in the text of the statements.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn connect_edited(url: &str, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let config = SqliteConfig::parse(url)?;
        let statements = GuardStatements::new(&config.options().namespace).edited(edits)?;
        Self::connect_on(config, statements).await
    }

    async fn connect_on(config: SqliteConfig, statements: GuardStatements) -> Result<Self, LeaseError> {
        let database = Database::new(config, statements.tables.clone());
        let open = database.open(true).await?;
        *database.writer.lock().await = Some(open);
        Ok(Self { inner: Arc::new(Inner { database, statements, turn: Arc::default() }) })
    }

    /// The same guard, for the caller's own data in this file.
    #[must_use]
    pub fn guard(&self) -> SqliteGuard {
        SqliteGuard { inner: Arc::clone(&self.inner) }
    }

    /// Removes the guard's tables of this namespace, marks included: for tests and decommissioning. Leases in the same file stay.
    ///
    /// Every token is refused afterwards until an authority is adopted anew; then **old tokens of that authority are admitted again**.
    ///
    /// # Errors
    /// When the store fails.
    ///
    /// # Cancel safety
    /// All of it was removed, or nothing.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        let text: Sql = schema::drop_text(&self.inner.statements.tables).into();
        let Inner { database, .. } = &*self.inner;
        database.write(Operation::CleanUp, &text, |query, _| query).await.map(drop)
    }

    async fn admit(
        &self,
        operation: Operation,
        sql: &Sql,
        resource: &ResourceName,
        token: &FencingToken,
        value: Option<String>,
    ) -> Result<(), GuardError> {
        let bind = presented(resource, token);
        let Inner { database, .. } = &*self.inner;
        let rows = database.write(operation, sql, move |query, _| bind(query).bind(value.clone())).await?;
        judge(&rows, operation, resource, token)?
            .map_err(|refusal| GuardError::Refused { resource: resource.clone(), refusal })
    }
}

#[async_trait::async_trait]
impl GuardedDestination for SqliteDestination {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn claims(&self) -> Claims {
        let settings = self.inner.database.settings();
        settings.map_or_else(|| Claims::of(&[]), |s| s.destination_claims())
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        let old = expected_old.map(|a| a.as_str().to_owned());
        let adopted = new.as_str().to_owned();
        let Inner { database, statements, .. } = &*self.inner;
        let rows = database
            .write(Operation::Adopt, &statements.adopt, move |query, _| query.bind(old.clone()).bind(adopted.clone()))
            .await?;
        let found = one(&rows, Operation::Adopt, decode_trusted)?;
        let found = found.map(Authority::parse).transpose()?;
        if found.as_ref() == expected_old { Ok(()) } else { Err(GuardError::AdoptConflict { found }) }
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        let sql = &self.inner.statements.seal;
        self.admit(Operation::Seal, sql, resource, token, None).await
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let sql = &self.inner.statements.write;
        self.admit(Operation::GuardedWrite, sql, resource, token, Some(value.to_owned())).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        let name = resource.as_str().to_owned();
        let Inner { database, statements, .. } = &*self.inner;
        let rows = database.read(Operation::Read, &statements.read, move |query, _| query.bind(name.clone())).await?;
        let value = one(&rows, Operation::Read, |row| row.try_get("register"))?;
        let mark = one(&rows, Operation::Read, |row| decode_mark(row, resource))??;
        Ok(Stored::new(value, mark))
    }
}

impl SqliteGuard {
    /// Opens the guard on the file of `url`; see [`SqliteDestination::connect`], which also adopts the authority.
    ///
    /// # Errors
    /// As [`SqliteDestination::connect`].
    ///
    /// # Cancel safety
    /// As [`SqliteDestination::connect`].
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        SqliteDestination::connect(url).await.map(|d| d.guard())
    }

    /// Begins a transaction for the caller's own data, if `token` is admitted. The mark rises in the same transaction, which is the seal:
    /// what is read in it can't be overtaken by an older worker.
    ///
    /// It holds the file's one write lock, so keep it short.
    ///
    /// # Errors
    /// [`GuardError::Refused`] when the token is not admitted: there is no transaction then, so nothing that could be committed.
    ///
    /// # Cancel safety
    /// The transaction, mark included, is rolled back.
    pub async fn begin(&self, resource: &ResourceName, token: &FencingToken) -> Result<GuardedTransaction, GuardError> {
        let operation = Operation::GuardedWrite;
        let Inner { database, statements, turn, .. } = &*self.inner;
        let (turn, until) = database.enter(turn, operation).await?;
        let (admit, here) = (Arc::clone(&statements.admit), Arc::clone(database));
        let (resource, token) = (resource.clone(), token.clone());
        let name = resource.clone();
        let work = move |caller: Arc<Caller>| async move {
            let mut open = OwnedTransaction::begin(here, turn, operation, &caller).await?;
            let rows = presented(&resource, &token)(query(&admit))
                .fetch_all(open.connection_mut())
                .await
                .map_err(|e| crate::error::of_operation(e, operation))?;
            match judge(&rows, operation, &resource, &token)? {
                Ok(()) => Ok(Ok(open)),
                Err(refusal) => {
                    open.rollback().await;
                    Ok(Err(refusal))
                }
            }
        };
        match database.in_task(operation, Effect::None, until, work).await? {
            Ok(open) => Ok(GuardedTransaction { open }),
            Err(refusal) => Err(GuardError::Refused { resource: name, refusal }),
        }
    }
}

/// A transaction that a token was admitted to; it dereferences to the connection for the caller's own statements.
///
/// Only [`commit`](Self::commit) commits it, mark and data together. A `COMMIT` as a statement, and everything after a rollback, is refused,
/// so a caller that ignores an error can't commit a part. A nested `begin` is a savepoint. Foreign keys are on.
#[derive(Debug)]
#[must_use = "dropping it rolls back"]
pub struct GuardedTransaction {
    open: OwnedTransaction,
}

impl GuardedTransaction {
    /// Commits the mark and whatever was written.
    ///
    /// # Errors
    /// When a statement had rolled the transaction back before: nothing was kept. After an error of [unknown](Effect::Unknown) effect it may have been:
    /// read what was to be written, under the same token.
    ///
    /// # Cancel safety
    /// It may or may not have been committed, as a whole.
    pub async fn commit(self) -> Result<(), GuardError> {
        Ok(self.open.commit().await?)
    }

    /// Rolls back, mark included, and returns when the write lock is free, at the latest when a call's time is over.
    ///
    /// # Cancel safety
    /// It is rolled back.
    pub async fn rollback(self) {
        self.open.rollback().await;
    }
}

impl Deref for GuardedTransaction {
    type Target = SqliteConnection;
    fn deref(&self) -> &SqliteConnection {
        self.open.connection()
    }
}

impl DerefMut for GuardedTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.open.connection_mut()
    }
}

/// The parameters `?1` to `?4`.
fn presented(resource: &ResourceName, token: &FencingToken) -> impl Fn(Query) -> Query + Send + Sync + 'static {
    let resource = resource.as_str().to_owned();
    let authority = token.authority().as_str().to_owned();
    let (value, grant) = (token.value_i64(), token.grant().to_hex());
    move |query| query.bind(resource.clone()).bind(authority.clone()).bind(value).bind(grant.clone())
}

/// Judges what the step left: an admitted token is the mark now; any other state is why it was not admitted.
fn judge(
    rows: &[SqliteRow],
    operation: Operation,
    resource: &ResourceName,
    token: &FencingToken,
) -> Result<Result<(), Refusal>, LeaseError> {
    let trusted = one(rows, operation, decode_trusted)?.map(Authority::parse).transpose()?;
    let mark = one(rows, operation, |row| decode_mark(row, resource))??;
    Ok(Refusal::judge(trusted.as_ref(), mark, token))
}
