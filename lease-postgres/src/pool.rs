//! A small pool of connections, and the limits around each call.
//!
//! It is this crate's own for three reasons. No statement may be sent without the caller's knowing, so there is no background
//! traffic and no ping behind a call. A connection whose reply is missing is closed at once, never handed on with the late reply
//! still to come. And giving one up never waits for a silent peer.

use crate::claims::Facts;
use crate::config::{PostgresConfig, SetUp};
use crate::error::{no_session, of_statement, session_had_ended};
use crate::opening::{Opening, opened};
use crate::set_up::Part;
use crate::wire::Statements;
use lease_core::{Effect, ErrorKind, LeaseError, Operation};
use sqlx::postgres::{PgArguments, PgConnection, PgRow, Postgres};
use sqlx::query::QueryAs;
use sqlx::{Connection as _, FromRow};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// A connection that was idle for longer than this is asked whether it is alive before it is used: a dead one must not cost the
/// caller an unknown outcome. Busy connections are never asked, so a call in a row of calls is one round trip.
const TRUST: Duration = Duration::from_millis(200);

/// A connection that was idle for longer than this is closed instead.
const KEEP: Duration = Duration::from_mins(10);

/// The connections of one instance.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) config: PostgresConfig,
    pub(crate) statements: Statements,
    pub(crate) part: Part,
    permits: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<(PgConnection, Instant)>,
    /// Those whose callers gave up waiting.
    openings: Vec<Opening>,
    facts: Facts,
}

impl State {
    fn pop_idle(&mut self) -> Option<(PgConnection, Instant)> {
        for opening in std::mem::take(&mut self.openings) {
            match opening.finished() {
                // Older than those that were given back, so below them.
                Ok(connection) => self.idle.splice(0..0, connection).for_each(drop),
                Err(opening) => self.openings.push(opening),
            }
        }
        self.idle.pop()
    }
}

impl Pool {
    /// Opens the first connection, so that a wrong configuration is found out here.
    pub(crate) async fn connect(
        config: PostgresConfig,
        part: Part,
        edits: &[(&str, &str)],
    ) -> Result<Arc<Self>, LeaseError> {
        config.check()?;
        let statements = Statements::new(&config.options.namespace, edits)?;
        let permits = Semaphore::new(usize::from(config.max_connections));
        let limit = config.options.connect_timeout;
        let pool = Arc::new(Self { config, statements, part, permits, state: Mutex::default() });
        match pool.call_within(Operation::Connect, limit, pool.config.set_up).checkout().await {
            Ok(checkout) => drop(checkout),
            // Here, unlike in a later call, the address itself may be the mistake.
            Err(LeaseError::Timeout { limit, .. }) => return Err(no_session(pool.config.address(), limit)),
            Err(error) => return Err(error),
        }
        Ok(pool)
    }

    /// Begins a call: its limit runs from here.
    pub(crate) fn call(self: &Arc<Self>, operation: Operation) -> Call<'_> {
        self.call_within(operation, self.config.options.call_timeout, self.config.set_up)
    }

    /// Begins a call that nobody asked for: it does not create tables that somebody has just removed.
    pub(crate) fn background_call(self: &Arc<Self>, operation: Operation) -> Call<'_> {
        self.call_within(operation, self.config.options.call_timeout, SetUp::Never)
    }

    fn call_within(self: &Arc<Self>, operation: Operation, limit: Duration, set_up: SetUp) -> Call<'_> {
        let now = Instant::now();
        Call { pool: self, operation, limit, ends: now.checked_add(limit).unwrap_or(now), set_up }
    }

    pub(crate) fn facts(&self) -> Facts {
        self.lock().facts.clone()
    }

    /// Notes what a new connection has read.
    pub(crate) fn note(&self, facts: Facts) {
        self.lock().facts = facts;
    }

    /// Takes a connection that nobody uses, unless there are enough.
    fn keep(&self, connection: PgConnection) {
        let mut state = self.lock();
        if state.idle.len() < usize::from(self.config.max_connections) {
            state.idle.push((connection, Instant::now()));
        }
    }

    /// Takes an opening that nobody waits for any more.
    pub(crate) fn leave(&self, opening: Opening) {
        self.lock().openings.push(opening);
    }

    /// An opening that was left: a fresh one, or any, once as many hang as there may be connections.
    pub(crate) fn left(&self, set_up: SetUp, is_fresh: impl Fn(&Opening) -> bool) -> Option<Opening> {
        let mut state = self.lock();
        let of_kind = |opening: &&Opening| opening.set_up() == set_up;
        let is_full = state.openings.iter().filter(of_kind).count() >= usize::from(self.config.max_connections);
        let at = state.openings.iter().rposition(|opening| of_kind(&opening) && (is_full || is_fresh(opening)))?;
        Some(state.openings.remove(at))
    }

    /// Closes the idle connections: they may be as dead as one that was just found dead.
    pub(crate) fn forget_idle(&self) {
        self.lock().idle.clear();
    }

    /// Closes the connections that nobody uses, those that are being opened too: they were checked against tables that are gone.
    pub(crate) fn forget_checked(&self) {
        let mut state = self.lock();
        state.idle.clear();
        state.openings.clear();
    }

    /// A panic can't have left the state half-changed: no step under the lock can panic between two writes.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn idle_or_new(self: &Arc<Self>, limit: Duration, set_up: SetUp) -> Result<PgConnection, LeaseError> {
        loop {
            let Some((mut connection, since)) = self.lock().pop_idle() else {
                return opened(self, set_up).await;
            };
            if since.elapsed() < TRUST {
                return Ok(connection);
            }
            let patience = limit.checked_div(4).unwrap_or_default();
            let alive =
                since.elapsed() < KEEP && matches!(tokio::time::timeout(patience, connection.ping()).await, Ok(Ok(())));
            if alive {
                return Ok(connection);
            }
            self.forget_idle();
        }
    }
}

