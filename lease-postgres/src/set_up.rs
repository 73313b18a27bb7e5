//! The tables: how they are created, and whether what is there is what this crate needs.

use crate::error::of_statement;
use crate::keys;
use crate::wire::Statements;
use lease_core::{GrantId, LeaseError, Namespace, Operation};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _, SqlStr};
use std::time::Duration;

/// Text columns have the collation `C`: equality and order are those of the bytes, whatever the database's default is. A table `lease` that has to
/// be created while `meta` is there was dropped, and with it the last values: that history is over. What was ended by force is `released` too, so
/// that only who asks for the cause has to look at `forced`.
pub(crate) const LEASE_TABLES: &str = "
CREATE TABLE IF NOT EXISTS {s}.meta (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    incarnation text COLLATE \"C\" NOT NULL,
    floor bigint NOT NULL DEFAULT 0
);
DO $$ BEGIN
    IF pg_catalog.to_regclass('{s}.lease') IS NULL THEN DELETE FROM {s}.meta; END IF;
END $$;
CREATE TABLE IF NOT EXISTS {s}.lease (
    name text COLLATE \"C\" PRIMARY KEY,
    owner text COLLATE \"C\" NOT NULL,
    grant_id text COLLATE \"C\" NOT NULL,
    holder text COLLATE \"C\" NOT NULL,
    value bigint NOT NULL,
    incarnation text COLLATE \"C\" NOT NULL,
    granted_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    released boolean NOT NULL DEFAULT false,
    forced boolean NOT NULL DEFAULT false,
    spent jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 70);
CREATE TABLE IF NOT EXISTS {s}.register (
    name text COLLATE \"C\" PRIMARY KEY,
    value text COLLATE \"C\" NOT NULL
);
CREATE OR REPLACE FUNCTION {s}.refuse_fence() RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'LH001', MESSAGE = 'the fence refused this transaction: the grant has ended';
END $$;
";

/// `refuse_guard` reads what the token was compared with and raises: after that the transaction can't be committed.
pub(crate) const GUARD_TABLES: &str = "
CREATE TABLE IF NOT EXISTS {s}.trusted (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    authority text COLLATE \"C\" NOT NULL
);
CREATE TABLE IF NOT EXISTS {s}.mark (
    name text COLLATE \"C\" NOT NULL,
    authority text COLLATE \"C\" NOT NULL,
    value bigint NOT NULL,
    grant_id text COLLATE \"C\" NOT NULL,
    PRIMARY KEY (name, authority)
) WITH (fillfactor = 70);
CREATE TABLE IF NOT EXISTS {s}.guarded (
    name text COLLATE \"C\" PRIMARY KEY,
    value text COLLATE \"C\" NOT NULL
);
CREATE OR REPLACE FUNCTION {s}.refuse_guard(resource text) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    found text;
BEGIN
    SELECT concat_ws('|', coalesce(t.authority, ''), coalesce(m.value::text, ''), coalesce(m.grant_id, '')) INTO found
      FROM (SELECT) one
      LEFT JOIN {s}.trusted t ON true
      LEFT JOIN {s}.mark m ON m.name = resource AND m.authority = t.authority;
    RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = 'the guard refused this transaction: its token is not admitted', DETAIL = found;
END $$;
";

/// Which half of the tables an instance needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Lease,
    Guard,
}

struct Table {
    name: &'static str,
    key: &'static str,
    columns: &'static [&'static str],
}

impl Part {
    fn tables(self) -> &'static [Table] {
        match self {
            Self::Lease => &[
                Table { name: keys::META, key: "id", columns: &["id boolean", "incarnation text C", "floor bigint"] },
                Table {
                    name: keys::LEASE,
                    key: "name",
                    columns: &[
                        "name text C",
                        "owner text C",
                        "grant_id text C",
                        "holder text C",
                        "value bigint",
                        "incarnation text C",
                        "granted_at timestamp with time zone",
                        "renewed_at timestamp with time zone",
                        "expires_at timestamp with time zone",
                        "released boolean",
                        "forced boolean",
                        "spent jsonb",
                    ],
                },
                Table { name: keys::REGISTER, key: "name", columns: &["name text C", "value text C"] },
            ],
            Self::Guard => &[
                Table { name: keys::TRUSTED, key: "id", columns: &["id boolean", "authority text C"] },
                Table {
                    name: keys::MARK,
                    key: "name authority",
                    columns: &["name text C", "authority text C", "value bigint", "grant_id text C"],
                },
                Table { name: keys::GUARDED, key: "name", columns: &["name text C", "value text C"] },
            ],
        }
    }

    /// Its tables and its function.
    pub(crate) fn objects(self) -> ([&'static str; 3], &'static str) {
        let tables = match self {
            Self::Lease => [keys::META, keys::LEASE, keys::REGISTER],
            Self::Guard => [keys::TRUSTED, keys::MARK, keys::GUARDED],
        };
        (tables, self.function())
    }

    /// The function that raises, so that a refusal can't be committed.
    fn function(self) -> &'static str {
        match self {
            Self::Lease => "refuse_fence",
            Self::Guard => "refuse_guard",
        }
    }

    fn script(self, statements: &Statements) -> SqlStr {
        match self {
            Self::Lease => statements.create_lease_tables.clone(),
            Self::Guard => statements.create_guard_tables.clone(),
        }
    }
}

