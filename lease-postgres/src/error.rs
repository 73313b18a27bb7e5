//! From the client's errors to [`LeaseError`]: what happened, and whether it took effect.
//!
//! An error that the server reported in answer to a statement is definite: the statement's transaction was rolled back. A broken
//! connection or a time-out is unknown, and so is every error with which the server ends the session.

use lease_core::{Advice, Effect, LeaseError, Namespace, Operation, Source};
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use std::fmt;
use std::time::Duration;

/// SQLSTATE of the native fence's refusal, and of a change of a lease that came too late.
pub(crate) const FENCE_REFUSED: &str = "LH001";
/// SQLSTATE of the guard's refusal.
pub(crate) const GUARD_REFUSED: &str = "LH002";

/// What the server said, without its details: they can quote a row, and with it an owner token.
#[derive(Debug)]
struct ServerError {
    code: String,
    message: String,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)
    }
}

impl std::error::Error for ServerError {}

/// The server's own error in a client error, if it is one.
pub(crate) fn server_error(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error().and_then(|e| e.try_downcast_ref())
}

/// Whether the server refused a change of a lease because the grant had ended while the statement waited; it was rolled back.
pub(crate) fn came_too_late(error: &LeaseError) -> bool {
    said(error, &[FENCE_REFUSED])
}

/// Whether the statement can be run again at once: the server chose it to end a circle of waiting that strangers had made around it, or ended
/// the session before it read it. A statement of this crate waits for one row and holds none, but who waits for a row keeps its place in
/// the queue from others.
pub(crate) fn may_run_again(error: &LeaseError) -> bool {
    said(error, &["40P01", "40001", IDLE_SESSION_ENDED])
}

/// Whether the server had ended the session before it read the statement.
pub(crate) fn session_had_ended(error: &LeaseError) -> bool {
    said(error, &[IDLE_SESSION_ENDED])
}

const IDLE_SESSION_ENDED: &str = "57P05";

fn said(error: &LeaseError, codes: &[&str]) -> bool {
    let LeaseError::Store { source: Some(source), .. } = error else { return false };
    source.downcast_ref::<ServerError>().is_some_and(|said| codes.contains(&said.code.as_str()))
}

/// The error of a statement that was sent.
pub(crate) fn of_statement(operation: Operation, namespace: &Namespace, error: sqlx::Error) -> LeaseError {
    let Some(server) = server_error(&error) else {
        return LeaseError::Connection {
            operation,
            reason: error.to_string(),
            effect: Effect::Unknown,
            source: Some(Box::new(error)),
        };
    };
    let (code, severity) = (server.code().to_owned(), server.severity());
    let said = ServerError { code: code.clone(), message: server.message().to_owned() };
    let reason = said.to_string();
    let source: Option<Source> = Some(Box::new(said));
    match code.as_str() {
        "42501" => LeaseError::MissingPrivilege { operation, reason, advice: grants(operation, namespace), source },
        "42P01" | "3F000" | "42883" | "42703" => LeaseError::NotSetUp {
            reason,
            advice: format!(
                "create the tables of schema \"{namespace}\": connect with `set_up=if_missing`, or run the migration of this crate"
            ),
            source,
        },
        "25006" => LeaseError::NotSetUp {
            reason,
            advice: "connect to the primary server; a standby cannot grant".into(),
            source,
        },
        // Numeric value out of range: only `value + 1` can get there.
        "22003" if matches!(operation, Operation::Acquire) => LeaseError::TokenRange { value: 1 << 63 },
        "55P03" => LeaseError::Store {
            operation,
            reason: format!("blocked in the database by another transaction's lock: {reason}"),
            effect: Effect::None,
            advice: Advice::TryAgain,
            source,
        },
        // The server ended an idle session before it read the statement.
        IDLE_SESSION_ENDED => {
            LeaseError::Store { operation, reason, effect: Effect::None, advice: Advice::TryAgain, source }
        }
        // Ended by an administrator, or by a crash: the commit may have been made.
        _ if code.starts_with("57P") || code.starts_with("08") || severity_ends_session(severity) => {
            LeaseError::Connection { operation, reason, effect: Effect::Unknown, source }
        }
        _ => LeaseError::Store { operation, reason, effect: Effect::None, advice: advice(&code), source },
    }
}

