//! The open file: one connection that writes, one that reads.
//!
//! SQLite has one writer. One writing connection behind a fair lock makes callers of one process wait in order, instead of racing through
//! SQLite's sleeps; the reading one is never held up by a writer. See `step` for how they are used.

use crate::claims::Settings;
use crate::config::SqliteConfig;
use crate::schema::Table;
use crate::{error, keys, mounts, schema};
use lease_core::{BootInstant, Effect, LeaseError, Operation};
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The file, as one instance uses it.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) config: SqliteConfig,
    /// The connection that writes.
    pub(crate) writer: Slot,
    /// The connection that reads.
    pub(crate) reader: Slot,
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
    /// The journal and its index, once the connection is known to have opened them.
    beside: Option<[FileId; 2]>,
}

/// A place for one connection. Empty until first use, and after a connection was given up.
pub(crate) type Slot = Arc<Mutex<Option<Open>>>;

/// Device and inode: the file itself, whatever its name is now.
type FileId = Option<(u64, u64)>;

impl Database {
    pub(crate) fn new(config: SqliteConfig, tables: Vec<Table>) -> Arc<Self> {
        let (writer, reader) = (Slot::default(), Slot::default());
        Arc::new(Self { config, writer, reader, tables, settings: RwLock::new(None) })
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
            open.beside = Some(self.beside());
            if self.is_on_removed_journal() {
                return Err(error::journal_removed(Operation::Connect));
            }
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
        // Once more: the options can be changed after they were parsed.
        keys::check_namespace(&self.config.options().namespace)?;
        error::check_path(path, create)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(create)
            .busy_timeout(PACE)
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let patience = self.patience();
        loop {
            let before = file_id(path);
            match SqliteConnection::connect_with(&options).await {
                // Only a file that was there before and after is surely the one that was opened; one that was created is opened once more.
                Ok(sqlite) if before == file_id(path) && (before.is_some() || !FILES_HAVE_IDS) => {
                    return Ok(Open { sqlite, file: before, beside: None });
                }
                Ok(_) if create || before.is_some() => {}
                Ok(_) => return Err(error::replaced(Operation::Connect)),
                Err(e) => wait_if_busy(e, "opening the file", patience).await?,
            }
        }
    }

    async fn set_up(&self, sqlite: &mut SqliteConnection) -> Result<Settings, LeaseError> {
        let folder = self.config.path().parent().unwrap_or_else(|| Path::new("/"));
        if let Some(kind) = mounts::network_kind(folder) {
            return Err(LeaseError::NotSetUp {
                reason: format!(
                    "{} is on a network file system ({kind}), where SQLite's locks exclude nobody",
                    folder.display()
                ),
                advice: "put the file on a local disk; for several machines use a server's backend".into(),
                source: None,
            });
        }
        let patience = self.patience();
        let mut journal_mode = ask(sqlite, "PRAGMA journal_mode", patience).await?;
        if journal_mode != "wal" {
            journal_mode = ask(sqlite, "PRAGMA journal_mode = wal", patience).await?;
        }
        let encoding = ask(sqlite, "PRAGMA encoding", patience).await?;
        for (what, found, wanted) in [("journal mode", &journal_mode, "wal"), ("encoding", &encoding, "UTF-8")] {
            if found != wanted {
                return Err(LeaseError::NotSetUp {
                    reason: format!("the file's {what} is `{found}`, not `{wanted}`"),
                    advice: "name another file, on a local file system, and let it be created here".into(),
                    source: None,
                });
            }
        }
        schema::ensure(sqlite, &self.tables, patience).await?;
        Ok(Settings {
            version: ask(sqlite, "SELECT sqlite_version()", patience).await?,
            journal_mode,
            synchronous: ask(sqlite, "SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous", patience)
                .await?
                .parse()
                .unwrap_or(0),
        })
    }

