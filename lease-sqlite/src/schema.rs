//! The tables: created race-free, and refused when they have another shape.

use crate::connection::wait_if_busy;
use crate::error;
use lease_core::{LeaseError, Operation};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};
use tokio::time::Instant;

/// A table of this crate: its name and everything after the name in its `CREATE TABLE`.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    columns: String,
}

impl Table {
    pub(crate) fn new(namespace: &str, suffix: &str, columns: &str) -> Self {
        Self { name: format!("{namespace}_{suffix}"), columns: columns.into() }
    }

    /// The text under which SQLite itself keeps the table.
    fn text(&self) -> String {
        format!("CREATE TABLE {} {}", self.name, self.columns)
    }
}

/// Creates what is missing, in one transaction, and then checks the shape of all.
///
/// The keys and checks of these tables carry the exclusion: a table by the same name without them, from another program or an older
/// release, would let two workers in. So the text must be the very same.
pub(crate) async fn ensure(
    connection: &mut SqliteConnection,
    tables: &[Table],
    patience: Instant,
) -> Result<(), LeaseError> {
    let map = |e| error::of_connect(e, "reading the tables");
    let mut stored = stored(connection, tables).await.map_err(map)?;
    if stored.iter().any(Option::is_none) {
        let mut text = String::from("BEGIN IMMEDIATE;");
        for table in tables {
            text.push_str(&table.text().replacen("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1));
            text.push(';');
        }
        text.push_str("COMMIT");
        // A busy `BEGIN` is the whole of what was tried.
        while let Err(e) = sqlx::raw_sql(AssertSqlSafe(text.clone())).execute(&mut *connection).await {
            wait_if_busy(e, "creating the tables", patience).await?;
        }
        stored = self::stored(connection, tables).await.map_err(map)?;
    }
    for (table, stored) in tables.iter().zip(stored) {
        if stored.as_deref() != Some(table.text().as_str()) {
            return Err(LeaseError::NotSetUp {
                reason: format!(
                    "`{}` in this file has another shape than this release creates, so its keys can't be relied on",
                    table.name
                ),
                advice: "choose another namespace, or remove it while nobody holds a lease, so that it is created anew"
                    .into(),
                source: None,
            });
        }
    }
    Ok(())
}

/// The statement that removes the tables.
pub(crate) fn drop_text(tables: &[Table]) -> String {
    let mut steps: Vec<_> = tables.iter().map(|t| format!("DROP TABLE IF EXISTS {};", t.name)).collect();
    steps.push("COMMIT".into());
    steps.concat()
}

async fn stored(connection: &mut SqliteConnection, tables: &[Table]) -> Result<Vec<Option<String>>, sqlx::Error> {
    let mut found = Vec::with_capacity(tables.len());
    for table in tables {
        // An index or a view by that name has another text, and is refused for it.
        let row = sqlx::query("SELECT coalesce(sql, type) FROM sqlite_schema WHERE name = ?1")
            .bind(&table.name)
            .fetch_optional(&mut *connection)
            .await?;
        found.push(row.map(|row| row.try_get(0)).transpose()?);
    }
    Ok(found)
}

/// Names whether the error says that a table is gone: removed behind our back, or by `purge`. Then nothing was executed.
pub(crate) fn is_missing_table(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|e| e.message().starts_with("no such table: "))
}

/// The error of an operation whose tables vanished again while they were created anew.
pub(crate) fn vanished(operation: Operation) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: "its tables were removed meanwhile".into(),
        effect: lease_core::Effect::None,
        advice: lease_core::Advice::TryAgain,
        source: None,
    }
}
