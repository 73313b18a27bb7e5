//! A transaction for the caller's own statements that nothing but its own `commit` can commit.
//!
//! A guard that is asked *inside* a transaction of the caller leaves traps open in SQLite, each of which lets a stale row land for a caller who
//! ignores an error:
//!
//! * The refusal may roll the transaction back, by itself or through a conflict clause: then the caller's next statement runs in autocommit,
//!   and lands.
//! * A row that breaks a deferred foreign key makes `COMMIT` fail, but not where foreign keys are off, and not after `ROLLBACK TO` a
//!   savepoint from before the check.
//! * `ROLLBACK TO` also takes an admitted token's mark back, while what is written afterwards is committed without one.
//! * A caller that is in no transaction at all commits each statement by itself.
//!
//! So this crate does it the other way round: it owns the connection. The check is the first step after `BEGIN IMMEDIATE`, so no savepoint
//! comes before it; a refusal leaves no transaction to commit; and a commit hook turns *every* commit on the connection into a
//! rollback, but for the one that [`commit`](OwnedTransaction::commit) lets through, and that one only while the transaction that was checked
//! is still the one that is open.

use crate::connection::{Database, Open};
use crate::error;
use crate::step::Caller;
use lease_core::{Advice, Effect, LeaseError, Operation};
use sqlx::{Connection as _, SqliteConnection};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::OwnedMutexGuard;

/// The gate that the connection's hooks ask.
#[derive(Debug)]
struct Gate(AtomicU8);

/// The checked transaction is open; nothing may commit.
const OPEN: u8 = 0;
/// Its own `commit` was called: one commit may pass.
const COMMITTING: u8 = 1;
/// It is over; nothing may commit any more.
const OVER: u8 = 2;

impl Gate {
    /// Lets the one commit pass.
    fn pass(&self) -> bool {
        self.0.compare_exchange(COMMITTING, OVER, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Allows the commit; false when the transaction is over.
    fn allow(&self) -> bool {
        self.0.compare_exchange(OPEN, COMMITTING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn end(&self) {
        self.0.store(OVER, Ordering::SeqCst);
    }
}

/// An open transaction that holds the file's write lock, on a connection of its own.
///
/// The connection is opened for it and closed with it. So what the caller leaves on it (pragmas, hooks, attached files, statements whose
/// futures were dropped) reaches nobody else.
#[derive(Debug)]
pub(crate) struct OwnedTransaction {
    database: Arc<Database>,
    open: Open,
    gate: Arc<Gate>,
    operation: Operation,
    /// One at a time in this instance, in order, instead of racing through SQLite's sleeps.
    _turn: OwnedMutexGuard<()>,
}

impl OwnedTransaction {
    /// Begins: takes the write lock and closes the gate. Run it in a task: it must not be dropped half-way.
    pub(crate) async fn begin(
        database: Arc<Database>,
        turn: OwnedMutexGuard<()>,
        operation: Operation,
        caller: &Caller,
    ) -> Result<Self, LeaseError> {
        let patience = database.lock_patience();
        let mut open = database.open_plain().await?;
        let gate = Arc::new(Gate(AtomicU8::new(OPEN)));
        let map = |e| error::of_operation(e, operation);
        install(&mut open.sqlite, &gate).await.map_err(map)?;
        // Begun through the client, so that it counts the transaction and a nested `begin` of the caller becomes a savepoint. Its guard
        // would borrow the connection, and roll back what this one is there to end.
        loop {
            match open.sqlite.begin_with("BEGIN IMMEDIATE").await {
                Ok(begun) => break std::mem::forget(begun),
                Err(e) if caller.waits_on(&e, patience) => {}
                Err(e) => return Err(map(e)),
            }
        }
        if !database.is_on_path(&open) {
            return Err(error::replaced(operation));
        }
        Ok(Self { database, open, gate, operation, _turn: turn })
    }

    pub(crate) fn connection(&self) -> &SqliteConnection {
        &self.open.sqlite
    }

    pub(crate) fn connection_mut(&mut self) -> &mut SqliteConnection {
        &mut self.open.sqlite
    }

    /// Commits, unless the transaction has ended before: then nothing of it was kept.
    pub(crate) async fn commit(mut self) -> Result<(), LeaseError> {
        let until = self.database.call_ends();
        let operation = self.operation;
        let database = Arc::clone(&self.database);
        let work = move |caller: Arc<Caller>| async move {
            // Agreed with the caller, so that a time-out that comes later knows that the commit may still land.
            if !caller.begin() || !self.gate.allow() {
                return Err(ended(operation));
            }
            sqlx::raw_sql("COMMIT")
                .execute(&mut self.open.sqlite)
                .await
                .map(drop)
                .map_err(|e| error::of_operation(e, operation))
        };
        database.in_task(operation, Effect::Unknown, until, work).await
    }

    /// Rolls back, and returns when the write lock is free, at the latest when a call's time is over.
    pub(crate) async fn rollback(mut self) {
        self.gate.end();
        let until = self.database.call_ends();
        // Should it fail, or wait behind a long statement that was left in the queue, dropping the connection rolls back as well.
        drop(tokio::time::timeout_at(until, sqlx::raw_sql("ROLLBACK").execute(&mut self.open.sqlite)).await);
    }
}

impl Drop for OwnedTransaction {
    fn drop(&mut self) {
        // The connection's worker thread runs what dropped futures left in its queue, and closes: with that SQLite rolls back. Until then
        // nothing may commit.
        self.gate.end();
    }
}

async fn install(sqlite: &mut SqliteConnection, gate: &Arc<Gate>) -> Result<(), sqlx::Error> {
    let (passing, ending) = (Arc::clone(gate), Arc::clone(gate));
    let mut handle = sqlite.lock_handle().await?;
    handle.set_commit_hook(move || passing.pass());
    handle.set_rollback_hook(move || ending.end());
    Ok(())
}

fn ended(operation: Operation) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: "the transaction had ended before its commit, rolled back by a statement in it; nothing of it was kept"
            .into(),
        effect: Effect::None,
        advice: Advice::Fix,
        source: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_lets_one_wanted_commit_pass() {
        let gate = Gate(AtomicU8::new(OPEN));
        assert!(!gate.pass(), "nobody called commit");
        assert!(gate.allow());
        assert!(gate.pass());
        assert!(!gate.pass() && !gate.allow(), "once");

        let gate = Gate(AtomicU8::new(OPEN));
        gate.end();
        assert!(!gate.allow() && !gate.pass(), "rolled back before its commit");

        let gate = Gate(AtomicU8::new(OPEN));
        assert!(gate.allow());
        gate.end();
        assert!(!gate.pass(), "rolled back by what was still in the queue");
    }
}
