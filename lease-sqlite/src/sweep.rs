//! Clean-up: idle names are forgotten a page at a time, by themselves too.

use crate::backend::{Inner, SqliteBackend, one};
use crate::connection::{Moment, duration_ns};
use crate::step::Query;
use crate::wire::Sql;
use lease_core::{LeaseError, Operation, ResourceName};
use sqlx::Row as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// When to sweep, and from where.
#[derive(Debug)]
pub(crate) struct Sweeper {
    grants: AtomicU64,
    after: Mutex<String>,
}

impl Default for Sweeper {
    /// Begins anywhere between two sweeps, so that processes which end after a few grants do their share of them too.
    fn default() -> Self {
        let anywhere = RandomState::new().build_hasher().finish();
        Self { grants: AtomicU64::new(anywhere.wrapping_rem(GRANTS_PER_SWEEP)), after: Mutex::default() }
    }
}

/// After so many grants of one instance it looks at the next [`SWEEP_NAMES`] names: many more than were granted meanwhile.
const GRANTS_PER_SWEEP: u64 = 64;

impl SqliteBackend {
    /// Counts a grant, and now and then begins a sweep behind the caller's back. The next sweep makes up for one that fails.
    ///
    /// A round begins at the first name or, every other time, at the one that was granted: else the names after the first page would be left to those
    /// processes that live long enough to come to them.
    pub(crate) fn count_grant(&self, granted: &ResourceName) {
        let before = self.inner.sweeper.grants.fetch_add(1, Ordering::Relaxed);
        if before.wrapping_rem(GRANTS_PER_SWEEP) == GRANTS_PER_SWEEP.wrapping_sub(1) {
            let (backend, granted) = (self.clone(), granted.as_str().to_owned());
            tokio::spawn(async move {
                let after = match backend.inner.sweeper.position().clone() {
                    first if first.is_empty() && RandomState::new().build_hasher().finish().is_multiple_of(2) => {
                        granted
                    }
                    next => next,
                };
                if let Ok((_, next)) = backend.sweep(after).await {
                    *backend.inner.sweeper.position() = next.unwrap_or_default();
                }
            });
        }
    }

    /// Forgets the idle ones of the next names after `after`: how many, and where to go on.
    pub(crate) async fn sweep(&self, after: String) -> Result<(u64, Option<String>), LeaseError> {
        let Inner { database, statements, .. } = &*self.inner;
        let retention = duration_ns(database.config.options().idle_retention);
        let bind = move |after: String, last: Option<String>| {
            move |query: Query, moment: &Moment| {
                query
                    .bind(after.clone())
                    .bind(None::<String>)
                    .bind(moment.boot.clone())
                    .bind(moment.now)
                    .bind(retention)
                    .bind(last.clone())
            }
        };
        // Looking first keeps the write lock free when there is nothing to do.
        let rows = database.read(Operation::CleanUp, &statements.survey, bind(after.clone(), None)).await?;
        let (seen, idle, last) = one(&rows, Operation::CleanUp, |row| {
            Ok((
                row.try_get::<i64, _>("seen")?,
                row.try_get::<i64, _>("idle")?,
                row.try_get::<Option<String>, _>("last")?,
            ))
        })?;
        let mut removed = 0;
        if idle > 0 {
            let rows = database.write(Operation::CleanUp, &statements.sweep, bind(after, last.clone())).await?;
            removed = one(&rows, Operation::CleanUp, |row| row.try_get::<i64, _>(0))?;
        }
        let next = if seen < SWEEP_NAMES { None } else { last };
        Ok((u64::try_from(removed).unwrap_or(0), next))
    }
}

impl Sweeper {
    fn position(&self) -> std::sync::MutexGuard<'_, String> {
        self.after.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The condition under which a record may be forgotten; `?5` is the retention. What carries data stays.
const IDLE: &str = "register IS NULL AND (boot <> ?3 OR expires + ?5 <= ?4)";

/// Looks at the next names after `?1` without the write lock: how many, how many of them idle, and the last one.
pub(crate) fn survey(ns: &str) -> Sql {
    format!(
        "SELECT count(*) AS seen, count(*) FILTER (WHERE {IDLE}) AS idle, max(resource) AS last
         FROM (SELECT * FROM {ns}_lease WHERE resource > ?1 ORDER BY resource LIMIT {SWEEP_NAMES})"
    )
    .into()
}

/// Forgets the idle names after `?1` up to `?6`. The floor is in the same transaction, so no token can go back.
pub(crate) fn sweep(ns: &str, store: &str) -> Sql {
    format!(
        "{store};
         UPDATE {ns}_store SET floor = max(floor, coalesce(
           (SELECT max(value) FROM {ns}_lease WHERE resource > ?1 AND resource <= ?6 AND {IDLE}), 0));
         DELETE FROM {ns}_lease WHERE resource > ?1 AND resource <= ?6 AND {IDLE};
         SELECT changes();
         DELETE FROM {ns}_spent WHERE boot <> ?3 OR until <= ?4;
         COMMIT"
    )
    .into()
}

/// How many names one step of clean-up looks at.
const SWEEP_NAMES: i64 = 1_000;
