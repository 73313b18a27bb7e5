//! The statements of the lease store as text, and what their rows mean.
//!
//! Every statement that writes runs after `BEGIN IMMEDIATE` and ends in `COMMIT`: the write lock is taken first, then the time is read,
//! then one text does the whole step. Its parameters have the same numbers everywhere:
//!
//! | | |
//! |---|---|
//! | `?1` | resource |
//! | `?2` | owner token; for `force` the fencing value |
//! | `?3` | boot id |
//! | `?4` | boot clock, ns, read under the write lock |
//! | `?5` | granted TTL, ns |
//! | `?6` … | named at each statement |
//!
//! A statement that leaves a number out costs one: the client takes the gap for a parameter of its own, counts those over the whole text, and
//! leaves the rest NULL when there are more of them than arguments. A test counts them.

use crate::connection::duration_ns;
use crate::schema::Table;
use crate::sweep::{survey, sweep};
use lease_core::{Authority, ConnectOptions, Lease, LeaseError, Listed, LossReason, Namespace, ResourceName};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use std::sync::Arc;
use std::time::Duration;

/// The text of a statement.
pub(crate) type Sql = Arc<str>;

/// The statements of the lease store, built once per instance.
#[derive(Clone, Debug)]
pub(crate) struct LeaseStatements {
    pub(crate) tables: Vec<Table>,
    pub(crate) acquire: Sql,
    pub(crate) renew: Sql,
    pub(crate) release: Sql,
    pub(crate) abandon: Sql,
    pub(crate) force: Sql,
    pub(crate) look: Sql,
    pub(crate) list: Sql,
    pub(crate) survey: Sql,
    pub(crate) sweep: Sql,
    pub(crate) fenced_write: Sql,
    pub(crate) register: Sql,
}

/// The condition under which a record is a live grant.
const LIVE: &str = "NOT released AND boot = ?3 AND expires > ?4";

impl LeaseStatements {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        let ns = namespace.as_str();
        let look = look(ns);
        let store = ensure_store(ns);
        let spend = spend(ns);
        Self {
            tables: tables(ns),
            acquire: acquire(ns, &store, &look),
            // ?6: the fencing value, a second line: an owner token is of one grant only
            renew: format!(
                "UPDATE {ns}_lease SET expires = max(expires, ?4 + ?5), renewed = ?4
                 WHERE resource = ?1 AND owner = ?2 AND value = ?6 AND {LIVE};
                 {look}; COMMIT"
            )
            .into(),
            // ?6: until when the owner is remembered as spent, or NULL
            release: format!(
                "{spend};
                 UPDATE {ns}_lease SET released = 1, expires = ?4 WHERE resource = ?1 AND owner = ?2 AND {LIVE};
                 {look}; COMMIT"
            )
            .into(),
            abandon: format!(
                "{spend};
                 UPDATE {ns}_lease SET released = 1, expires = ?4 WHERE resource = ?1 AND owner = ?2 AND {LIVE};
                 COMMIT"
            )
            .into(),
            force: force(ns),
            // ?6: the first text after the prefix, or NULL; ?7: how many; ?8: whether the page begins after ?1, not at it
            list: format!(
                "SELECT resource, holder, value, expires - ?4, ?4 - granted, ?4 - renewed FROM {ns}_lease
                 WHERE resource >= ?1 AND NOT (?8 AND resource = ?1) AND (?6 IS NULL OR resource < ?6) AND {LIVE}
                 ORDER BY resource LIMIT ?7"
            )
            .into(),
            survey: survey(ns),
            sweep: sweep(ns, &store),
            // ?5: the fencing value; ?6: the register's value
            fenced_write: format!(
                "UPDATE {ns}_lease SET register = ?6 WHERE resource = ?1 AND owner = ?2 AND value = ?5 AND {LIVE};
                 SELECT changes(); COMMIT"
            )
            .into(),
            register: format!("SELECT register FROM {ns}_lease WHERE resource = ?1").into(),
            look: look.into(),
        }
    }

    #[cfg(any(test, feature = "testing"))]
    fn texts(&mut self) -> Vec<&mut Sql> {
        vec![
            &mut self.acquire,
            &mut self.renew,
            &mut self.release,
            &mut self.abandon,
            &mut self.force,
            &mut self.look,
            &mut self.list,
            &mut self.survey,
            &mut self.sweep,
            &mut self.fenced_write,
            &mut self.register,
        ]
    }

    /// The same with each `(from, to)` replaced.
    #[cfg(feature = "testing")]
    pub(crate) fn edited(mut self, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        edit(&mut self.texts(), edits)?;
        Ok(self)
    }
}

