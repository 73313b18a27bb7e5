//! Opening a connection: in a task of its own, since a caller whose time is up must not undo one that is nearly there. Where
//! connecting takes longer than a call may (a slow log-in, a busy server), no call would ever succeed otherwise.

use crate::claims;
use crate::config::SetUp;
use crate::error::{no_session, of_connect};
use crate::pool::Pool;
use crate::set_up::{self, Found};
use lease_core::LeaseError;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnection;
use std::sync::Arc;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

type Outcome = Result<PgConnection, LeaseError>;

/// A connection that is being opened.
#[derive(Debug)]
pub(crate) struct Opening {
    since: Instant,
    set_up: SetUp,
    outcome: oneshot::Receiver<Outcome>,
    task: AbortHandle,
}

/// A caller that waits for one. When it gives up, the next caller waits for the same one.
struct Waiting<'a> {
    pool: &'a Pool,
    opening: Option<Opening>,
}

impl Opening {
    /// Begins one. It ends when it is dropped.
    fn begin(pool: &Arc<Pool>, set_up: SetUp) -> Self {
        let (sender, outcome) = oneshot::channel();
        let pool = Arc::clone(pool);
        let task = tokio::spawn(async move {
            let limit = pool.config.options.connect_timeout;
            let opened = timeout(limit, open(&pool, set_up)).await;
            let opened = opened.unwrap_or_else(|_| Err(no_session(pool.config.address(), limit)));
            // If nobody looks any more, the connection is closed.
            drop(sender.send(opened));
        });
        Self { since: Instant::now(), set_up, outcome, task: task.abort_handle() }
    }

    pub(crate) fn set_up(&self) -> SetUp {
        self.set_up
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Opening {
    /// What came of one that nobody waited for: a connection with the time since when it may be idle, at the earliest; itself, while it is
    /// under way. A failure is nobody's any more: the next caller tries by itself.
    pub(crate) fn finished(mut self) -> Result<Option<(PgConnection, Instant)>, Self> {
        match self.outcome.try_recv() {
            Ok(outcome) => Ok(outcome.ok().map(|connection| (connection, self.since))),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Closed) => Ok(None),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(opening) = self.opening.take() {
            self.pool.leave(opening);
        }
    }
}

/// A new connection, or the one that an earlier caller stopped waiting for.
pub(crate) async fn opened(pool: &Arc<Pool>, set_up: SetUp) -> Outcome {
    // Beside one that hangs a new one is opened: the path may work again. One for each that there may be, so that they do not pile up.
    let hangs = pool.config.options.connect_timeout.checked_div(4).unwrap_or_default();
    let is_fresh = |opening: &Opening| opening.since.elapsed() < hangs;
    let opening = pool.left(set_up, is_fresh).unwrap_or_else(|| Opening::begin(pool, set_up));
    let mut waiting = Waiting { pool, opening: Some(opening) };
    let outcome = match &mut waiting.opening {
        Some(opening) => (&mut opening.outcome).await.ok(),
        None => None,
    };
    waiting.opening = None;
    outcome.unwrap_or_else(|| {
        let reason = "the task that opened a connection has ended".to_owned();
        Err(LeaseError::Unreachable { store: pool.config.address().to_owned(), reason, source: None })
    })
}

async fn open(pool: &Pool, set_up: SetUp) -> Outcome {
    let config = &pool.config;
    let namespace = &config.options.namespace;
    let limit = config.options.connect_timeout;
    let mut connection = config.client().connect().await.map_err(|error| of_connect(config.address(), error))?;
    let mut facts = claims::read(&mut connection, config).await?;
    let mut found = set_up::look(&mut connection, namespace, pool.part).await?;
    if matches!(found, Found::Missing { .. }) && set_up == SetUp::IfMissing {
        set_up::create(&mut connection, namespace, pool.part, &pool.statements, limit).await?;
        found = set_up::look(&mut connection, namespace, pool.part).await?;
    }
    let Found::Ready { logged } = found else {
        return Err(LeaseError::NotSetUp {
            reason: format!("schema \"{namespace}\" lacks tables or functions of this crate"),
            advice: "run the migration of this crate, or connect once with `set_up=if_missing`".into(),
            source: None,
        });
    };
    facts.logged = logged;
    pool.note(facts);
    Ok(connection)
}
