//! The lease backend: one row per resource, one statement per operation.

use crate::claims;
use crate::clean_up::Cleaner;
use crate::config::PostgresConfig;
use crate::error::{came_too_late, may_run_again};
use crate::fence::PostgresFence;
use crate::pool::{Call, Checkout, Pool};
use crate::set_up::{self, Part};
use lease_core::{
    Acquisition, Advice, Attempt, Claims, CleanUp, Description, Effect, Fence, FencingToken, ForceRelease, Forced,
    GrantId, Held, Inspection, Lease, LeaseBackend, LeaseError, Limits, LossReason, NamePage, Namespace, Operation,
    Release, Renewal, ResourceName, SharedClock, accept_grant,
};
use sqlx::SqlStr;
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::QueryAs;
use std::sync::Arc;
use std::time::Duration;

/// How often a statement is run because the row changed between its snapshot and its lock. Clean-up, or an earlier request of the
/// same attempt, is seen by the second one; after that it was other grants.
pub(crate) const ROUNDS: u32 = 4;

/// Leases in PostgreSQL. Clones share their connections.
#[derive(Clone, Debug)]
pub struct PostgresBackend {
    pub(crate) pool: Arc<Pool>,
    cleaner: Arc<Cleaner>,
}

impl PostgresBackend {
    /// Connects; creates the tables where they are missing, unless the URL says `set_up=never`.
    ///
    /// # Errors
    /// What is wrong with the URL, the way to the server, the login, the privileges, the settings or the tables.
    ///
    /// # Cancel safety
    /// Tables may have been created, all or none.
    pub async fn connect(url: &str) -> Result<Self, LeaseError> {
        Self::connect_with(PostgresConfig::parse(url)?).await
    }