    /// Until when a step of connecting that begins now waits for a lock: before the connect timeout, to say what it waits for.
    fn patience(&self) -> Instant {
        most_of(self.config.options().connect_timeout)
    }

    /// Until when a call that begins now waits for the write lock: before its time-out, to say what it waits for.
    pub(crate) fn lock_patience(&self) -> Instant {
        most_of(self.config.options().call_timeout)
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
            Some(open) => Err(self.give_up(open, operation)),
            None => self.open(false).await,
        }
    }

    /// Whether the open file is still the one under the path, and its journal the one beside it: the write lock is in the journal's index, so
    /// whoever opens the file after those were removed has another write lock.
    pub(crate) fn is_on_path(&self, open: &Open) -> bool {
        open.file == file_id(self.config.path()) && open.beside.is_none_or(|beside| beside == self.beside())
    }

    /// Parts with a connection on what is not under the path any more.
    ///
    /// Where only the journal is gone, closing would copy the removed one over the file, and remove by name the one that others use now. So such a
    /// connection stays open, unused, until the process ends. Where the file is gone too, SQLite keeps its hands off.
    pub(crate) fn give_up(&self, open: Open, operation: Operation) -> LeaseError {
        if open.file == file_id(self.config.path()) {
            std::mem::forget(open);
            return error::journal_removed(operation);
        }
        error::replaced(operation)
    }

    /// Whether a connection of this process is on a journal, or an index of it, that was removed while the file stayed. All connections of one
    /// process share the index, so a new one would be on the removed one too, with a write lock that excludes nobody else.
    fn is_on_removed_journal(&self) -> bool {
        let Ok(file) = self.config.path().canonicalize() else { return false };
        let gone = |suffix: &str| {
            let mut path = file.clone().into_os_string();
            path.push(suffix);
            path.push(" (deleted)");
            path
        };
        // Where the system has no such folder, this goes unseen.
        let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return false };
        let open: Vec<_> = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
        let is_open = |suffix| open.iter().any(|target| target.as_os_str() == gone(suffix));
        // Gone together with the file itself they are nobody's any more.
        (is_open("-wal") || is_open("-shm")) && !is_open("")
    }

    /// The journal and its index. They are beside the file itself, not beside a link to it.
    fn beside(&self) -> [FileId; 2] {
        let file = self.config.path().canonicalize().ok();
        ["-wal", "-shm"].map(|suffix| {
            let mut path = file.clone()?.into_os_string();
            path.push(suffix);
            file_id(Path::new(&path))
        })
    }
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

/// Asks for one text.
async fn ask(sqlite: &mut SqliteConnection, text: &'static str, patience: Instant) -> Result<String, LeaseError> {
    loop {
        let answer = sqlx::raw_sql(text).fetch_one(&mut *sqlite).await;
        match answer.and_then(|row| row.try_get::<String, _>(0)) {
            Ok(answer) => return Ok(answer),
            Err(e) => wait_if_busy(e, text, patience).await?,
        }
    }
}

/// How long SQLite itself waits for a lock, in growing sleeps. Short, because the growing ones let a waiter starve among others that come and go;
/// the waiting is done by asking again.
const PACE: Duration = Duration::from_millis(10);

/// Returns while another process holds a lock that is worth another try, until `patience` ends.
pub(crate) async fn wait_if_busy(e: sqlx::Error, step: &str, patience: Instant) -> Result<(), LeaseError> {
    if !error::is_busy(&e) || Instant::now() >= patience {
        return Err(error::of_connect(e, step));
    }
    // Some locks, such as that for the switch to WAL, are not waited for by SQLite at all.
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(())
}

/// Three quarters of `limit` from now.
fn most_of(limit: Duration) -> Instant {
    let now = Instant::now();
    // An hour at most.
    now.checked_add(limit.saturating_mul(3).checked_div(4).unwrap_or_default()).unwrap_or(now)
}

/// Whether [`file_id`] can tell files apart here.
const FILES_HAVE_IDS: bool = cfg!(unix);

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
