//! Forgetting idle names without forgetting their values, and purging.

use crate::keys;
use crate::pool::{Call, Checkout, Pool};
use crate::set_up::Part;
use lease_core::{CleanUp, Effect, LeaseError, Operation};
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{AssertSqlSafe, Connection as _, Transaction};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Grants between two clean-ups that begin by themselves.
const EVERY: u64 = 1_000;

/// Rows that one transaction looks at. By themselves, clean-ups look at twice as many rows as grants were made, so they keep up.
const PAGE: i64 = 2_000;

/// Walks over the names, page by page, and removes the idle ones.
#[derive(Debug)]
pub(crate) struct Cleaner {
    pool: Arc<Pool>,
    grants: AtomicU64,
    /// The last name that was looked at; the next page begins after it.
    after: Mutex<String>,
    running: AtomicBool,
}

impl Cleaner {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, grants: AtomicU64::new(0), after: Mutex::default(), running: AtomicBool::new(false) }
    }

    /// Counts a grant; every so often it begins a clean-up in the background.
    pub(crate) fn count_grant(self: &Arc<Self>) {
        let earlier = self.grants.fetch_add(1, Ordering::Relaxed);
        if earlier.checked_rem(EVERY).is_some_and(|rest| rest == EVERY.saturating_sub(1)) {
            self.begin_in_background();
        }
    }

    /// Looks at one page in a task of its own, so that nobody waits for it. It ends with its call's limit, and whatever goes wrong is
    /// left to the next one.
    pub(crate) fn begin_in_background(self: &Arc<Self>) {
        if self.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let cleaner = Arc::clone(self);
        tokio::spawn(async move {
            let after = cleaner.after();
            if let Ok(page) = cleaner.one_page(&cleaner.pool.background_call(Operation::CleanUp), &after).await {
                cleaner.go_on_after(page.last.unwrap_or_default());
            }
            cleaner.running.store(false, Ordering::SeqCst);
        });
    }

    /// Looks at every name once, as far as the call's limit lets it; what is left is for the next call.
    pub(crate) async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        let call = self.pool.call(Operation::CleanUp);
        let mut removed: u64 = 0;
        let mut after = String::new();
        loop {
            match self.one_page(&call, &after).await {
                Ok(page) => {
                    removed = removed.saturating_add(page.removed);
                    let Some(last) = page.last else { return Ok(CleanUp::removed(removed)) };
                    after = last;
                }
                // Each page is complete in itself, so what was removed counts.
                Err(LeaseError::Timeout { .. }) if removed > 0 => return Ok(CleanUp::removed(removed)),
                Err(error) => return Err(error),
            }
        }
    }

    async fn one_page(&self, call: &Call<'_>, after: &str) -> Result<Page, LeaseError> {
        let mut checkout = call.checkout().await?;
        let answer = call.bound(Effect::Unknown, self.sweep(call, &mut checkout, after)).await;
        checkout.settle_transaction(answer)
    }

    /// One transaction: lock the floor, remove idle rows, raise the floor to what they had.
    async fn sweep(&self, call: &Call<'_>, checkout: &mut Checkout<'_>, after: &str) -> Result<Page, LeaseError> {
        let statements = &self.pool.statements;
        let failed = |error| call.failed(error);
        let mut transaction = checkout.use_connection()?.begin().await.map_err(failed)?;
        let floor: Option<(i64,)> =
            sqlx::query_as(statements.lock_floor.clone()).fetch_optional(&mut *transaction).await.map_err(failed)?;
        if floor.is_none() {
            // Without a floor there is nowhere to keep the values: nothing may be forgotten.
            transaction.rollback().await.map_err(failed)?;
            return Ok(Page { removed: 0, last: None });
        }
        let retention = i64::try_from(self.pool.config.options.idle_retention.as_millis()).unwrap_or(i64::MAX);
        let (removed, highest, looked_at, last): (i64, Option<i64>, i64, Option<String>) =
            sqlx::query_as(statements.sweep.clone())
                .bind(after)
                .bind(PAGE)
                .bind(retention)
                .fetch_one(&mut *transaction)
                .await
                .map_err(failed)?;
        if let Some(highest) = highest {
            sqlx::query(statements.raise_floor.clone())
                .bind(highest)
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)?;
        let last = if looked_at < PAGE { None } else { last };
        Ok(Page { removed: u64::try_from(removed).unwrap_or(0), last })
    }

    fn after(&self) -> String {
        self.after.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn go_on_after(&self, name: String) {
        *self.after.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }
}

struct Page {
    removed: u64,
    /// The last name of the page; `None` after the last page.
    last: Option<String>,
}

/// Removes everything that `part` has in the store.
pub(crate) async fn purge(pool: &Arc<Pool>, part: Part) -> Result<(), LeaseError> {
    let call = pool.call(Operation::CleanUp);
    let mut checkout = call.checkout().await?;
    let answer = call.bound(Effect::Unknown, purge_all(pool, &call, &mut checkout, part)).await;
    let answer = checkout.settle_transaction(answer);
    drop(checkout);
    // They were checked against tables that are gone now.
    pool.forget_checked();
    answer
}

async fn purge_all(
    pool: &Arc<Pool>,
    call: &Call<'_>,
    checkout: &mut Checkout<'_>,
    part: Part,
) -> Result<(), LeaseError> {
    let namespace = &pool.config.options.namespace;
    let schema = keys::quoted_schema(namespace);
    let (tables, function) = part.objects();
    let tables = tables.map(|table| format!("{schema}.{table}"));
    let failed = |error| call.failed(error);
    let mut transaction = checkout.use_connection()?.begin().await.map_err(failed)?;
    let (owner,): (bool,) = sqlx::query_as(
        "SELECT coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), false) FROM pg_class c \
         JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1",
    )
    .bind(namespace.as_str())
    .fetch_one(&mut *transaction)
    .await
    .map_err(failed)?;
    if owner {
        execute(&mut transaction, format!("DROP TABLE IF EXISTS {}", tables.join(", "))).await.map_err(failed)?;
        execute(&mut transaction, format!("DROP FUNCTION IF EXISTS {schema}.{function}")).await.map_err(failed)?;
        drop_empty_schema(&mut transaction, &schema).await.map_err(failed)?;
    } else {
        for table in tables {
            execute(&mut transaction, format!("DELETE FROM {table}")).await.map_err(failed)?;
        }
    }
    transaction.commit().await.map_err(failed)
}

/// The schema may hold something else, or belong to somebody else: then it stays. So does `public`, which comes with each database.
async fn drop_empty_schema(transaction: &mut Transaction<'_, Postgres>, schema: &str) -> Result<(), sqlx::Error> {
    if schema == "\"public\"" {
        return Ok(());
    }
    let mut attempt = transaction.begin().await?;
    match execute(&mut attempt, format!("DROP SCHEMA {schema} RESTRICT")).await {
        Ok(()) => attempt.commit().await,
        Err(sqlx::Error::Database(_)) => attempt.rollback().await,
        Err(error) => Err(error),
    }
}

/// Runs a statement in which nothing but the schema's name was put together.
async fn execute(connection: &mut PgConnection, text: String) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(text)).execute(connection).await.map(|_| ())
}
