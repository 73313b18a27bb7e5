//! One operation as one step of its own task.
//!
//! *Why a task.* Each connection of the client has a worker thread, and what was sent to it runs even when the caller's future was
//! dropped. The task owns the connection until its transaction is over, so that no caller can leave one open. When the caller has gone by
//! the time the write lock is there, the task rolls back.

use crate::connection::{Database, Moment, Open};
use crate::wire::Sql;
use crate::{error, schema};
use lease_core::{Effect, LeaseError, Operation};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::time::Instant;

/// A statement with its parameters.
pub(crate) type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// Builds the query of a step from its text and the time.
type Bind = Box<dyn Fn(Query, &Moment) -> Query + Send + Sync>;

impl Database {
    /// Runs one writing step: lock, time, statement, commit.
    ///
    /// `bind` gets the time under the lock. The statement's text ends in `COMMIT`.
    pub(crate) async fn write(
        self: &Arc<Self>,
        operation: Operation,
        sql: &Sql,
        bind: impl Fn(Query, &Moment) -> Query + Send + Sync + 'static,
    ) -> Result<Vec<SqliteRow>, LeaseError> {
        let patience = self.lock_patience();
        let (slot, until) = self.enter(&self.writer, operation).await?;
        let step = Step { database: Arc::clone(self), slot, operation, sql: Arc::clone(sql), patience };
        let bind: Bind = Box::new(bind);
        self.in_task(operation, Effect::Unknown, until, |reply| step.write(bind, reply)).await
    }

    /// Runs one reading step, on the connection that reads.
    pub(crate) async fn read(
        self: &Arc<Self>,
        operation: Operation,
        sql: &Sql,
        bind: impl Fn(Query, &Moment) -> Query + Send + Sync + 'static,
    ) -> Result<Vec<SqliteRow>, LeaseError> {
        let patience = self.lock_patience();
        let (slot, until) = self.enter(&self.reader, operation).await?;
        let step = Step { database: Arc::clone(self), slot, operation, sql: Arc::clone(sql), patience };
        let bind: Bind = Box::new(bind);
        self.in_task(operation, Effect::None, until, |caller| step.read(bind, caller)).await
    }

    /// Waits for the connection; nothing has begun while it waits.
    pub(crate) async fn enter<T>(
        &self,
        slot: &Arc<Mutex<T>>,
        operation: Operation,
    ) -> Result<(OwnedMutexGuard<T>, Instant), LeaseError> {
        let limit = self.config.options().call_timeout;
        let until = self.call_ends();
        match tokio::time::timeout_at(until, Arc::clone(slot).lock_owned()).await {
            Ok(guard) => Ok((guard, until)),
            Err(_) => Err(timeout(operation, limit, Effect::None)),
        }
    }

    /// Runs `work` in a task of its own, which goes on to its end when the caller has gone.
    pub(crate) async fn in_task<T, W>(
        &self,
        operation: Operation,
        effect: Effect,
        until: Instant,
        work: impl FnOnce(Arc<Caller>) -> W,
    ) -> Result<T, LeaseError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, LeaseError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let here = Here(Arc::default());
        let work = work(Arc::clone(&here.0));
        tokio::spawn(async move {
            // Whoever does not wait any more does not hear of it.
            drop(reply.send(work.await));
        });
        match tokio::time::timeout_at(until, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LeaseError::Connection {
                operation,
                reason: "the task that ran it was stopped; the runtime is shutting down".into(),
                effect,
                source: None,
            }),
            Err(_) => {
                let limit = self.config.options().call_timeout;
                let effect = if here.0.leave() { Effect::None } else { effect };
                Err(timeout(operation, limit, effect))
            }
        }
    }
}

/// What caller and task agree on: that the step runs, or that nobody waits for it any more. Whoever is first decides.
#[derive(Debug, Default)]
pub(crate) struct Caller(AtomicU8);

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const GONE: u8 = 2;

impl Caller {
    /// The task's side, right before what can't be taken back: whether the step is still wanted.
    pub(crate) fn begin(&self) -> bool {
        self.decide(RUNNING) != GONE
    }

    /// The caller's side: whether it left before the step began, so that it never will.
    fn leave(&self) -> bool {
        self.decide(GONE) == GONE
    }

    /// Whether a step that failed with `e` is worth another try.
    pub(crate) fn waits_on(&self, e: &sqlx::Error, patience: Instant) -> bool {
        error::is_busy(e) && Instant::now() < patience && self.0.load(Ordering::SeqCst) != GONE
    }

    fn decide(&self, wanted: u8) -> u8 {
        match self.0.compare_exchange(WAITING, wanted, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => wanted,
            Err(decided) => decided,
        }
    }
}

/// The caller's side; dropped when it stops waiting, for whatever reason.
struct Here(Arc<Caller>);