/// The error of opening a connection: nothing was sent.
pub(crate) fn of_connect(address: &str, error: sqlx::Error) -> LeaseError {
    let store = address.to_owned();
    let Some(server) = server_error(&error) else {
        return match error {
            sqlx::Error::Configuration(_) => LeaseError::InvalidConfig {
                reason: "the client refused the connection's options; look at `sslmode` and `sslrootcert`".into(),
            },
            error => {
                let reason = if is_foreign(&error) { format!("{FOREIGN} ({error})") } else { error.to_string() };
                LeaseError::Unreachable { store, reason, source: Some(Box::new(error)) }
            }
        };
    };
    let said = ServerError { code: server.code().to_owned(), message: server.message().to_owned() };
    let reason = said.to_string();
    match server.code() {
        "28P01" | "28000" => LeaseError::LoginRefused { store, reason, source: Some(Box::new(said)) },
        "3D000" => LeaseError::NotSetUp {
            reason,
            advice: "create the database, or correct the last part of the URL".into(),
            source: Some(Box::new(said)),
        },
        "42501" => LeaseError::MissingPrivilege {
            operation: Operation::Connect,
            reason,
            advice: "GRANT CONNECT ON DATABASE … TO the account".into(),
            source: Some(Box::new(said)),
        },
        "08P01" => LeaseError::NotSetUp {
            reason,
            advice: "connect to the server itself; a pooler in between must pass session settings through".into(),
            source: Some(Box::new(said)),
        },
        _ => LeaseError::Unreachable { store, reason, source: Some(Box::new(said)) },
    }
}

const FOREIGN: &str = "what listens there does not answer as PostgreSQL does";

/// Whether what was read is no answer of PostgreSQL's, or ended before there was one.
fn is_foreign(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Protocol(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::UnexpectedEof,
        _ => false,
    }
}

/// The error of a peer that was connected to, perhaps, and did not make a session of it in time.
pub(crate) fn no_session(address: &str, limit: Duration) -> LeaseError {
    let reason = format!("no session within {limit:?}: it is stopped or very busy, or {FOREIGN}");
    LeaseError::Unreachable { store: address.to_owned(), reason, source: None }
}

fn severity_ends_session(severity: PgSeverity) -> bool {
    matches!(severity, PgSeverity::Fatal | PgSeverity::Panic)
}

/// Cancelled or timed-out statements, serialization failures, deadlocks, lack of resources and internal errors pass; anything else
/// needs somebody.
fn advice(code: &str) -> Advice {
    let passes = ["57", "40", "53", "55", "58", "XX"].iter().any(|class| code.starts_with(class));
    if passes { Advice::TryAgain } else { Advice::Fix }
}

/// The grants that an operation needs.
fn grants(operation: Operation, namespace: &Namespace) -> String {
    let on = |tables: &str| {
        format!(
            "GRANT USAGE ON SCHEMA \"{namespace}\" TO the account; GRANT {tables}; see the account section of the crate's docs"
        )
    };
    match operation {
        Operation::Connect => format!(
            "GRANT CREATE ON DATABASE … (or ON SCHEMA \"{namespace}\") TO the account, or run the migration with another account and connect with `set_up=never`"
        ),
        Operation::Seal | Operation::GuardedWrite => on(&format!(
            "SELECT, UPDATE (id) ON \"{namespace}\".trusted, SELECT, INSERT, UPDATE ON \"{namespace}\".mark and \"{namespace}\".guarded TO the account"
        )),
        Operation::Adopt => on(&format!("SELECT, INSERT, UPDATE ON \"{namespace}\".trusted TO the account")),
        _ => on(&format!(
            "SELECT, INSERT, UPDATE, DELETE ON \"{namespace}\".meta, \"{namespace}\".lease and \"{namespace}\".register TO the account"
        )),
    }
}
