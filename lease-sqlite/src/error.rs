//! From the client's errors to [`LeaseError`], with the right effect.
//!
//! A write runs in one transaction that is rolled back when any of its statements fails. So an error that SQLite reports had no effect,
//! but for one kind: an I/O error may have come after the commit record was written.

use lease_core::{Advice, Effect, LeaseError, Operation};
use std::path::Path;

// Primary result codes of SQLite, which are the low byte of the extended ones.
const PERM: i32 = 3;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const AUTH: i32 = 23;
const NOTADB: i32 = 26;

/// The primary result code; `None` when the error is not SQLite's own.
pub(crate) fn code(error: &sqlx::Error) -> Option<i32> {
    let extended: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

/// Whether another connection held the lock for longer than this one waits. Nothing was executed.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(BUSY | LOCKED))
}

/// The error of an operation on the open file.
pub(crate) fn of_operation(error: sqlx::Error, operation: Operation) -> LeaseError {
    let reason = error.to_string();
    let store = |effect, advice, reason, source| LeaseError::Store {
        operation,
        reason,
        effect,
        advice,
        source: Some(Box::new(source)),
    };
    match code(&error) {
        Some(BUSY | LOCKED) => store(
            Effect::None,
            Advice::TryAgain,
            format!("another process held the write lock of the file for longer than this call can wait ({reason})"),
            error,
        ),
        // What else keeps SQLite from opening a file was looked at before: see `check_path`.
        Some(READONLY | PERM | AUTH | CANTOPEN) => not_allowed(error, operation),
        Some(CORRUPT | NOTADB) => not_a_database(error),
        Some(FULL) => {
            store(Effect::None, Advice::Fix, format!("the disk or the quota is full; make room ({reason})"), error)
        }
        Some(IOERR) => store(Effect::Unknown, Advice::TryAgain, reason, error),
        Some(_) => store(Effect::None, Advice::Fix, reason, error),
        None => LeaseError::Connection { operation, reason, effect: Effect::Unknown, source: Some(Box::new(error)) },
    }
}

/// The error of an operation that only reads: it never had an effect.
pub(crate) fn of_read(error: sqlx::Error, operation: Operation) -> LeaseError {
    match of_operation(error, operation) {
        LeaseError::Store { operation, reason, advice, source, .. } => {
            LeaseError::Store { operation, reason, effect: Effect::None, advice, source }
        }
        LeaseError::Connection { operation, reason, source, .. } => {
            LeaseError::Connection { operation, reason, effect: Effect::None, source }
        }
        other => other,
    }
}

/// The error of opening the file or of setting it up: nothing of it counts until all of it is done.
pub(crate) fn of_connect(error: sqlx::Error, step: &str) -> LeaseError {
    match of_read(error, Operation::Connect) {
        LeaseError::Store { operation, reason, effect, advice, source } => {
            LeaseError::Store { operation, reason: format!("{step}: {reason}"), effect, advice, source }
        }
        other => other,
    }
}

/// Looks at the path before SQLite does, whose one message for all of this is "unable to open database file".
pub(crate) fn check_path(path: &Path, create: bool) -> Result<(), LeaseError> {
    let refuse = |reason: String, source: Option<std::io::Error>| {
        Err(LeaseError::Unreachable {
            store: format!("sqlite://{}", path.display()),
            reason,
            source: source.map(|e| Box::new(e).into()),
        })
    };
    let fix = |reason: String, advice: &str, source: Option<std::io::Error>| {
        Err(LeaseError::NotSetUp { reason, advice: advice.into(), source: source.map(|e| Box::new(e).into()) })
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => fix(format!("{} is a directory", path.display()), "name a file in it", None),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && create => match path.parent() {
            Some(folder) if !folder.is_dir() => {
                fix(format!("the directory {} does not exist", folder.display()), "create it", Some(e))
            }
            _ => Ok(()),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            refuse("the file was removed after it was opened; connect anew to begin with an empty one".into(), Some(e))
        }
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Err(LeaseError::MissingPrivilege {
            operation: Operation::Connect,
            reason: format!("{}: {e}", path.display()),
            advice: ADVICE.into(),
            source: Some(Box::new(e)),
        }),
        Err(e) => refuse(e.to_string(), Some(e)),
    }
}

/// The file that was opened is not the one under the path any more: whoever opens it now is on another history.
pub(crate) fn replaced(operation: Operation) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: "the database file was removed or replaced while it was open; its leases are gone with it".into(),
        effect: Effect::None,
        advice: Advice::TryAgain,
        source: None,
    }
}

/// The journal of the open file, or the journal's index, is not beside it any more: whoever opens the file now has another write lock.
pub(crate) fn journal_removed(operation: Operation) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: "the -wal or -shm file of the open database was removed; its leases are gone with it, and this process has to be restarted \
                 before it can use the file again"
            .into(),
        effect: Effect::None,
        advice: Advice::Fix,
        source: None,
    }
}

const ADVICE: &str =
    "give this user read and write permission on the file, on PATH-wal and PATH-shm beside it, and on their directory";

fn not_allowed(error: sqlx::Error, operation: Operation) -> LeaseError {
    LeaseError::MissingPrivilege {
        operation,
        reason: error.to_string(),
        advice: ADVICE.into(),
        source: Some(Box::new(error)),
    }
}

fn not_a_database(error: sqlx::Error) -> LeaseError {
    LeaseError::NotSetUp {
        reason: format!("the file is damaged or no SQLite database ({error})"),
        advice: "name another file, or restore this one and raise the epoch".into(),
        source: Some(Box::new(error)),
    }
}
