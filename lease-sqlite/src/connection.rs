//! The open file: one connection that writes, one that reads, and each operation as one step of its own task.
//!
//! *Why a task.* Each connection of the client has a worker thread, and what was sent to it runs even when the caller's future was
//! dropped. The task owns the connection until its transaction is over, so that no caller can leave one open, and when it finds that
//! its caller has gone by the time the write lock is there, it rolls back.
//!
//! *Why two connections.* SQLite has one writer. One writing connection behind a fair lock makes callers of one process wait in order,
//! instead of racing through SQLite's sleeps; the reading one is never held up by a writer.

use crate::claims::Settings;
use crate::config::SqliteConfig;
use crate::{error, schema};
use lease_core::{BootInstant, Effect, LeaseError, Operation};
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, Sqlite, SqliteConnection};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::time::Instant;

use crate::schema::Table;
use crate::wire::Sql;

/// A statement with its parameters.
pub(crate) type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// The file, as one instance uses it.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) config: SqliteConfig,
    tables: Vec<Table>,
    settings: RwLock<Option<Settings>>,
}

/// The time of one step, read under the write lock: waiting for that lock takes time.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) boot: String,
    pub(crate) now: i64,
    pub(crate) wall_us: i64,
}

/// An open connection, and which file it is on.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) sqlite: SqliteConnection,
    file: FileId,
}

/// A place for one connection. Empty until first use, and after a connection was given up.
pub(crate) type Slot = Arc<Mutex<Option<Open>>>;

/// Device and inode: the file itself, whatever its name is now.
type FileId = Option<(u64, u64)>;

/// Builds the query of a step from its text and the time.
pub(crate) type Bind = Box<dyn Fn(Query, &Moment) -> Query + Send + Sync>;

impl Database {
    pub(crate) fn new(config: SqliteConfig, tables: Vec<Table>) -> Arc<Self> {
        Arc::new(Self { config, tables, settings: RwLock::new(None) })
    }

    /// The settings that the latest connection reported; `None` before the first.
    pub(crate) fn settings(&self) -> Option<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time now.
    pub(crate) fn moment(&self) -> Moment {
        let clock = &self.config.options().clock;
        Moment { boot: clock.boot_id().as_str().to_owned(), now: instant_ns(clock.now()), wall_us: wall_us() }
    }

    /// Opens a connection within the connect timeout, sets it up, and reads back what it is.
    pub(crate) async fn open(&self, create: bool) -> Result<Open, LeaseError> {
        let limit = self.config.options().connect_timeout;
        let open = async {
            let mut open = self.connect(create).await?;
            let settings = self.set_up(&mut open.sqlite).await?;
            *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Some(settings);
            Ok(open)
        };
        lease_core::bounded(limit, Operation::Connect, Effect::None, open).await
    }

    /// Opens one more connection on a file that an earlier one has set up.
    pub(crate) async fn open_plain(&self) -> Result<Open, LeaseError> {
        let limit = self.config.options().connect_timeout;
        lease_core::bounded(limit, Operation::Connect, Effect::None, self.connect(false)).await
    }

    async fn connect(&self, create: bool) -> Result<Open, LeaseError> {
        let path = self.config.path();
        error::check_path(path, create)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(create)
            .busy_timeout(self.config.busy_timeout())
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        loop {
            match SqliteConnection::connect_with(&options).await {
                Ok(sqlite) => {
                    return Ok(Open { sqlite, file: file_id(path) });
                }
                Err(e) => wait_if_busy(e, "opening the file").await?,
            }
        }
    }

    async fn set_up(&self, sqlite: &mut SqliteConnection) -> Result<Settings, LeaseError> {
        let mut journal_mode = ask(sqlite, "PRAGMA journal_mode").await?;
        if journal_mode != "wal" {
            journal_mode = ask(sqlite, "PRAGMA journal_mode = wal").await?;
        }
        let encoding = ask(sqlite, "PRAGMA encoding").await?;
        for (what, found, wanted) in [("journal mode", &journal_mode, "wal"), ("encoding", &encoding, "UTF-8")] {
            if found != wanted {
                return Err(LeaseError::NotSetUp {
                    reason: format!("the file's {what} is `{found}`, not `{wanted}`"),
                    advice: "name another file, on a local file system, and let it be created here".into(),
                    source: None,
                });
            }
        }
        schema::ensure(sqlite, &self.tables).await?;
        Ok(Settings {
            version: ask(sqlite, "SELECT sqlite_version()").await?,
            journal_mode,
            synchronous: ask(sqlite, "SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous")
                .await?
                .parse()
                .unwrap_or(0),
        })
    }