/// What is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All of it; `logged` says that no table is UNLOGGED, so that it survives a crash.
    Ready { logged: bool },
    /// Nothing, or only a part.
    Missing { schema: bool },
}

const TABLES: &str = "
SELECT c.relname::text, c.relpersistence::text = 'p',
       (SELECT array_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod),
                                   (SELECT co.collname FROM pg_catalog.pg_collation co WHERE co.oid = a.attcollation)))
          FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       coalesce((SELECT string_agg(a.attname::text, ' ' ORDER BY k.position)
          FROM pg_catalog.pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, position)
          JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
         WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid), '')
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')";

const SCHEMA: &str = "
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1),
       EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
                WHERE n.nspname = $1 AND p.proname = $2)";

/// Looks at the tables of `part`, without needing any privilege on them.
///
/// # Errors
/// [`LeaseError::NotSetUp`] when a table is there and lacks what the statements rely on, the unique key above all.
pub(crate) async fn look(
    connection: &mut PgConnection,
    namespace: &Namespace,
    part: Part,
) -> Result<Found, LeaseError> {
    let failed = |error| of_statement(Operation::Connect, namespace, error);
    let rows: Vec<(String, bool, Vec<String>, String)> =
        sqlx::query_as(TABLES).bind(namespace.as_str()).fetch_all(&mut *connection).await.map_err(failed)?;
    let (schema, function): (bool, bool) = sqlx::query_as(SCHEMA)
        .bind(namespace.as_str())
        .bind(part.function())
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    let mut logged = true;
    let mut missing = !function;
    for table in part.tables() {
        let Some((_, is_logged, columns, key)) = rows.iter().find(|(name, ..)| name == table.name) else {
            missing = true;
            continue;
        };
        check(namespace, table, columns, key)?;
        logged &= is_logged;
    }
    Ok(if missing { Found::Missing { schema } } else { Found::Ready { logged } })
}

fn check(namespace: &Namespace, table: &Table, columns: &[String], key: &str) -> Result<(), LeaseError> {
    let refuse = |reason: String| {
        Err(LeaseError::NotSetUp {
            reason: format!("table \"{namespace}\".{} {reason}", table.name),
            advice: "move it away, or choose another namespace; this crate's migration creates what is needed".into(),
            source: None,
        })
    };
    if key != table.key {
        return refuse(format!("lacks the primary key ({}), on which exclusion rests", table.key.replace(' ', ", ")));
    }
    match table.columns.iter().find(|wanted| !columns.iter().any(|column| column == *wanted)) {
        Some(wanted) => refuse(format!("lacks the column `{wanted}` (name, type, collation)")),
        None => Ok(()),
    }
}

/// Creates what is missing, and begins the store's history, in one transaction. Any number of clients may do so at once: an advisory lock lets one after the
/// other in, and the later ones find it done.
pub(crate) async fn create(
    connection: &mut PgConnection,
    namespace: &Namespace,
    part: Part,
    statements: &Statements,
    limit: Duration,
) -> Result<(), LeaseError> {
    let failed = |error| of_statement(Operation::Connect, namespace, error);
    let limit_ms = limit.as_millis().max(1).to_string();
    let mut transaction = connection.begin().await.map_err(failed)?;
    // Many clients that begin together wait for one another here, so connecting has its own, longer limit.
    sqlx::query("SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $1, true)")
        .bind(limit_ms)
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('leasehold set-up ' || $1, 0))")
        .bind(namespace.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
    if let Found::Missing { schema } = look(&mut transaction, namespace, part).await? {
        if !schema {
            // Only when it is missing: IF NOT EXISTS asks for the privilege even when there is nothing to do.
            let create = format!("CREATE SCHEMA {}", keys::quoted_schema(namespace));
            transaction.execute(sqlx::AssertSqlSafe(create)).await.map_err(failed)?;
        }
        sqlx::raw_sql(part.script(statements)).execute(&mut *transaction).await.map_err(failed)?;
        if part == Part::Lease {
            sqlx::query(statements.begin_history.clone())
                .bind(GrantId::random()?.to_hex())
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
        }
    }
    transaction.commit().await.map_err(failed)
}

/// The whole migration of a part as text, for `psql`.
pub(crate) fn migration(namespace: &Namespace, template: &str) -> String {
    let schema = keys::quoted_schema(namespace);
    format!("CREATE SCHEMA IF NOT EXISTS {schema};{}", template.replace("{s}", &schema))
}
