//! Leases in a SQLite file: each operation is one transaction.

use crate::boot;
use crate::claims;
use crate::config::SqliteConfig;
use crate::connection::{Database, Moment, duration_ns, instant_ns};
use crate::keys;
use crate::schema;
use crate::step::Query;
use crate::sweep::Sweeper;
use crate::wire::{Found, LeaseStatements, Sql, listed, spent_for};
use lease_core::{
    Acquisition, Attempt, Claims, CleanUp, Description, Fence, FencingToken, ForceRelease, Forced, Held, Inspection,
    Lease, LeaseBackend, LeaseError, Limits, NamePage, Operation, Release, Renewal, ResourceName, SharedClock,
    accept_grant,
};
use sqlx::sqlite::SqliteRow;
use std::sync::Arc;
use std::time::Duration;

/// A lease backend on a SQLite file. Clones share its connections.
#[derive(Clone, Debug)]
pub struct SqliteBackend {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) database: Arc<Database>,
    pub(crate) statements: LeaseStatements,
    /// Whose turn it is to have a [fenced transaction](SqliteBackend::begin_fenced).
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    pub(crate) sweeper: Sweeper,
}

impl SqliteBackend {
    /// Opens the file, creates it and its tables where missing, and reads its settings.
    ///
    /// # Errors
    /// [`LeaseError::InvalidConfig`] and [`LeaseError::UnknownParameter`] before anything is opened; [`LeaseError::MissingPrivilege`] when this
    /// user may not write, [`LeaseError::NotSetUp`] when there is no such directory, when the file is no database or has tables of
    /// another shape, and when the system tells no boot id.
    ///
    /// # Cancel safety
    /// An empty database may be left behind.
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        Self::connect_with(SqliteConfig::parse(url)?).await
    }

    /// As [`connect`](Self::connect), from a configuration.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(config: SqliteConfig) -> Result<Self, LeaseError> {
        let statements = LeaseStatements::new(&config.options().namespace);
        Self::connect_on(config, statements).await
    }

    /// As [`connect`](Self::connect), with each `(from, to)` replaced in the text of the statements.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn connect_edited(url: &str, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let config = SqliteConfig::parse(url)?;
        let statements = LeaseStatements::new(&config.options().namespace).edited(edits)?;
        Self::connect_on(config, statements).await
    }

    async fn connect_on(config: SqliteConfig, statements: LeaseStatements) -> Result<Self, LeaseError> {
        boot::check(&config.options().clock)?;
        let database = Database::new(config, statements.tables.clone());
        let open = database.open(true).await?;
        *database.writer.lock().await = Some(open);
        Ok(Self { inner: Arc::new(Inner { database, statements, turn: Arc::default(), sweeper: Sweeper::default() }) })
    }

    /// Removes the lease tables of this namespace: for tests and decommissioning. Guarded destinations in the same file stay. Whoever is
    /// still connected begins a new history, under a new authority, with its next call.
    ///
    /// # Errors
    /// When the store fails.
    ///
    /// # Cancel safety
    /// All of it was removed, or nothing.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        let text: Sql = schema::drop_text(&self.inner.statements.tables).into();
        let Inner { database, .. } = &*self.inner;
        database.write(Operation::CleanUp, &text, |query, _| query).await.map(drop)
    }

    async fn write(
        &self,
        operation: Operation,
        sql: &Sql,
        resource: &ResourceName,
        owner: String,
        ttl: Duration,
        rest: impl Fn(Query, &Moment) -> Query + Send + Sync + 'static,
    ) -> Result<Vec<SqliteRow>, LeaseError> {
        let resource = resource.as_str().to_owned();
        let ttl = duration_ns(ttl);
        let Inner { database, .. } = &*self.inner;
        database
            .write(operation, sql, move |query, moment| {
                let query = query
                    .bind(resource.clone())
                    .bind(owner.clone())
                    .bind(moment.boot.clone())
                    .bind(moment.now)
                    .bind(ttl);
                rest(query, moment)
            })
            .await
    }
}

#[async_trait::async_trait]
impl LeaseBackend for SqliteBackend {
    fn description(&self) -> Description {
        let database = &self.inner.database;
        let version = database.settings().map_or_else(String::new, |s| s.version);
        Description::new("sqlite", version, database.config.address())
    }

    fn claims(&self) -> Claims {
        let settings = self.inner.database.settings();
        settings.map_or_else(|| Claims::of(&[]), |s| s.lease_claims())
    }

    fn limits(&self) -> Limits {
        claims::limits(&self.inner.database.config)
    }