    /// Runs one writing step: lock, time, statement, commit.
    ///
    /// `bind` gets the time under the lock. The statement's text ends in `COMMIT`.
    pub(crate) async fn write(
        self: &Arc<Self>,
        slot: &Slot,
        operation: Operation,
        sql: &Sql,
        bind: impl Fn(Query, &Moment) -> Query + Send + Sync + 'static,
    ) -> Result<Vec<SqliteRow>, LeaseError> {
        let (slot, until) = self.enter(slot, operation).await?;
        let step = Step { database: Arc::clone(self), slot, operation, sql: Arc::clone(sql) };
        let bind: Bind = Box::new(bind);
        self.in_task(operation, Effect::Unknown, until, |reply| step.write(bind, reply)).await
    }

    /// Runs one reading step, on the connection that reads.
    pub(crate) async fn read(
        self: &Arc<Self>,
        slot: &Slot,
        operation: Operation,
        sql: &Sql,
        bind: impl Fn(Query, &Moment) -> Query + Send + Sync + 'static,
    ) -> Result<Vec<SqliteRow>, LeaseError> {
        let (slot, until) = self.enter(slot, operation).await?;
        let step = Step { database: Arc::clone(self), slot, operation, sql: Arc::clone(sql) };
        let bind: Bind = Box::new(bind);
        self.in_task(operation, Effect::None, until, |_| step.read(bind)).await
    }

    /// Waits for the connection; nothing has begun while it waits.
    pub(crate) async fn enter<T>(
        &self,
        slot: &Arc<Mutex<T>>,
        operation: Operation,
    ) -> Result<(OwnedMutexGuard<T>, Instant), LeaseError> {
        let limit = self.config.options().call_timeout;
        let until = self.call_ends();
        match tokio::time::timeout_at(until, Arc::clone(slot).lock_owned()).await {
            Ok(guard) => Ok((guard, until)),
            Err(_) => Err(timeout(operation, limit, Effect::None)),
        }
    }

    /// Runs `work` in a task of its own, which goes on to its end when the caller has gone.
    pub(crate) async fn in_task<T, W>(
        &self,
        operation: Operation,
        effect: Effect,
        until: Instant,
        work: impl FnOnce(Arc<Caller>) -> W,
    ) -> Result<T, LeaseError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, LeaseError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let here = Here(Arc::default());
        let work = work(Arc::clone(&here.0));
        tokio::spawn(async move {
            // Whoever does not wait any more does not hear of it.
            drop(reply.send(work.await));
        });
        match tokio::time::timeout_at(until, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LeaseError::Connection {
                operation,
                reason: "the task that ran it was stopped; the runtime is shutting down".into(),
                effect,
                source: None,
            }),
            Err(_) => {
                let limit = self.config.options().call_timeout;
                let effect = if here.0.leave() { Effect::None } else { effect };
                Err(timeout(operation, limit, effect))
            }
        }
    }

    /// When a call that begins now has to end.
    pub(crate) fn call_ends(&self) -> Instant {
        let now = Instant::now();
        // The limit is an hour at most.
        now.checked_add(self.config.options().call_timeout).unwrap_or(now)
    }

    /// The connection in the slot, or a new one. A connection on a file that is not under the path any more is given up.
    pub(crate) async fn take(&self, slot: &mut Option<Open>, operation: Operation) -> Result<Open, LeaseError> {
        match slot.take() {
            Some(open) if self.is_on_path(&open) => Ok(open),
            Some(_) => Err(error::replaced(operation)),
            None => self.open(false).await,
        }
    }

    /// Whether the open file is still the one under the path.
    pub(crate) fn is_on_path(&self, open: &Open) -> bool {
        open.file == file_id(self.config.path())
    }
}

/// What caller and task agree on: that the step runs, or that nobody waits for it any more. Whoever is first decides.
#[derive(Debug, Default)]
pub(crate) struct Caller(AtomicU8);

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const GONE: u8 = 2;

impl Caller {
    /// The task's side, once it has the write lock: whether the step is still wanted.
    fn begin(&self) -> bool {
        self.decide(RUNNING) != GONE
    }

    /// The caller's side: whether it left before the step began, so that it never will.
    fn leave(&self) -> bool {
        self.decide(GONE) == GONE
    }

    fn decide(&self, wanted: u8) -> u8 {
        match self.0.compare_exchange(WAITING, wanted, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => wanted,
            Err(decided) => decided,
        }
    }
}

/// The caller's side; dropped when it stops waiting, for whatever reason.
struct Here(Arc<Caller>);

impl Drop for Here {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// One operation with the connection's place.
struct Step {
    database: Arc<Database>,
    slot: OwnedMutexGuard<Option<Open>>,
    operation: Operation,
    sql: Sql,
}

impl Step {
    async fn write(mut self, bind: Bind, caller: Arc<Caller>) -> Result<Vec<SqliteRow>, LeaseError> {
        match self.write_once(&bind, &caller).await {
            Err(Failure::NoTable) => {
                self.set_up_anew().await?;
                self.write_once(&bind, &caller).await.map_err(|f| f.into_error(self.operation))
            }
            answer => answer.map_err(|f| f.into_error(self.operation)),
        }
    }

