//! The plain alternatives to a guard, as a user has them: the crate's helpers in an own transaction, on an own connection.

use super::{Own, begin, raw};
use crate::subject::Unfenced;
use lease_core::plain::{IdempotencyKey, Once, OnceError, Version, VersionError};
use lease_core::{LeaseError, Namespace, Operation, ResourceName};
use lease_postgres::{PostgresOnce, PostgresVersions};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;
use std::time::Duration;

/// Longer than any run.
const RETENTION: Duration = Duration::from_hours(24);

/// Data that are written without a token. It connects for each call.
#[derive(Debug)]
pub(in super::super) struct Tokenless {
    url: String,
}

impl Tokenless {
    pub(in super::super) fn new(url: &str) -> Self {
        Self { url: url.to_owned() }
    }

    async fn open(&self) -> Result<Open, LeaseError> {
        let own = Own::new(&self.url)?;
        let namespace = Namespace::parse(&own.namespace)?;
        Ok(Open {
            connection: own.connect().await?,
            versions: PostgresVersions::new(&namespace)?,
            once: PostgresOnce::new(&namespace, RETENTION)?,
            table: format!("\"{namespace}\".suite_data"),
        })
    }

    /// Removes what [`set_up`](Unfenced::set_up) has created, but for the schema.
    pub(in super::super) async fn purge(&self) -> Result<(), LeaseError> {
        let own = Own::new(&self.url)?;
        let s = &own.namespace;
        let sql = format!(
            "DROP TABLE IF EXISTS \"{s}\".suite_data, \"{s}\".once, \"{s}\".version;
             DROP FUNCTION IF EXISTS \"{s}\".refuse_once(), \"{s}\".refuse_version(text)"
        );
        run(&mut own.connect().await?, sql).await
    }
}

struct Open {
    connection: PgConnection,
    versions: PostgresVersions,
    once: PostgresOnce,
    table: String,
}

async fn run(connection: &mut PgConnection, sql: String) -> Result<(), LeaseError> {
    raw::bounded(Operation::Connect, sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection)).await.map(drop)
}

/// The caller's own statement; `value` is the row's new value.
async fn put(
    connection: &mut PgConnection,
    table: &str,
    value: &str,
    resource: &ResourceName,
    text: &str,
) -> Result<(), LeaseError> {
    let sql = format!(
        "INSERT INTO {table} AS t (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = {value}"
    );
    let put = sqlx::query(AssertSqlSafe(sql)).bind(resource.as_str()).bind(text).execute(connection);
    raw::bounded(Operation::GuardedWrite, put).await.map(drop)
}

const REPLACED: &str = "excluded.value";
const ADDED: &str = "t.value || excluded.value";

#[async_trait::async_trait]
impl Unfenced for Tokenless {
    async fn set_up(&self) -> Result<(), LeaseError> {
        let Open { mut connection, versions, once, table } = self.open().await?;
        versions.set_up(&mut connection).await?;
        once.set_up(&mut connection).await?;
        run(&mut connection, format!("CREATE TABLE IF NOT EXISTS {table} (name text PRIMARY KEY, value text NOT NULL)"))
            .await
    }

    async fn read(&self, resource: &ResourceName) -> Result<(Version, String), LeaseError> {
        let Open { mut connection, versions, table, .. } = self.open().await?;
        let version = versions.read(&mut connection, resource).await?;
        let sql = AssertSqlSafe(format!("SELECT value FROM {table} WHERE name = $1"));
        let read = sqlx::query_scalar(sql).bind(resource.as_str()).fetch_optional(&mut connection);
        let text: Option<String> = raw::bounded(Operation::Read, read).await?;
        Ok((version, text.unwrap_or_default()))
    }

    async fn write_at(&self, resource: &ResourceName, read: Version, text: &str) -> Result<bool, LeaseError> {
        let Open { mut connection, versions, table, .. } = self.open().await?;
        let mut transaction = begin(&mut connection).await?;
        match versions.advance(&mut transaction, resource, read).await {
            Ok(_) => {}
            Err(VersionError::Store(error)) => return Err(error),
            // `VersionError::Changed`; whatever else there may be one day is no success either.
            Err(_) => return Ok(false),
        }
        put(&mut transaction, &table, REPLACED, resource, text).await?;
        raw::bounded(Operation::GuardedWrite, transaction.commit()).await?;
        Ok(true)
    }

    async fn add_once(
        &self,
        resource: &ResourceName,
        key: &IdempotencyKey,
        text: &str,
    ) -> Result<Option<Once>, LeaseError> {
        let Open { mut connection, once, table, .. } = self.open().await?;
        let mut transaction = begin(&mut connection).await?;
        let answer = match once.claim(&mut transaction, key, text.as_bytes()).await {
            Ok(answer) => Some(answer),
            Err(OnceError::Store(error)) => return Err(error),
            // `OnceError::Conflict`; whatever else there may be one day is no success either.
            Err(_) => None,
        };
        if answer == Some(Once::First) {
            put(&mut transaction, &table, ADDED, resource, text).await?;
        }
        raw::bounded(Operation::GuardedWrite, transaction.commit()).await?;
        Ok(answer)
    }

    async fn add(&self, resource: &ResourceName, text: &str) -> Result<(), LeaseError> {
        let Open { mut connection, table, .. } = self.open().await?;
        put(&mut connection, &table, ADDED, resource, text).await
    }
}