    /// Connects as `config` says.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(config: PostgresConfig) -> Result<Self, LeaseError> {
        Self::open(config, &[]).await
    }

    /// Connects with edited statements, to show that a test notices.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and when an edit's text occurs in no statement.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn connect_edited(url: &str, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        Self::open(PostgresConfig::parse(url)?, edits).await
    }

    /// The text of `acquire`, so that a test can run a request that is still on its way.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn acquire_statement(&self) -> String {
        self.pool.statements.acquire.as_str().to_owned()
    }

    /// The text of `list`, so that a test can look at its plan.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn list_statement(&self) -> String {
        self.pool.statements.list.as_str().to_owned()
    }

    async fn open(config: PostgresConfig, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let pool = Pool::connect(config, Part::Lease, edits).await?;
        let cleaner = Arc::new(Cleaner::new(Arc::clone(&pool)));
        cleaner.begin_in_background();
        Ok(Self { pool, cleaner })
    }

    /// The SQL that creates schema and tables of `namespace`, for whoever runs migrations. Running it again changes nothing.
    #[must_use]
    pub fn migration(namespace: &Namespace) -> String {
        set_up::migration(namespace, set_up::LEASE_TABLES)
    }

    /// The native fence for the caller's own transactions in this database.
    #[must_use]
    pub fn transaction_fence(&self) -> PostgresFence {
        PostgresFence::of(&self.pool)
    }

    /// Removes everything that leases of this namespace have in the store: for tests and decommissioning. An account that
    /// owns the tables drops them, and the schema if nothing else is in it; any other one empties them. Tokens of the
    /// namespace begin a new authority afterwards.
    ///
    /// # Errors
    /// As every operation.
    ///
    /// # Cancel safety
    /// All or nothing was removed.
    pub async fn purge(&self) -> Result<(), LeaseError> {
        crate::clean_up::purge(&self.pool, Part::Lease).await
    }

    pub(crate) fn call(&self, operation: Operation) -> Call<'_> {
        self.pool.call(operation)
    }

    async fn grant(&self, call: &Call<'_>, attempt: &Attempt, granted_ttl: Duration) -> Result<Grant, LeaseError> {
        let mut checkout = call.checkout().await?;
        let statements = &self.pool.statements;
        let mut statement = &statements.acquire;
        let mut grant = Grant::Raced;
        for round in 1..=ROUNDS {
            grant = match self.try_grant(call, &mut checkout, statement, attempt, granted_ttl).await {
                Err(error) if may_run_again(&error) && round < ROUNDS => continue,
                answer => answer?,
            };
            match grant {
                Grant::NoHistory => self.begin_history(call, &mut checkout).await?,
                // Waits in turn with those who change the row, so that many of them can't keep it from this one.
                Grant::Busy => statement = &statements.acquire_in_turn,
                Grant::Raced => {}
                Grant::Made(_) | Grant::Held(_) => break,
            }
        }
        Ok(grant)
    }

    /// One statement of `acquire`.
    async fn try_grant(
        &self,
        call: &Call<'_>,
        checkout: &mut Checkout<'_>,
        statement: &SqlStr,
        attempt: &Attempt,
        granted_ttl: Duration,
    ) -> Result<Grant, LeaseError> {
        let (owner, grant) = (attempt.owner().reveal(), attempt.grant().to_hex());
        let sent = attempt.begin_send(self.clock().now(), granted_ttl)?;
        let first_sent = sent.first_sent();
        let query = sqlx::query_as(statement.clone())
            .bind(attempt.resource().as_str())
            .bind(&owner)
            .bind(&grant)
            .bind(attempt.holder().as_str())
            .bind(millis(granted_ttl))
            .bind(i64::try_from(attempt.floor()).unwrap_or(i64::MAX));
        let answer: Result<Row, LeaseError> = call.row(checkout, query).await;
        match &answer {
            Err(error) if error.effect() == Effect::Unknown => drop(sent),
            _ => sent.answered(),
        }
        let (outcome, value, incarnation, remaining) = answer?;
        match (outcome.as_str(), value, incarnation) {
            ("granted", Some(value), Some(incarnation)) => {
                let token = self.token(attempt, &incarnation, value)?;
                let lease = Lease::granted(attempt, Some(token), granted_ttl, first_sent, self.clock());
                Ok(Grant::Made(lease))
            }
            ("held", ..) => Ok(Grant::Held(Held::for_another(remaining.map(micros)))),
            // The grant has ended, and a fenced transaction of its holder keeps the row.
            ("fenced", ..) => Ok(Grant::Held(Held::for_another(None))),
            ("over", ..) => {
                Err(LeaseError::AttemptOver { resource: attempt.resource().clone(), reason: "its grant has ended" })
            }
            ("no meta", ..) => Ok(Grant::NoHistory),
            ("busy", ..) => Ok(Grant::Busy),
            _ => Ok(Grant::Raced),
        }
    }

    /// The token of a grant that was made.
    ///
    /// # Errors
    /// Its effect is unknown, so that the caller abandons the attempt: the grant is there, and can't be used.
    fn token(&self, attempt: &Attempt, incarnation: &str, value: i64) -> Result<FencingToken, LeaseError> {
        let authority = self.pool.config.options.authority("postgres", incarnation);
        authority.and_then(|authority| attempt.token(authority, u64::try_from(value).unwrap_or(0))).map_err(|error| {
            LeaseError::Store {
                operation: Operation::Acquire,
                reason:
                    "somebody changed the tables: incarnation and value make no fencing token; begin a new history: \
                         empty the tables `meta` and `lease`, or purge the namespace"
                        .into(),
                effect: Effect::Unknown,
                advice: Advice::Fix,
                source: Some(Box::new(error)),
            }
        })
    }

    /// Draws the incarnation and stores it, if the store has none: at the very first grant, or after it was emptied.
    async fn begin_history(&self, call: &Call<'_>, checkout: &mut Checkout<'_>) -> Result<(), LeaseError> {
        let incarnation = GrantId::random()?.to_hex();
        let query = sqlx::query_as::<_, ()>(self.pool.statements.begin_history.clone()).bind(incarnation);
        call.rows(checkout, query).await.map(|_| ())
    }

    /// Ends the grant of `owner`; whether this or an earlier call ended it.
    async fn end(&self, call: &Call<'_>, end: &End<'_>) -> Result<bool, LeaseError> {
        let statements = &self.pool.statements;
        let mut checkout = call.checkout().await?;
        for _ in 0..ROUNDS {
            let query = match end.spent_for {
                None => sqlx::query_as(statements.release.clone()).bind(end.resource.as_str()).bind(&end.owner),
                Some(time) => sqlx::query_as(statements.end.clone())
                    .bind(end.resource.as_str())
                    .bind(&end.owner)
                    .bind(millis(time)),
            };
            match outcome(call, &mut checkout, query).await?.as_str() {
                "ended" => return Ok(true),
                "not held" => return Ok(false),
                "no meta" => self.begin_history(call, &mut checkout).await?,
                _ => {}
            }
        }
        Err(busy(call.operation()))
    }
}

/// Runs a statement that changes a lease and says what it did. If the grant ended while it waited, it was rolled back, or it was never read,
/// it is to be run again.
async fn outcome(
    call: &Call<'_>,
    checkout: &mut Checkout<'_>,
    query: QueryAs<'_, Postgres, (String,), PgArguments>,
) -> Result<String, LeaseError> {
    match call.row(checkout, query).await {
        Ok((outcome,)) => Ok(outcome),
        Err(error) if came_too_late(&error) || may_run_again(&error) => Ok("raced".into()),
        Err(error) => Err(error),
    }
}

/// What one statement of `acquire` came to.
enum Grant {
    Made(Lease),
    Held(Held),
    /// The row changed meanwhile.
    Raced,
    /// Somebody was just changing the row, and may be followed by others.
    Busy,
    /// The store has no incarnation yet.
    NoHistory,
}

/// Outcome, fencing value, incarnation, remaining µs.
type Row = (String, Option<i64>, Option<String>, Option<i64>);