/// Replaces each `(from, to)` in the texts; one that occurs nowhere is an error, so that a stale edit is loud.
#[cfg(feature = "testing")]
pub(crate) fn edit(texts: &mut [&mut Sql], edits: &[(&str, &str)]) -> Result<(), LeaseError> {
    for (from, to) in edits {
        let mut found = false;
        for text in texts.iter_mut().filter(|text| text.contains(from)) {
            found = true;
            **text = text.replace(from, to).into();
        }
        if !found {
            return Err(LeaseError::InvalidConfig { reason: format!("the edit of `{from}` occurs in no statement") });
        }
    }
    Ok(())
}

fn tables(ns: &str) -> Vec<Table> {
    vec![
        // One row: which history this is, and a value that no forgotten name has passed.
        Table::new(
            ns,
            "store",
            "(one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1), incarnation TEXT NOT NULL, floor INTEGER NOT NULL) STRICT",
        ),
        // The latest grant of each name. It stays after the grant has ended: as the last value, and so that a late repeat of
        // its attempt finds that it is over. `expires`, `granted` and `renewed` are on the clock of `boot`. What was ended by force is
        // `released` too, so that only who asks for the cause has to look at `forced`.
        Table::new(
            ns,
            "lease",
            "(resource TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, grant_id TEXT NOT NULL, holder TEXT NOT NULL, \
             value INTEGER NOT NULL, boot TEXT NOT NULL, expires INTEGER NOT NULL, granted INTEGER NOT NULL, \
             renewed INTEGER NOT NULL, released INTEGER NOT NULL, forced INTEGER NOT NULL, register TEXT) STRICT, WITHOUT ROWID",
        ),
        // Attempts that must make no grant any more, until when.
        Table::new(
            ns,
            "spent",
            "(owner TEXT NOT NULL PRIMARY KEY, boot TEXT NOT NULL, until INTEGER NOT NULL) STRICT, WITHOUT ROWID",
        ),
    ]
}

/// Begins a new history where none is: a new file, or one whose row was removed.
fn ensure_store(ns: &str) -> String {
    format!(
        "INSERT INTO {ns}_store (one, incarnation, floor) SELECT 1, lower(hex(randomblob(8))), 0
         WHERE NOT EXISTS (SELECT 1 FROM {ns}_store)"
    )
}

/// `?6`: wall clock in µs; `?7`: grant id; `?8`: holder; `?9`: the boot instant after which the grant could not count any more; `?10`: the floor.
/// An owner whose grant has expired is remembered as spent, as by `force`: the record says of the newer one from here on that its attempt is over.
fn acquire(ns: &str, store: &str, look: &str) -> Sql {
    let last = format!("coalesce((SELECT value FROM {ns}_lease WHERE resource = ?1), 0)");
    let (max, kept) = (i64::MAX, duration_ns(SPENT_AT_LEAST));
    format!(
        "{store};
         INSERT INTO {ns}_spent (owner, boot, until)
         SELECT owner, ?3, ?4 + min(max(2 * (expires - renewed), {kept}), {max} - ?4) FROM {ns}_lease
         WHERE resource = ?1 AND owner <> ?2 AND NOT released AND boot = ?3 AND expires <= ?4
         ON CONFLICT (owner) DO UPDATE SET boot = excluded.boot, until = excluded.until;
         INSERT INTO {ns}_lease (resource, owner, grant_id, holder, value, boot, expires, granted, renewed, released,
           forced)
         SELECT ?1, ?2, ?7, ?8, max({last} + 1, floor + 1, ?10 + 1, ?6), ?3, ?4 + ?5, ?4, ?4, 0, 0
         FROM {ns}_store
         WHERE ?4 < ?9 AND {last} < {max} AND floor < {max}
           AND NOT EXISTS (SELECT 1 FROM {ns}_spent WHERE owner = ?2 AND boot = ?3 AND until > ?4)
         ON CONFLICT (resource) DO UPDATE SET owner = excluded.owner, grant_id = excluded.grant_id,
           holder = excluded.holder, value = excluded.value, boot = excluded.boot, expires = excluded.expires,
           granted = excluded.granted, renewed = excluded.renewed, released = 0, forced = 0
         WHERE {ns}_lease.owner <> excluded.owner
           AND ({ns}_lease.released OR {ns}_lease.boot <> ?3 OR {ns}_lease.expires <= ?4);
         {look}; COMMIT"
    )
    .into()
}