/// One call of an operation, with its limit.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pool: &'a Arc<Pool>,
    operation: Operation,
    limit: Duration,
    ends: Instant,
    set_up: SetUp,
}

impl<'a> Call<'a> {
    /// A connection that is ready for a statement. Nothing of the operation was sent yet, so a failure has no effect.
    pub(crate) async fn checkout(&self) -> Result<Checkout<'a>, LeaseError> {
        let pool = self.pool;
        self.bound(Effect::None, async {
            let permit = pool.permits.acquire().await.map_err(|_| closed(self.operation))?;
            let connection = pool.idle_or_new(self.limit, self.set_up).await?;
            Ok(Checkout { pool, _permit: permit, connection: Some(connection), settled: true })
        })
        .await
        .map_err(without_effect)
    }

    /// Runs `work` for what is left of the call.
    pub(crate) async fn bound<T>(
        &self,
        effect: Effect,
        work: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        let (operation, limit) = (self.operation, self.limit);
        timeout_at(self.ends, work).await.unwrap_or(Err(LeaseError::Timeout { operation, limit, effect }))
    }

    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    /// The error of a statement of this call.
    pub(crate) fn failed(&self, error: sqlx::Error) -> LeaseError {
        of_statement(self.operation, &self.pool.config.options.namespace, error)
    }

    /// Runs a statement that gives one row.
    pub(crate) async fn row<T>(
        &self,
        checkout: &mut Checkout<'_>,
        query: QueryAs<'_, Postgres, T, PgArguments>,
    ) -> Result<T, LeaseError>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let rows = self.rows(checkout, query).await?;
        // Every statement of this crate that is asked for one row gives one.
        rows.into_iter().next().ok_or_else(|| self.failed(sqlx::Error::RowNotFound))
    }

    /// Another connection, when the server had ended the session of the one before.
    async fn reconnect(&self, checkout: &mut Checkout<'_>) -> Result<(), LeaseError> {
        if checkout.connection.is_none() {
            let opening = self.pool.idle_or_new(self.limit, self.set_up);
            checkout.connection = Some(self.bound(Effect::None, opening).await.map_err(without_effect)?);
        }
        Ok(())
    }

    /// Runs a statement and settles the connection: closed unless the server gave a definite answer. A statement that only reads has no
    /// effect, whatever became of it.
    pub(crate) async fn rows<T>(
        &self,
        checkout: &mut Checkout<'_>,
        query: QueryAs<'_, Postgres, T, PgArguments>,
    ) -> Result<Vec<T>, LeaseError>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        self.reconnect(checkout).await?;
        let answer = self
            .bound(Effect::Unknown, async {
                query.fetch_all(checkout.use_connection()?).await.map_err(|error| self.failed(error))
            })
            .await;
        let reads = matches!(self.operation, Operation::Inspect | Operation::List | Operation::Read);
        checkout.settle(answer).map_err(|error| if reads { without_effect(error) } else { error })
    }
}

/// What breaks or times out like a statement, although nothing that changes anything was sent: opening a connection, reading.
fn without_effect(error: LeaseError) -> LeaseError {
    match error {
        LeaseError::Connection { operation, reason, source, .. } => {
            LeaseError::Connection { operation, reason, effect: Effect::None, source }
        }
        LeaseError::Timeout { operation, limit, .. } => LeaseError::Timeout { operation, limit, effect: Effect::None },
        error => error,
    }
}

fn closed(operation: Operation) -> LeaseError {
    LeaseError::Connection { operation, reason: "the pool is closed".into(), effect: Effect::None, source: None }
}

/// A connection in use. Dropping it puts it back only if no answer is missing; else it is closed, without waiting for anybody.
#[derive(Debug)]
pub(crate) struct Checkout<'a> {
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
    connection: Option<PgConnection>,
    settled: bool,
}

impl Checkout<'_> {
    /// The connection, for something whose answer is missing until [`settle`](Self::settle).
    pub(crate) fn use_connection(&mut self) -> Result<&mut PgConnection, LeaseError> {
        self.settled = false;
        self.connection.as_mut().ok_or_else(|| closed(Operation::Connect))
    }

    /// Takes note of the answer to one statement: a definite one leaves the connection in order.
    pub(crate) fn settle<T>(&mut self, answer: Result<T, LeaseError>) -> Result<T, LeaseError> {
        match &answer {
            Ok(_) => self.settled = true,
            Err(error) if error.kind() == ErrorKind::Transport => self.pool.forget_idle(),
            Err(error) if session_had_ended(error) => {
                self.pool.forget_idle();
                self.connection = None;
            }
            // The tables are gone: the next connection looks at them anew, and creates them if it may.
            Err(LeaseError::NotSetUp { .. }) => self.pool.forget_checked(),
            Err(error) => self.settled = error.effect() == Effect::None,
        }
        answer
    }

    /// Takes note of the answer to a whole transaction: after an error it may be open still, so the connection is closed.
    pub(crate) fn settle_transaction<T>(&mut self, answer: Result<T, LeaseError>) -> Result<T, LeaseError> {
        let answer = self.settle(answer);
        self.settled = answer.is_ok();
        answer
    }
}

impl Drop for Checkout<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && self.settled
        {
            self.pool.keep(connection);
        }
    }
}