struct End<'a> {
    resource: &'a ResourceName,
    owner: String,
    /// How long the owner is remembered as spent; `None` when nothing of its attempt is under way any more.
    spent_for: Option<Duration>,
}

/// As long as a request of the attempt could still make a grant that counts.
fn spent_for(granted_ttl: Duration) -> Duration {
    granted_ttl.saturating_mul(2).max(SPENT_AT_LEAST)
}

pub(crate) const SPENT_AT_LEAST: Duration = Duration::from_secs(10);

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The value that the lease's row has; no row has that of a lease without a token, which this backend never makes.
pub(crate) fn value_of(lease: &Lease) -> Option<i64> {
    lease.token().map(FencingToken::value_i64)
}

pub(crate) fn micros(time: i64) -> Duration {
    Duration::from_micros(u64::try_from(time).unwrap_or(0))
}

pub(crate) fn busy(operation: Operation) -> LeaseError {
    LeaseError::Store {
        operation,
        reason: "the row changed each time between the look at it and its lock".into(),
        effect: Effect::None,
        advice: Advice::TryAgain,
        source: None,
    }
}

#[async_trait::async_trait]
impl LeaseBackend for PostgresBackend {
    fn description(&self) -> Description {
        Description::new("postgres", self.pool.facts().server_version, self.pool.config.address().to_owned())
    }

    fn claims(&self) -> Claims {
        self.pool.facts().lease_claims()
    }

    fn limits(&self) -> Limits {
        claims::limits(&self.pool.config)
    }

    fn clock(&self) -> SharedClock {
        self.pool.config.options.clock.clone()
    }

    async fn acquire(&self, attempt: &Attempt) -> Result<Acquisition, LeaseError> {
        let granted_ttl = self.limits().granted_ttl(attempt.ttl())?;
        self.limits().check_floor(attempt)?;
        let call = self.call(Operation::Acquire);
        let lease = match self.grant(&call, attempt, granted_ttl).await? {
            Grant::Made(lease) => lease,
            Grant::Held(held) => return Ok(Acquisition::Held(held)),
            // Somebody else was granted it each time, and gave it back.
            Grant::Raced | Grant::Busy => return Ok(Acquisition::Held(Held::for_another(None))),
            Grant::NoHistory => return Err(busy(Operation::Acquire)),
        };
        self.cleaner.count_grant();
        accept_grant(self, attempt, lease).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Renewal, LeaseError> {
        let call = self.call(Operation::Renew);
        let owner = lease.owner().reveal();
        let mut checkout = call.checkout().await?;
        for _ in 0..ROUNDS {
            let sent = self.clock().now();
            let query = sqlx::query_as(self.pool.statements.renew.clone())
                .bind(lease.resource().as_str())
                .bind(&owner)
                .bind(millis(lease.granted_ttl()))
                .bind(value_of(lease));
            let reason = match outcome(&call, &mut checkout, query).await?.as_str() {
                "renewed" => return Ok(Renewal::Renewed(lease.renewed(sent))),
                "gone" => LossReason::Gone,
                "superseded" => LossReason::Superseded,
                "forced" => LossReason::Forced,
                "released" => LossReason::Released,
                "expired" => LossReason::Expired,
                _ => continue,
            };
            return Ok(Renewal::Lost(reason));
        }
        Err(busy(Operation::Renew))
    }

    async fn release(&self, lease: &Lease) -> Result<Release, LeaseError> {
        let call = self.call(Operation::Release);
        let owner = lease.owner().reveal();
        let release = lease.begin_release();
        let spent_for = release.needs_tombstone().then(|| spent_for(lease.granted_ttl()));
        match self.end(&call, &End { resource: lease.resource(), owner, spent_for }).await {
            Ok(ended) => Ok(release.answered(ended)),
            Err(error) => {
                if error.effect() == Effect::None {
                    release.not_sent();
                }
                Err(error)
            }
        }
    }

    async fn abandon(&self, attempt: &Attempt) -> Result<(), LeaseError> {
        attempt.end();
        let granted_ttl = self.limits().granted_ttl(attempt.ttl())?;
        let owner = attempt.owner().reveal();
        let end = End { resource: attempt.resource(), owner, spent_for: Some(spent_for(granted_ttl)) };
        self.end(&self.call(Operation::Abandon), &end).await.map(|_| ())
    }

    async fn force_release(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        order.carry_out(self.force(order)).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Inspection, LeaseError> {
        self.look_at(resource).await
    }

    async fn list(&self, prefix: &str, after: Option<&ResourceName>, limit: u32) -> Result<NamePage, LeaseError> {
        self.page(prefix, after, limit).await
    }

    async fn clean_up(&self) -> Result<CleanUp, LeaseError> {
        self.cleaner.clean_up().await
    }

    fn fence(&self) -> Fence<'_> {
        Fence::LiveOwner(self)
    }
}
