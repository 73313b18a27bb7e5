//! `SQLite`: the guard's transaction for the caller's own statements, careless writes by the client `sqlx`, and the death of a process that
//! has the file open.

mod plain;

use super::raw;
use crate::subject::{PlainWriter, ServerControl, TestDestination};
use lease_core::{
    Authority, Claims, FencingToken, GuardError, GuardedDestination, LeaseError, Operation, ResourceName, Stored,
};
use lease_sqlite::{SqliteConfig, SqliteDestination};
pub(super) use plain::Tokenless;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A guarded destination, with connections of the caller's own beside it.
#[derive(Debug)]
pub(super) struct Destination {
    guarded: SqliteDestination,
    own: Own,
}

impl Destination {
    pub(super) async fn open(url: &str) -> Result<Self, GuardError> {
        Ok(Self { guarded: SqliteDestination::connect(url).await?, own: Own::new(url)? })
    }

    /// The caller's own statement on the guarded data.
    async fn put(
        &self,
        connection: &mut SqliteConnection,
        resource: &ResourceName,
        value: &str,
    ) -> Result<(), LeaseError> {
        let sql = format!(
            "INSERT INTO {}_register (resource, value) VALUES (?1, ?2)
             ON CONFLICT (resource) DO UPDATE SET value = excluded.value",
            self.own.namespace
        );
        let put = sqlx::query(AssertSqlSafe(sql)).bind(resource.as_str()).bind(value).execute(connection);
        raw::bounded(Operation::GuardedWrite, put).await.map(drop)
    }
}

#[async_trait::async_trait]
impl GuardedDestination for Destination {
    fn kind(&self) -> &'static str {
        self.guarded.kind()
    }

    fn claims(&self) -> Claims {
        self.guarded.claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        self.guarded.adopt(expected_old, new).await
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.guarded.seal(resource, token).await
    }

    /// As a user does it: an own statement in the guard's transaction.
    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let mut transaction = self.guarded.guard().begin(resource, token).await?;
        self.put(&mut transaction, resource, value).await?;
        transaction.commit().await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        self.guarded.read(resource).await
    }
}

#[async_trait::async_trait]
impl TestDestination for Destination {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        let mut connection = self.own.connect().await?;
        self.put(&mut connection, resource, value).await?;
        Ok(raw::bounded(Operation::GuardedWrite, connection.close()).await?)
    }

    /// A refused caller gets no transaction, so there is nothing to go on with; one that was admitted commits.
    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        self.write(resource, token, value).await
    }

    async fn write_and_roll_back(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Option<Result<(), GuardError>> {
        let work = async {
            let mut transaction = self.guarded.guard().begin(resource, token).await?;
            self.put(&mut transaction, resource, value).await?;
            transaction.rollback().await;
            Ok(())
        };
        Some(work.await)
    }
}

/// Writes the register of a lease store without asking its fence.
#[derive(Debug)]
pub(super) struct Plain(Own);

impl Plain {
    pub(super) fn new(url: &str) -> Result<Self, LeaseError> {
        Own::new(url).map(Self)
    }

    /// Deletes the record of a resource's lease.
    pub(super) async fn delete_record(&self, resource: &ResourceName) -> Result<(), LeaseError> {
        let mut connection = self.0.connect().await?;
        let sql = format!("DELETE FROM {}_lease WHERE resource = ?1", self.0.namespace);
        let delete = sqlx::query(AssertSqlSafe(sql)).bind(resource.as_str()).execute(&mut connection);
        raw::bounded(Operation::CleanUp, delete).await?;
        raw::bounded(Operation::CleanUp, connection.close()).await
    }
}

#[async_trait::async_trait]
impl PlainWriter for Plain {
    async fn write(&self, resource: &ResourceName, value: &str) -> Result<(), LeaseError> {
        let mut connection = self.0.connect().await?;
        let sql = format!("UPDATE {}_lease SET register = ?2 WHERE resource = ?1", self.0.namespace);
        let put = sqlx::query(AssertSqlSafe(sql)).bind(resource.as_str()).bind(value).execute(&mut connection);
        raw::bounded(Operation::FencedWrite, put).await?;
        raw::bounded(Operation::FencedWrite, connection.close()).await
    }
}