    async fn read(mut self, bind: Bind) -> Result<Vec<SqliteRow>, LeaseError> {
        match self.read_once(&bind).await {
            Err(Failure::NoTable) => {
                self.set_up_anew().await?;
                self.read_once(&bind).await.map_err(|f| f.into_error(self.operation))
            }
            answer => answer.map_err(|f| f.into_error(self.operation)),
        }
    }

    async fn write_once(&mut self, bind: &Bind, caller: &Caller) -> Result<Vec<SqliteRow>, Failure> {
        let mut open = self.database.take(&mut self.slot, self.operation).await?;
        if let Err(e) = begin(&mut open.sqlite).await {
            // A busy connection is as good as before; any other error leaves one that nobody should trust.
            if error::is_busy(&e) {
                *self.slot = Some(open);
            }
            return Err(error::of_operation(e, self.operation).into());
        }
        let on_path = self.database.is_on_path(&open);
        if !on_path || !caller.begin() {
            self.roll_back(open, on_path).await;
            return Err(error::replaced(self.operation).into());
        }
        let query = bind(query(&self.sql), &self.database.moment());
        match query.fetch_all(&mut open.sqlite).await {
            Ok(rows) => {
                *self.slot = Some(open);
                Ok(rows)
            }
            Err(e) => {
                self.roll_back(open, error::code(&e).is_some()).await;
                Err(Failure::of(e, |e| error::of_operation(e, self.operation)))
            }
        }
    }

    async fn read_once(&mut self, bind: &Bind) -> Result<Vec<SqliteRow>, Failure> {
        let mut open = self.database.take(&mut self.slot, self.operation).await?;
        let query = bind(query(&self.sql), &self.database.moment());
        let rows = query
            .fetch_all(&mut open.sqlite)
            .await
            .map_err(|e| Failure::of(e, |e| error::of_read(e, self.operation)))?;
        *self.slot = Some(open);
        Ok(rows)
    }

    /// Ends the transaction without effect. The connection stays if that worked and it is to be `kept`; dropping it rolls back too.
    async fn roll_back(&mut self, mut open: Open, kept: bool) {
        let rolled_back = sqlx::query("ROLLBACK").execute(&mut open.sqlite).await.is_ok();
        if rolled_back && kept {
            *self.slot = Some(open);
        }
    }

    /// Creates the tables anew, after `purge` or a hand removed them: a new history begins, under a new authority.
    async fn set_up_anew(&mut self) -> Result<(), LeaseError> {
        *self.slot = Some(self.database.open(false).await?);
        Ok(())
    }
}

/// Why a step failed.
enum Failure {
    /// A table is gone; nothing was executed.
    NoTable,
    Error(LeaseError),
}

impl Failure {
    fn of(e: sqlx::Error, map: impl FnOnce(sqlx::Error) -> LeaseError) -> Self {
        if schema::is_missing_table(&e) { Self::NoTable } else { Self::Error(map(e)) }
    }

    fn into_error(self, operation: Operation) -> LeaseError {
        match self {
            Self::NoTable => schema::vanished(operation),
            Self::Error(error) => error,
        }
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        Self::Error(error)
    }
}

/// Takes the write lock, waiting for it as long as the connection's busy timeout says.
pub(crate) async fn begin(sqlite: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("BEGIN IMMEDIATE").execute(sqlite).await.map(drop)
}

/// The statement, ready for its parameters.
pub(crate) fn query(sql: &Sql) -> Query {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// An instant as the store keeps it.
pub(crate) fn instant_ns(instant: BootInstant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

/// A duration as the store keeps it. The longest, 100 years, leaves room for an uptime of 190 more.
pub(crate) fn duration_ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn wall_us() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

fn timeout(operation: Operation, limit: Duration, effect: Effect) -> LeaseError {
    LeaseError::Timeout { operation, limit, effect }
}

/// Asks for one text.
async fn ask(sqlite: &mut SqliteConnection, text: &'static str) -> Result<String, LeaseError> {
    loop {
        let answer = sqlx::raw_sql(text).fetch_one(&mut *sqlite).await;
        match answer.and_then(|row| row.try_get::<String, _>(0)) {
            Ok(answer) => return Ok(answer),
            Err(e) => wait_if_busy(e, text).await?,
        }
    }
}

/// Waits a little while another process holds a lock that SQLite's own wait does not cover, such as for the switch to WAL. The connect
/// timeout ends it.
async fn wait_if_busy(e: sqlx::Error, step: &str) -> Result<(), LeaseError> {
    if !error::is_busy(&e) {
        return Err(error::of_connect(e, step));
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(())
}

#[cfg(unix)]
fn file_id(path: &Path) -> FileId {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// No identity here: a replaced file goes unseen.
#[cfg(not(unix))]
fn file_id(_: &Path) -> FileId {
    None
}