/// What is there now: of the resource, and of the owner's attempt.
fn look(ns: &str) -> String {
    format!(
        "SELECT s.incarnation, s.floor, l.owner = ?2 AS mine, l.released, l.forced, l.boot = ?3 AND l.expires > ?4 AS running,
           l.value, l.expires - ?4 AS remaining, l.holder, ?4 - l.granted AS granted_ago, ?4 - l.renewed AS renewed_ago,
           EXISTS (SELECT 1 FROM {ns}_spent WHERE owner = ?2 AND boot = ?3 AND until > ?4) AS spent
         FROM (SELECT 1) LEFT JOIN {ns}_store s LEFT JOIN {ns}_lease l ON l.resource = ?1"
    )
}

/// Remembers the owner as spent until `?6`, unless that is NULL.
fn spend(ns: &str) -> String {
    let tidy = tidy(ns);
    format!(
        "{tidy};
         INSERT INTO {ns}_spent (owner, boot, until) SELECT ?2, ?3, ?6 WHERE ?6 IS NOT NULL
         ON CONFLICT (owner) DO UPDATE SET boot = excluded.boot, until = excluded.until"
    )
}

/// Drops some tombstones whose time is over.
fn tidy(ns: &str) -> String {
    format!(
        "DELETE FROM {ns}_spent WHERE owner IN (SELECT owner FROM {ns}_spent WHERE boot <> ?3 OR until <= ?4 LIMIT 100)"
    )
}

/// Ends the live grant with the value `?2`, whoever owns it. The owner is remembered as spent for as long as `abandon` does it; the record knows
/// the granted TTL, as the time from the latest renewal to the expiry.
fn force(ns: &str) -> Sql {
    let tidy = tidy(ns);
    // A sum above the largest integer would become a floating-point number, which the column refuses.
    let (max, least) = (i64::MAX, duration_ns(SPENT_AT_LEAST));
    format!(
        "{tidy};
         INSERT INTO {ns}_spent (owner, boot, until)
         SELECT owner, ?3, ?4 + min(max(2 * (expires - renewed), {least}), {max} - ?4) FROM {ns}_lease
         WHERE resource = ?1 AND value = ?2 AND {LIVE}
         ON CONFLICT (owner) DO UPDATE SET boot = excluded.boot, until = excluded.until;
         UPDATE {ns}_lease SET released = 1, forced = 1, expires = ?4 WHERE resource = ?1 AND value = ?2 AND {LIVE};
         SELECT changes() AS ended, (SELECT value FROM {ns}_lease WHERE resource = ?1 AND {LIVE}) AS other;
         COMMIT"
    )
    .into()
}

/// How long the end of an attempt is remembered: longer than any request of it could still make a grant.
pub(crate) fn spent_for(granted_ttl: Duration) -> Duration {
    granted_ttl.saturating_mul(2).max(SPENT_AT_LEAST)
}

const SPENT_AT_LEAST: Duration = Duration::from_secs(10);

/// What a look found of the resource and of the attempt.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) incarnation: Option<String>,
    pub(crate) spent: bool,
    pub(crate) record: Option<Record>,
    floor: i64,
}

/// The latest grant of a resource.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) mine: bool,
    pub(crate) value: u64,
    pub(crate) remaining: Duration,
    /// What somebody did to end it.
    ended: Option<LossReason>,
    running: bool,
    holder: String,
    granted_ago: Duration,
    renewed_ago: Duration,
}

