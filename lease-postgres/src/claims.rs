//! What the server's settings make true, and what is therefore declared.

use crate::config::PostgresConfig;
use crate::error::of_statement;
use lease_core::{Claim, Claims, LeaseError, Limits, Operation, Ttl};
use sqlx::postgres::PgConnection;
use std::time::Duration;

/// The settings of the server, as they were read when the latest connection was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) server_version: String,
    /// What was committed is on disk: `fsync`, `full_page_writes` and this session's `synchronous_commit`.
    durable: bool,
    /// No table is UNLOGGED.
    pub(crate) logged: bool,
}

impl Facts {
    fn survives_restart(&self) -> bool {
        self.durable && self.logged
    }

    pub(crate) fn lease_claims(&self) -> Claims {
        Claims::of(&[
            Claim::FencingToken,
            Claim::MintsAboveFloor,
            Claim::NativeFenceLiveOwner,
            Claim::CrossProcess,
            Claim::ListByPrefix,
            Claim::IdleNamesForgotten,
        ])
        .and_if(self.survives_restart(), Claim::LeaseSurvivesRestart)
        .and_if(self.survives_restart(), Claim::TokenSurvivesRestart)
    }

    pub(crate) fn guard_claims(&self) -> Claims {
        Claims::of(&[Claim::RefusalUncommittable, Claim::MarkRollsBack])
            .and_if(self.survives_restart(), Claim::MarkSurvivesRestart)
    }
}

/// Timestamps end in the year 294276, so that 100 years from now is a valid one for long.
pub(crate) fn limits(config: &PostgresConfig) -> Limits {
    Limits::new(Duration::from_millis(1), Ttl::MAX, Duration::from_millis(1))
        .with_call_timeout(config.options.call_timeout)
}

const SETTINGS: &str = "
SELECT current_setting('server_version'),
       current_setting('server_version_num')::int4,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::bool,
       current_setting('server_encoding'),
       current_setting('fsync')::bool AND current_setting('full_page_writes')::bool,
       current_setting('synchronous_commit'),
       current_setting('default_transaction_isolation'),
       (extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint";

/// Reads the settings on a new connection.
///
/// # Errors
/// [`LeaseError::NotSetUp`] when this server can't grant, or did not take this session's settings.
pub(crate) async fn read(connection: &mut PgConnection, config: &PostgresConfig) -> Result<Facts, LeaseError> {
    type Row = (String, i32, bool, String, bool, String, String, i64);
    let row: Row = sqlx::query_as(SETTINGS)
        .fetch_one(connection)
        .await
        .map_err(|error| of_statement(Operation::Connect, &config.options.namespace, error))?;
    let (server_version, version, read_only, encoding, synced, synchronous_commit, isolation, lock_timeout) = row;
    let refuse =
        |reason: String, advice: &str| Err(LeaseError::NotSetUp { reason, advice: advice.into(), source: None });
    if version < 130_000 {
        return refuse(format!("PostgreSQL {server_version} is too old"), "use version 13 or later");
    }
    if read_only {
        return refuse("this server is a standby, or read-only".into(), "connect to the primary server");
    }
    if !matches!(encoding.as_str(), "UTF8" | "SQL_ASCII") {
        return refuse(
            format!("the database has the encoding {encoding}, which cannot hold every name"),
            "use a database with the encoding UTF8",
        );
    }
    let wanted_ms = config.lock_timeout().as_millis().max(1);
    let settings_taken = synchronous_commit == "on"
        && isolation == "read committed"
        && u128::try_from(lock_timeout).is_ok_and(|ms| ms == wanted_ms);
    if !settings_taken {
        return refuse(
            "the session did not take this client's settings; a pooler in between drops them".into(),
            "connect to the server itself, or through a pooler in session mode that passes `options` on",
        );
    }
    Ok(Facts { server_version, durable: synced, logged: false })
}
