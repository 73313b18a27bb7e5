//! The statements of the guarded destination as text, and what their rows mean. See `wire` for how they are run.
//!
//! | | |
//! |---|---|
//! | `?1` | resource |
//! | `?2` | the token's authority |
//! | `?3` | its value |
//! | `?4` | its grant id |
//! | `?5` | the register's new value |

use crate::schema::Table;
use crate::wire::Sql;
use lease_core::{GrantId, LeaseError, Namespace, ResourceName};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

/// The statements of the guard, built once per instance.
#[derive(Clone, Debug)]
pub(crate) struct GuardStatements {
    pub(crate) tables: Vec<Table>,
    pub(crate) adopt: Sql,
    /// Raises the mark inside an open transaction.
    pub(crate) admit: Sql,
    pub(crate) seal: Sql,
    pub(crate) write: Sql,
    pub(crate) read: Sql,
}

impl GuardStatements {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        let ns = namespace.as_str();
        let raise = format!(
            "INSERT INTO {ns}_mark (resource, authority, value, grant_id)
             SELECT ?1, ?2, ?3, ?4 FROM {ns}_guard WHERE authority = ?2
             ON CONFLICT (resource, authority) DO UPDATE SET value = excluded.value, grant_id = excluded.grant_id
             WHERE excluded.value > {ns}_mark.value"
        );
        let look = format!(
            "SELECT g.authority AS trusted, m.value AS mark, m.grant_id,
               (SELECT value FROM {ns}_register WHERE resource = ?1) AS register
             FROM (SELECT 1) LEFT JOIN {ns}_guard g
             LEFT JOIN {ns}_mark m ON m.resource = ?1 AND m.authority = g.authority"
        );
        let write = format!(
            "INSERT INTO {ns}_register (resource, value)
             SELECT ?1, ?5 FROM {ns}_guard g JOIN {ns}_mark m ON m.authority = g.authority
             WHERE m.resource = ?1 AND m.authority = ?2 AND m.value = ?3 AND m.grant_id = ?4
             ON CONFLICT (resource) DO UPDATE SET value = excluded.value"
        );
        Self {
            tables: tables(ns),
            // ?1: the expected authority, or NULL; ?2: the new one
            adopt: format!(
                "SELECT (SELECT authority FROM {ns}_guard) AS trusted;
                 INSERT INTO {ns}_guard (one, authority)
                 SELECT 1, ?2 WHERE (SELECT authority FROM {ns}_guard) IS ?1
                 ON CONFLICT (one) DO UPDATE SET authority = excluded.authority;
                 COMMIT"
            )
            .into(),
            admit: format!("{raise}; {look}").into(),
            seal: format!("{raise}; {look}; COMMIT").into(),
            write: format!("{raise}; {write}; {look}; COMMIT").into(),
            read: look.into(),
        }
    }

    /// The same with each `(from, to)` replaced.
    #[cfg(feature = "testing")]
    pub(crate) fn edited(mut self, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let mut texts = [&mut self.adopt, &mut self.admit, &mut self.seal, &mut self.write, &mut self.read];
        crate::wire::edit(&mut texts, edits)?;
        Ok(self)
    }
}

fn tables(ns: &str) -> Vec<Table> {
    vec![
        // One row: the authority that is trusted.
        Table::new(ns, "guard", "(one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1), authority TEXT NOT NULL) STRICT"),
        // The highest value admitted. By authority too, so that one that is adopted again finds its old marks.
        Table::new(
            ns,
            "mark",
            "(resource TEXT NOT NULL, authority TEXT NOT NULL, value INTEGER NOT NULL, grant_id TEXT NOT NULL, \
             PRIMARY KEY (resource, authority)) STRICT, WITHOUT ROWID",
        ),
        Table::new(ns, "register", "(resource TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"),
    ]
}

/// The trusted authority.
pub(crate) fn decode_trusted(row: &SqliteRow) -> Result<Option<String>, sqlx::Error> {
    row.try_get("trusted")
}

/// The mark under the trusted authority.
pub(crate) fn decode_mark(
    row: &SqliteRow,
    resource: &ResourceName,
) -> Result<Result<Option<(u64, GrantId)>, LeaseError>, sqlx::Error> {
    let Some(value) = row.try_get::<Option<i64>, _>("mark")? else {
        return Ok(Ok(None));
    };
    let grant = row.try_get::<String, _>("grant_id")?;
    let mark = u64::try_from(value).ok().zip(GrantId::from_hex(&grant));
    Ok(mark
        .map(Some)
        .ok_or_else(|| LeaseError::ForeignData { resource: resource.clone(), reason: "the mark is damaged".into() }))
}