/// How the caller opens the file by itself.
#[derive(Debug)]
struct Own {
    namespace: String,
    options: SqliteConnectOptions,
}

impl Own {
    fn new(url: &str) -> Result<Self, LeaseError> {
        let config = SqliteConfig::parse(url)?;
        let options = SqliteConnectOptions::new().filename(config.path()).create_if_missing(false);
        Ok(Self { namespace: config.options().namespace.as_str().to_owned(), options })
    }

    async fn connect(&self) -> Result<SqliteConnection, LeaseError> {
        raw::bounded(Operation::Connect, SqliteConnection::connect_with(&self.options)).await
    }
}

/// What is to a file as a kill is to a server: a process dies in the middle of a write to it, and another one opens it. And as a stop is: a
/// process keeps the file locked, so that nobody else can write to it.
#[derive(Debug)]
pub(crate) struct FileControl {
    url: String,
    program: PathBuf,
    locked_by: Mutex<Option<Holder>>,
}

impl FileControl {
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program's own file: {e}"))?;
        Ok(Self { url: url.to_owned(), program, locked_by: Mutex::default() })
    }

    /// A panic of another user left at worst a lock, which the next one takes over.
    fn locked_by(&self) -> MutexGuard<'_, Option<Holder>> {
        self.locked_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerControl for FileControl {
    fn kill_and_restart(&self) -> Result<(u32, u32), String> {
        let mut dying = Holder::start(&self.program, &self.url)?;
        dying.kill()?;
        let mut next = Holder::start(&self.program, &self.url)?;
        next.kill()?;
        Ok((dying.pid(), next.pid()))
    }

    fn pause(&self) -> Result<u32, String> {
        let holder = Holder::start(&self.program, &self.url)?;
        let pid = holder.pid();
        *self.locked_by() = Some(holder);
        Ok(pid)
    }

    fn resume(&self) -> Result<(), String> {
        self.locked_by().take().map_or(Ok(()), |mut holder| holder.kill())
    }

    fn can_be_down(&self) -> bool {
        false
    }

    fn kill(&self) -> Result<u32, String> {
        Err(NO_PROCESS.to_owned())
    }

    fn start(&self) -> Result<u32, String> {
        Err(NO_PROCESS.to_owned())
    }
}

const NO_PROCESS: &str = "a file is no process, and cannot be down";

/// A process with an uncommitted write to the file.
#[derive(Debug)]
struct Holder(Child);

impl Holder {
    /// Starts it and waits until its write is done; that it gets so far shows that the file is sound.
    fn start(program: &Path, url: &str) -> Result<Self, String> {
        let child = Command::new(program)
            .args(["write-and-wait", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start a process that opens the file: {e}"))?;
        let mut holder = Self(child);
        let stdout = holder.0.stdout.take().ok_or("it has no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
        if line.trim() == WRITTEN { Ok(holder) } else { Err("the process that opens the file ended early".to_owned()) }
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill(&mut self) -> Result<(), String> {
        self.0.kill().and_then(|()| self.0.wait()).map(drop).map_err(|e| e.to_string())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may be gone already.
        drop(self.kill());
    }
}

const WRITTEN: &str = "written";

/// Writes to the file without committing, says so, and waits to be killed; ends by itself when standard input does.
pub(crate) async fn write_and_wait(url: &str) -> Result<(), String> {
    let own = Own::new(url).map_err(|e| e.to_string())?;
    let mut connection = own.connect().await.map_err(|e| e.to_string())?;
    let sql = "PRAGMA integrity_check; BEGIN IMMEDIATE; CREATE TABLE conf_never_committed (x TEXT); \
               INSERT INTO conf_never_committed VALUES (hex(randomblob(4096)))";
    let writing = sqlx::raw_sql(sql).execute(&mut connection);
    raw::bounded(Operation::GuardedWrite, writing).await.map_err(|e| e.to_string())?;
    super::super::cli::put(&format!("{WRITTEN}\n"));
    let mut nothing = String::new();
    std::io::stdin().read_line(&mut nothing).map(drop).map_err(|e| e.to_string())
}
