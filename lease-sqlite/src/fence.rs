//! The native fence: a write in the lease's own file is refused from the moment the grant has ended.

use crate::backend::{Inner, SqliteBackend, one};
use crate::connection::Moment;
use crate::step::{Caller, Query, query};
use crate::transaction::OwnedTransaction;
use crate::wire::Found;
use lease_core::{
    BootInstant, Effect, FenceError, FencedRegister, FencingToken, Lease, LeaseError, Operation, ResourceName,
    SharedClock,
};
use sqlx::{Row as _, SqliteConnection};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

impl SqliteBackend {
    /// Begins a transaction for the holder's own data in the lease's file, if its grant is live.
    ///
    /// It holds the file's one write lock: while it is open nobody else can be granted anything in this file, so no newer worker can have
    /// written before it commits. For the same reason **keep it short**: a worker that is stopped inside it stops every writer of the file
    /// until it goes on or is killed, and SQLite has no limit on idle transactions. Renewals wait behind it too.
    ///
    /// # Errors
    /// [`FenceError::Refused`] when the grant has ended: there is no transaction then.
    ///
    /// # Cancel safety
    /// The transaction is rolled back.
    pub async fn begin_fenced(&self, lease: &Lease) -> Result<FencedTransaction, FenceError> {
        let Inner { database, statements, turn, .. } = &*self.inner;
        let (turn, until) = database.enter(turn, Operation::FencedWrite).await?;
        let (bind, look, here) = (owned(lease), Arc::clone(&statements.look), Arc::clone(database));
        let of = lease.clone();
        let work = move |caller: Arc<Caller>| async move {
            let mut open = OwnedTransaction::begin(Arc::clone(&here), turn, Operation::FencedWrite, &caller).await?;
            let moment = here.moment();
            let rows = bind(query(&look), &moment)
                .fetch_all(open.connection_mut())
                .await
                .map_err(|e| crate::error::of_operation(e, Operation::FencedWrite))?;
            let found = one(&rows, Operation::FencedWrite, Found::decode)?;
            if let Some(record) = found.record.as_ref().filter(|_| found.loss_of(&of).is_none()) {
                let now = BootInstant::from_nanos(u64::try_from(moment.now).unwrap_or(0));
                return Ok(Some((open, now.saturating_add(record.remaining))));
            }
            open.rollback().await;
            Ok(None)
        };
        let begun = database.in_task(Operation::FencedWrite, Effect::None, until, work).await?;
        let (open, expires) = begun.ok_or_else(|| refused(lease.resource()))?;
        Ok(FencedTransaction {
            open,
            resource: lease.resource().clone(),
            expires,
            clock: database.config.options().clock.clone(),
        })
    }
}

/// A transaction of a live holder; it dereferences to the connection for the holder's own statements.
///
/// Only [`commit`](Self::commit) commits it. A `COMMIT` as a statement, and everything after a rollback, is refused.
#[derive(Debug)]
#[must_use = "dropping it rolls back"]
pub struct FencedTransaction {
    open: OwnedTransaction,
    resource: ResourceName,
    expires: BootInstant,
    clock: SharedClock,
}

impl FencedTransaction {
    /// Commits, if the grant is still live.
    ///
    /// # Errors
    /// [`FenceError::Refused`] when the grant ran out meanwhile, and a store error when a statement had rolled the transaction back: nothing was
    /// kept. After an error of [unknown](Effect::Unknown) effect it may have been.
    ///
    /// # Cancel safety
    /// It may or may not have been committed; if so, no newer grant was there.
    pub async fn commit(self) -> Result<(), FenceError> {
        // Nobody could be granted since, so the record's expiry, read under the lock, is still the one that counts.
        if self.clock.now() >= self.expires {
            self.open.rollback().await;
            return Err(refused(&self.resource));
        }
        Ok(self.open.commit().await?)
    }

    /// Rolls back, and returns when the write lock is free, at the latest when a call's time is over.
    ///
    /// # Cancel safety
    /// It is rolled back.
    pub async fn rollback(self) {
        self.open.rollback().await;
    }
}

impl Deref for FencedTransaction {
    type Target = SqliteConnection;
    fn deref(&self) -> &SqliteConnection {
        self.open.connection()
    }
}

impl DerefMut for FencedTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.open.connection_mut()
    }
}

fn refused(resource: &ResourceName) -> FenceError {
    FenceError::Refused { resource: resource.clone() }
}

#[async_trait::async_trait]
impl FencedRegister for SqliteBackend {
    async fn write(&self, lease: &Lease, value: &str) -> Result<(), FenceError> {
        let bind = owned(lease);
        let value = value.to_owned();
        let Inner { database, statements, .. } = &*self.inner;
        let rows = database
            .write(Operation::FencedWrite, &statements.fenced_write, move |query, moment| {
                bind(query, moment).bind(value.clone())
            })
            .await?;
        match one(&rows, Operation::FencedWrite, |row| row.try_get::<i64, _>(0))? {
            0 => Err(refused(lease.resource())),
            _ => Ok(()),
        }
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<String>, LeaseError> {
        let name = resource.as_str().to_owned();
        let Inner { database, statements, .. } = &*self.inner;
        let rows =
            database.read(Operation::Read, &statements.register, move |query, _| query.bind(name.clone())).await?;
        let value = rows.first().map(|row| row.try_get::<Option<String>, _>(0)).transpose();
        Ok(value.map_err(|e| crate::error::of_read(e, Operation::Read))?.flatten())
    }
}

/// The parameters `?1` to `?4` for the owner of `lease`, and its fencing value as `?5`.
fn owned(lease: &Lease) -> impl Fn(Query, &Moment) -> Query + Send + Sync + 'static {
    let (resource, owner) = (lease.resource().as_str().to_owned(), lease.owner().reveal());
    let value = lease.token().map(FencingToken::value_i64);
    move |query, moment| {
        query.bind(resource.clone()).bind(owner.clone()).bind(moment.boot.clone()).bind(moment.now).bind(value)
    }
}