    fn clock(&self) -> SharedClock {
        self.inner.database.config.options().clock.clone()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let granted_ttl = self.limits().granted_ttl(attempt.ttl())?;
        self.limits().check_floor(attempt)?;
        let sent = attempt.begin_send(self.clock().now(), granted_ttl)?;
        let first_sent = sent.first_sent();
        let floor = i64::try_from(attempt.floor()).unwrap_or(i64::MAX);
        let not_after = instant_ns(first_sent.saturating_add(granted_ttl));
        let (grant, holder) = (attempt.grant().to_hex(), attempt.holder().as_str().to_owned());
        let answer = self
            .write(
                Operation::Acquire,
                &self.inner.statements.acquire,
                attempt.resource(),
                attempt.owner().reveal(),
                granted_ttl,
                move |query, moment| {
                    query.bind(moment.wall_us).bind(grant.clone()).bind(holder.clone()).bind(not_after).bind(floor)
                },
            )
            .await;
        if answer.as_ref().err().is_none_or(is_definite) {
            sent.answered();
        }
        let found = one(&answer?, Operation::Acquire, Found::decode)?;
        let value = match judge(attempt, &found)? {
            Ok(value) => value,
            Err(held) => return Ok(Acquisition::Held(held)),
        };
        self.count_grant(attempt.resource());
        let authority = found.authority(self.inner.database.config.options())?;
        let token = attempt.token(authority, value)?;
        let lease = Lease::granted(attempt, Some(token), granted_ttl, first_sent, self.clock());
        accept_grant(self, attempt, lease).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let sent = self.clock().now();
        let value = lease.token().map(FencingToken::value_i64);
        let rows = self
            .write(
                Operation::Renew,
                &self.inner.statements.renew,
                lease.resource(),
                lease.owner().reveal(),
                lease.granted_ttl(),
                move |query, _| query.bind(value),
            )
            .await?;
        let found = one(&rows, Operation::Renew, Found::decode)?;
        Ok(match found.loss_of(lease) {
            Some(reason) => Renewal::Lost(reason),
            None => Renewal::Renewed(lease.renewed(sent)),
        })
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let release = lease.begin_release();
        let ttl = lease.granted_ttl();
        let tombstone = release.needs_tombstone();
        let answer = self
            .write(
                Operation::Release,
                &self.inner.statements.release,
                lease.resource(),
                lease.owner().reveal(),
                ttl,
                move |query, moment| query.bind(tombstone.then(|| spent_until(moment.now, ttl))),
            )
            .await;
        match answer {
            Ok(rows) => {
                let found = one(&rows, Operation::Release, Found::decode)?;
                Ok(release.answered(found.loss() == Some(lease_core::LossReason::Released)))
            }
            Err(error) => {
                if is_definite(&error) {
                    release.not_sent();
                }
                Err(error)
            }
        }
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        attempt.end();
        let ttl = self.limits().granted_ttl(attempt.ttl())?;
        self.write(
            Operation::Abandon,
            &self.inner.statements.abandon,
            attempt.resource(),
            attempt.owner().reveal(),
            ttl,
            move |query, moment| query.bind(spent_until(moment.now, ttl)),
        )
        .await
        .map(drop)
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        order.carry_out(self.force(order)).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        let name = resource.as_str().to_owned();
        let Inner { database, statements, .. } = &*self.inner;
        let rows = database
            .read(Operation::Inspect, &statements.look, move |query, moment| {
                query.bind(name.clone()).bind(None::<String>).bind(moment.boot.clone()).bind(moment.now)
            })
            .await?;
        Ok(match one(&rows, Operation::Inspect, Found::decode)?.record {
            Some(record) if record.is_live() => Inspection::held(record.listed(resource.clone())),
            record => Inspection::free(record.map(|r| r.value)),
        })
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        let (from, exclusive) = match after {
            Some(name) if name.as_str() >= prefix => (name.as_str().to_owned(), true),
            _ => (prefix.to_owned(), false),
        };
        let end = keys::end_of_prefix(prefix);
        let most = i64::from(limit.max(1));
        let Inner { database, statements, .. } = &*self.inner;
        let rows = database
            .read(Operation::List, &statements.list, move |query, moment| {
                query
                    .bind(from.clone())
                    .bind(None::<String>)
                    .bind(moment.boot.clone())
                    .bind(moment.now)
                    .bind(None::<i64>)
                    .bind(end.clone())
                    // One more than asked, to know whether there is a next page.
                    .bind(most.saturating_add(1))
                    .bind(exclusive)
            })
            .await?;
        let mut grants = Vec::with_capacity(rows.len());
        for row in &rows {
            let (name, record) = listed(row).map_err(|e| crate::error::of_read(e, Operation::List))?;
            grants.push(record.listed(ResourceName::parse(name)?));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let more = grants.len() > most;
        grants.truncate(most);
        let next_after = grants.last().filter(|_| more).map(|grant| grant.resource.clone());
        Ok(NamePage { grants, next_after })
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        let mut removed: u64 = 0;
        let mut after = String::new();
        loop {
            let (some, next) = self.sweep(after).await?;
            removed = removed.saturating_add(some);
            match next {
                Some(last) => after = last,
                None => return Ok(CleanUp::removed(removed)),
            }
        }
    }

    fn fence(&self) -> Fence<'_> {
        Fence::LiveOwner(self)
    }
}

/// What a look after the grant says: the value of the attempt's live grant, or who holds the resource.
fn judge(attempt: &Attempt, found: &Found) -> Result<Result<u64, Held>, LeaseError> {
    let over = |reason| Err(LeaseError::AttemptOver { resource: attempt.resource().clone(), reason });
    match &found.record {
        _ if found.spent => over("it was released or abandoned"),
        Some(record) if record.mine && record.is_live() => Ok(Ok(record.value)),
        Some(record) if record.mine => over("its grant has ended"),
        Some(record) if record.is_live() => Ok(Err(Held::for_another(Some(record.remaining)))),
        _ => match found.out_of_range() {
            Some(error) => Err(error),
            // The one condition that is left: the write lock came after the attempt's own TTL.
            None => over("its own TTL has passed since it was first sent"),
        },
    }
}

/// Whether nothing of the request is still on its way.
pub(crate) fn is_definite(error: &LeaseError) -> bool {
    error.effect() == lease_core::Effect::None
}

fn spent_until(now: i64, ttl: Duration) -> i64 {
    now.saturating_add(duration_ns(spent_for(ttl)))
}

/// The one row of an answer.
pub(crate) fn one<T>(
    rows: &[SqliteRow],
    operation: Operation,
    decode: impl FnOnce(&SqliteRow) -> Result<T, sqlx::Error>,
) -> Result<T, LeaseError> {
    rows.first().ok_or(sqlx::Error::RowNotFound).and_then(decode).map_err(|e| crate::error::of_operation(e, operation))
}