impl Found {
    pub(crate) fn decode(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let record = match row.try_get::<Option<i64>, _>("value")? {
            None => None,
            Some(value) => Some(Record {
                // NULL where no owner was given: then it is nobody's.
                mine: row.try_get::<Option<bool>, _>("mine")?.unwrap_or(false),
                value: u64::try_from(value).unwrap_or(0),
                remaining: nanos(row.try_get("remaining")?),
                ended: ended(row)?,
                running: row.try_get("running")?,
                holder: row.try_get("holder")?,
                granted_ago: nanos(row.try_get("granted_ago")?),
                renewed_ago: nanos(row.try_get("renewed_ago")?),
            }),
        };
        Ok(Self {
            incarnation: row.try_get("incarnation")?,
            spent: row.try_get("spent")?,
            record,
            floor: row.try_get::<Option<i64>, _>("floor")?.unwrap_or(0),
        })
    }

    /// The authority of the history that the row belongs to.
    pub(crate) fn authority(&self, options: &ConnectOptions) -> Result<Authority, LeaseError> {
        options.authority("sqlite", self.incarnation.as_deref().unwrap_or_default())
    }

    /// Why the grant of `lease` has ended; `None` while it is live.
    pub(crate) fn loss_of(&self, lease: &Lease) -> Option<LossReason> {
        let value = lease.token().map(lease_core::FencingToken::value);
        let another = self.record.as_ref().is_some_and(|record| Some(record.value) != value);
        if another { Some(LossReason::Superseded) } else { self.loss() }
    }

    /// Why the grant of the asking owner has ended; `None` while it is live.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        match &self.record {
            None => Some(LossReason::Gone),
            Some(record) if !record.mine => Some(LossReason::Superseded),
            Some(record) if record.ended.is_some() => record.ended,
            Some(record) if !record.running => Some(LossReason::Expired),
            Some(_) => None,
        }
    }

    /// The error that says that no larger value is left.
    pub(crate) fn out_of_range(&self) -> Option<LeaseError> {
        let last = self.record.as_ref().map_or(0, |record| record.value);
        let last = last.max(u64::try_from(self.floor).unwrap_or(0));
        (last >= lease_core::FencingToken::MAX_VALUE).then(|| LeaseError::TokenRange { value: last.saturating_add(1) })
    }
}

impl Record {
    pub(crate) fn is_live(&self) -> bool {
        self.running && self.ended.is_none()
    }

    pub(crate) fn listed(&self, resource: ResourceName) -> Listed {
        Listed::new(resource, self.holder.clone(), Some(self.value), self.remaining)
            .with_times(Some(self.granted_ago), Some(self.renewed_ago))
    }
}

fn ended(row: &SqliteRow) -> Result<Option<LossReason>, sqlx::Error> {
    let reason = if row.try_get("forced")? { LossReason::Forced } else { LossReason::Released };
    Ok(row.try_get::<bool, _>("released")?.then_some(reason))
}

/// One row of a list.
pub(crate) fn listed(row: &SqliteRow) -> Result<(String, Record), sqlx::Error> {
    let record = Record {
        mine: false,
        value: u64::try_from(row.try_get::<i64, _>(2)?).unwrap_or(0),
        remaining: nanos(row.try_get(3)?),
        ended: None,
        running: true,
        holder: row.try_get(1)?,
        granted_ago: nanos(row.try_get(4)?),
        renewed_ago: nanos(row.try_get(5)?),
    };
    Ok((row.try_get(0)?, record))
}

/// Nanoseconds from the store; below zero (a record of another boot) is zero.
fn nanos(value: i64) -> Duration {
    Duration::from_nanos(u64::try_from(value).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn numbers(text: &str) -> BTreeSet<usize> {
        let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>();
        text.split('?').skip(1).filter_map(|part| digits(part).parse().ok()).collect()
    }

    #[test]
    fn no_text_leaves_out_more_numbers_than_it_has() {
        let mut statements = LeaseStatements::new(&Namespace::default());
        for text in statements.texts() {
            let highest = |text: &str| numbers(text).last().copied().unwrap_or(0);
            let gaps = |statement: &str| highest(statement) - numbers(statement).len();
            assert!(text.split(';').map(gaps).sum::<usize>() <= highest(text), "{text}");
        }
    }
}