impl Drop for Here {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// One operation with the connection's place.
struct Step {
    database: Arc<Database>,
    slot: OwnedMutexGuard<Option<Open>>,
    operation: Operation,
    sql: Sql,
    /// Until when it waits for a lock.
    patience: Instant,
}

impl Step {
    async fn write(mut self, bind: Bind, caller: Arc<Caller>) -> Result<Vec<SqliteRow>, LeaseError> {
        match self.write_once(&bind, &caller).await {
            Err(Failure::NoTable) => {
                self.set_up_anew().await?;
                self.write_once(&bind, &caller).await.map_err(|f| f.into_error(self.operation))
            }
            answer => answer.map_err(|f| f.into_error(self.operation)),
        }
    }

    async fn read(mut self, bind: Bind, caller: Arc<Caller>) -> Result<Vec<SqliteRow>, LeaseError> {
        match self.read_once(&bind, &caller).await {
            Err(Failure::NoTable) => {
                self.set_up_anew().await?;
                self.read_once(&bind, &caller).await.map_err(|f| f.into_error(self.operation))
            }
            answer => answer.map_err(|f| f.into_error(self.operation)),
        }
    }

    async fn write_once(&mut self, bind: &Bind, caller: &Caller) -> Result<Vec<SqliteRow>, Failure> {
        let mut open = self.database.take(&mut self.slot, self.operation).await?;
        if let Err(e) = begin(&mut open.sqlite, caller, self.patience).await {
            // A busy connection is as good as before; any other error leaves one that nobody should trust.
            if error::is_busy(&e) {
                *self.slot = Some(open);
            }
            return Err(error::of_operation(e, self.operation).into());
        }
        let on_path = self.database.is_on_path(&open);
        if !on_path {
            drop(sqlx::query("ROLLBACK").execute(&mut open.sqlite).await);
            return Err(self.database.give_up(open, self.operation).into());
        }
        if !caller.begin() {
            self.roll_back(open, true).await;
            return Err(timeout(self.operation, Duration::ZERO, Effect::None).into());
        }
        let query = bind(query(&self.sql), &self.database.moment());
        match query.fetch_all(&mut open.sqlite).await {
            Ok(rows) => {
                *self.slot = Some(open);
                Ok(rows)
            }
            Err(e) => {
                self.roll_back(open, error::code(&e).is_some()).await;
                Err(Failure::of(e, |e| error::of_operation(e, self.operation)))
            }
        }
    }

    async fn read_once(&mut self, bind: &Bind, caller: &Caller) -> Result<Vec<SqliteRow>, Failure> {
        let mut open = self.database.take(&mut self.slot, self.operation).await?;
        loop {
            let query = bind(query(&self.sql), &self.database.moment());
            match query.fetch_all(&mut open.sqlite).await {
                Ok(rows) => {
                    *self.slot = Some(open);
                    return Ok(rows);
                }
                // Readers wait for nobody but for whoever recovers the journal after a crash.
                Err(e) if caller.waits_on(&e, self.patience) => {}
                Err(e) => return Err(Failure::of(e, |e| error::of_read(e, self.operation))),
            }
        }
    }

    /// Ends the transaction without effect. The connection stays if that worked and it is to be `kept`; dropping it rolls back too.
    async fn roll_back(&mut self, mut open: Open, kept: bool) {
        let rolled_back = sqlx::query("ROLLBACK").execute(&mut open.sqlite).await.is_ok();
        if rolled_back && kept {
            *self.slot = Some(open);
        }
    }

    /// Creates the tables anew, after `purge` or a hand removed them: a new history begins, under a new authority.
    async fn set_up_anew(&mut self) -> Result<(), LeaseError> {
        *self.slot = Some(self.database.open(false).await?);
        Ok(())
    }
}

/// Why a step failed.
enum Failure {
    /// A table is gone; nothing was executed.
    NoTable,
    Error(LeaseError),
}

impl Failure {
    fn of(e: sqlx::Error, map: impl FnOnce(sqlx::Error) -> LeaseError) -> Self {
        if schema::is_missing_table(&e) { Self::NoTable } else { Self::Error(map(e)) }
    }

    fn into_error(self, operation: Operation) -> LeaseError {
        match self {
            Self::NoTable => schema::vanished(operation),
            Self::Error(error) => error,
        }
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        Self::Error(error)
    }
}

/// Takes the write lock, asking for it again and again until `patience` ends or nobody waits for it any more.
async fn begin(sqlite: &mut SqliteConnection, caller: &Caller, patience: Instant) -> Result<(), sqlx::Error> {
    loop {
        match sqlx::query("BEGIN IMMEDIATE").execute(&mut *sqlite).await {
            Err(e) if caller.waits_on(&e, patience) => {}
            answer => return answer.map(drop),
        }
    }
}

/// The statement, ready for its parameters.
pub(crate) fn query(sql: &Sql) -> Query {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

fn timeout(operation: Operation, limit: Duration, effect: Effect) -> LeaseError {
    LeaseError::Timeout { operation, limit, effect }
}
