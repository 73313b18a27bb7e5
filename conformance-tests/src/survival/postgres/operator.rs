//! What an operator does to one PostgreSQL: empties a table, drops the schema, restores a backup in place.

use super::one::{One, SINGLE, TTL};
use super::{HOUR_S, is_anew, move_clock, pid, started, value};
use crate::survival::NAMESPACE;
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing};
use lease_servers::{Backup, postgres_query};

pub(super) static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "truncated",
        means: "somebody empties the table of leases",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: |one, _| truncate(one),
    },
    Fault {
        id: "truncated-clock-behind",
        means: "somebody empties the table of leases, and the server's clock is an hour behind",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: nothing,
        make: |one, _| {
            let behind = move_clock(&one.server, -HOUR_S)?;
            Ok(truncate(one)?.with(behind))
        },
    },
    Fault {
        id: "schema-dropped",
        means: "somebody drops the schema with all its tables",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: nothing,
        make: drop_schema,
    },
    Fault {
        id: "restore",
        means: "a base backup from before the grants is put in the place of the data",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: nothing,
        before: back_up,
        make: restore,
    },
    Fault {
        id: "restore-clock-behind",
        means: "a base backup from before the grants is put in the place of the data, and the clock is an hour behind",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: back_up,
        make: |one, moment| {
            let behind = move_clock(&one.server, -HOUR_S)?;
            Ok(restore(one, moment)?.with(behind))
        },
    },
];

/// Rows may be there again at once, since B asks all the time; but the table has another file.
fn truncate(one: &One) -> Result<Witness, Trouble> {
    let file = format!("SELECT pg_relation_filenode('{NAMESPACE}.lease')");
    let rows = postgres_query(&one.server, &format!("SELECT count(*) FROM {NAMESPACE}.lease"))?;
    let before = postgres_query(&one.server, &file)?;
    postgres_query(&one.server, &format!("TRUNCATE {NAMESPACE}.lease"))?;
    let after = postgres_query(&one.server, &file)?;
    if rows == "0" || after == before {
        return Err(Trouble::NotShown(format!("{rows} rows before; the table's file is {before}, then {after}")));
    }
    Ok(Witness::of("rows_before", rows).and("file_before", before).and("file_after", after))
}

/// It may be there again at once, as another one.
fn drop_schema(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let id = format!("SELECT oid FROM pg_namespace WHERE nspname = '{NAMESPACE}'");
    let incarnation = format!("SELECT incarnation FROM {NAMESPACE}.meta");
    let (before, old) = (postgres_query(&one.server, &id)?, postgres_query(&one.server, &incarnation)?);
    postgres_query(&one.server, &format!("DROP SCHEMA {NAMESPACE} CASCADE"))?;
    let after = postgres_query(&one.server, &id)?;
    if before.is_empty() || after == before {
        return Err(Trouble::NotShown(format!("the schema's id is {before}, then {after}")));
    }
    let after = if after.is_empty() { "none".to_owned() } else { after };
    Ok(Witness::of("schema_before", before).and("schema_after", after).and("incarnation_before", old))
}

fn back_up(one: &mut One) -> Result<(), Trouble> {
    one.backup = Some(Backup::of(&one.server)?);
    // What is written after the backup is not there once it is restored.
    Ok(postgres_query(&one.server, "CREATE TABLE written_after_the_backup ()").map(drop)?)
}

fn restore(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let backup = one.backup.take().ok_or_else(|| Trouble::Failed("there is no backup".to_owned()))?;
    let before = (pid(&one.server)?, started(&one.server)?);
    let granted = value(&one.server)?;
    backup.restore_to(&mut one.server)?;
    let left = postgres_query(&one.server, "SELECT to_regclass('written_after_the_backup') IS NULL")?;
    if left != "t" {
        return Err(Trouble::NotShown("a table that was made after the backup is there".to_owned()));
    }
    Ok(is_anew(&one.server, (before.0, &before.1))?
        .and("table_made_after_the_backup", "gone")
        .and("a_value_before", granted))
}
