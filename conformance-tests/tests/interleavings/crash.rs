//! A crash between the check and the write, of the writer and of the server: mark and mutation are there together, or neither is.

use crate::model::{FIRST, token};
use lease_core::memory::MemoryDestination;
use lease_core::{Authority, GuardError, GuardedDestination, Refusal, ResourceName, Stored};
use lease_postgres::PostgresDestination;
use lease_redis::RedisDestination;
use lease_servers::{PostgresSetup, RedisSetup, Server};
use lease_sqlite::SqliteDestination;
use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const URL: &str = "LEASE_INTERLEAVINGS_URL";
/// Which role a process of this test program plays.
const ROLE: &str = "LEASE_INTERLEAVINGS_ROLE";
const INSIDE: &str = "is admitted, writes, and never commits";
const WRITES: &str = "writes until it is killed";
const LIMITS: &str = "call_timeout_ms=60000&connect_timeout_ms=60000";

fn name() -> ResourceName {
    ResourceName::parse("r").unwrap()
}

async fn open(url: &str) -> Result<Arc<dyn GuardedDestination>, lease_core::LeaseError> {
    Ok(match url.split(':').next().unwrap() {
        "sqlite" => Arc::new(SqliteDestination::connect(url).await?),
        "postgres" => Arc::new(PostgresDestination::connect(url).await?),
        "redis" => Arc::new(RedisDestination::connect(url).await?),
        #[cfg(feature = "etcd-saboteurs")]
        "etcd" => Arc::new(lease_etcd::EtcdDestination::connect(url).await?),
        other => panic!("{other}"),
    })
}

/// A destination that trusts the authority of these tests, and on which grant 3 has written.
async fn with_mark(url: &str) -> Arc<dyn GuardedDestination> {
    let destination = open(url).await.unwrap();
    destination.adopt(None, &Authority::parse(FIRST).unwrap()).await.unwrap();
    destination.write(&name(), &token(FIRST, 3, 3), "3").await.unwrap();
    destination
}

/// A process of this test program that plays a role; killed when dropped.
struct Writer {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Writer {
    fn start(role: &str, url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crash::helper_process", "--nocapture"]).env(ROLE, role).env(URL, url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// What follows the mark `@` in its next line that has one.
    fn says(&mut self) -> String {
        loop {
            let Some(line) = self.lines.next() else { panic!("it has ended by itself") };
            if let Some((_, said)) = line.unwrap().split_once('@') {
                return said.to_owned();
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn say(what: impl std::fmt::Display) {
    use std::io::Write as _;
    println!("@{what}");
    std::io::stdout().flush().unwrap();
}

/// What a process of these tests does; without a role, in a run of all tests, nothing.
#[tokio::test]
async fn helper_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let url = std::env::var(URL).unwrap();
    match role.as_str() {
        INSIDE => {
            let for_ever = async {
                say("open");
                std::future::pending::<()>().await;
            };
            inside(&url, for_ever).await;
        }
        WRITES => writes_until_killed(&url).await,
        unknown => panic!("there is no role `{unknown}`"),
    }
}

/// Opens a transaction for grant 7, writes in it, and does `then` before the commit that never comes.
async fn inside(url: &str, then: impl Future<Output = ()>) {
    if url.starts_with("sqlite:") {
        let guard = SqliteDestination::connect(url).await.unwrap().guard();
        let mut transaction = guard.begin(&name(), &token(FIRST, 7, 7)).await.unwrap();
        sqlx::query("UPDATE leasehold_register SET value = '7'").execute(&mut *transaction).await.unwrap();
        then.await;
    } else {
        let guard = PostgresDestination::connect(url).await.unwrap().guard();
        let pool = sqlx::PgPool::connect(url.split('?').next().unwrap()).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        guard.admit(&mut transaction, &name(), &token(FIRST, 7, 7)).await.unwrap();
        sqlx::query("UPDATE leasehold.guarded SET value = '7'").execute(&mut *transaction).await.unwrap();
        then.await;
    }
}

/// Nothing of grant 7 is there; grant 3 could still write; a newer grant goes on, and then grant 3 is stale.
async fn assert_nothing_of_it(destination: &dyn GuardedDestination) {
    let stored = destination.read(&name()).await.unwrap();
    let old = token(FIRST, 3, 3);
    assert_eq!(
        (stored.value.as_deref(), stored.mark),
        (Some("3"), Some((3, old.grant()))),
        "mark and write go together"
    );
    destination.write(&name(), &old, "3 again").await.unwrap();
    destination.write(&name(), &token(FIRST, 8, 8), "8").await.unwrap();
    assert_stale(destination, 7).await;
}

async fn assert_stale(destination: &dyn GuardedDestination, value: u64) {
    let answer = destination.write(&name(), &token(FIRST, value, value), "stale").await;
    assert!(matches!(answer, Err(GuardError::Refused { refusal: Refusal::Stale { .. }, .. })), "{value}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_is_killed_between_check_and_commit_leaves_neither_mark_nor_write() {
    let folder = tempfile::tempdir().unwrap();
    let server = postgres();
    let file = format!("sqlite://{}?{LIMITS}", folder.path().join("a.db").display());
    for url in [file, format!("{}?{LIMITS}", server.url())] {
        let destination = with_mark(&url).await;
        let mut writer = Writer::start(INSIDE, &url);
        assert_eq!(writer.says(), "open");
        drop(writer);
        assert_nothing_of_it(&*destination).await;
    }
}

fn postgres() -> Server {
    lease_servers::postgres(&PostgresSetup::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_is_killed_between_check_and_commit_keeps_neither_mark_nor_write() {
    let mut server = postgres();
    let url = format!("{}?{LIMITS}", server.url());
    drop(with_mark(&url).await);
    inside(&url, async { server.kill() }).await;
    server.restart().unwrap();
    assert_nothing_of_it(&*open(&url).await.unwrap()).await;
}

/// Grants 10, 11, … write one after the other; `kill` is called when some were acknowledged, while the next ones are on their way.
async fn kill_among_writes(url: &str, kill: impl FnOnce() + Send + 'static) -> (u64, u64) {
    let destination = with_mark(url).await;
    let (sent, acknowledged) = (Arc::new(AtomicU64::new(9)), Arc::new(AtomicU64::new(9)));
    let writing = tokio::spawn({
        let (sent, acknowledged) = (Arc::clone(&sent), Arc::clone(&acknowledged));
        async move {
            loop {
                let value = sent.fetch_add(1, Ordering::SeqCst) + 1;
                let written = destination.write(&name(), &token(FIRST, value, value), &value.to_string()).await;
                if written.is_err() {
                    return;
                }
                acknowledged.store(value, Ordering::SeqCst);
            }
        }
    });
    while acknowledged.load(Ordering::SeqCst) < 25 {
        assert!(!writing.is_finished(), "a write failed before the kill");
        tokio::task::yield_now().await;
    }
    tokio::task::spawn_blocking(kill).await.unwrap();
    // No answer comes any more; how long the client goes on asking is not what this is about.
    writing.abort();
    (acknowledged.load(Ordering::SeqCst), sent.load(Ordering::SeqCst))
}

/// Whether mark and write are of one grant, and none that was acknowledged is lost.
fn is_whole(stored: &Stored, (acknowledged, sent): (u64, u64)) -> bool {
    stored.mark.is_some_and(|(mark, grant)| {
        let in_range = (acknowledged..=sent).contains(&mark);
        in_range && stored.value == Some(mark.to_string()) && grant == token(FIRST, mark, mark).grant()
    })
}

#[tokio::test]
async fn what_is_half_done_or_lost_would_be_noticed() {
    let destination = MemoryDestination::new();
    destination.adopt(None, &Authority::parse(FIRST).unwrap()).await.unwrap();
    destination.write(&name(), &token(FIRST, 10, 10), "10").await.unwrap();
    assert!(is_whole(&destination.read(&name()).await.unwrap(), (10, 11)));
    assert!(!is_whole(&destination.read(&name()).await.unwrap(), (11, 12)), "a lost write");
    destination.seal(&name(), &token(FIRST, 11, 11)).await.unwrap();
    assert!(!is_whole(&destination.read(&name()).await.unwrap(), (10, 11)), "a mark without its write");
    destination.write_plain(&name(), "12");
    assert!(!is_whole(&destination.read(&name()).await.unwrap(), (10, 12)), "a write without its mark");
}

/// Mark and write are of one grant, none that was acknowledged is lost, and a newer grant goes on.
async fn assert_whole(url: &str, (acknowledged, sent): (u64, u64)) {
    let destination = open(url).await.unwrap();
    let stored = destination.read(&name()).await.unwrap();
    assert!(is_whole(&stored, (acknowledged, sent)), "{stored:?} {acknowledged} {sent}");
    assert_stale(&*destination, acknowledged - 1).await;
    destination.write(&name(), &token(FIRST, sent + 1, sent + 1), "on").await.unwrap();
    assert_stale(&*destination, sent).await;
}

const ROUNDS: usize = 3;

async fn killed_servers(start: impl Fn() -> Server) {
    for _ in 0..ROUNDS {
        let server = Arc::new(std::sync::Mutex::new(start()));
        let url = format!("{}?{LIMITS}", server.lock().unwrap().url());
        let killed = Arc::clone(&server);
        let counts = kill_among_writes(&url, move || killed.lock().unwrap().kill()).await;
        server.lock().unwrap().restart().unwrap();
        assert_whole(&url, counts).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_is_killed_among_guarded_writes_keeps_mark_and_write_together() {
    killed_servers(postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_killed_among_guarded_scripts_keeps_mark_and_write_together() {
    killed_servers(|| lease_servers::redis(&RedisSetup::default()).unwrap()).await;
}

#[cfg(feature = "etcd-saboteurs")]
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_is_killed_among_guarded_writes_keeps_mark_and_write_together() {
    killed_servers(|| lease_servers::etcd(&lease_servers::EtcdSetup::default()).unwrap()).await;
}

/// Grants 10, 11, … write until the process is killed; it says each one that was acknowledged.
async fn writes_until_killed(url: &str) {
    let destination = open(url).await.unwrap();
    for value in 10_u64.. {
        destination.write(&name(), &token(FIRST, value, value), &value.to_string()).await.unwrap();
        say(value);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_among_guarded_writes_to_a_file_keeps_mark_and_write_together() {
    for _ in 0..ROUNDS {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}?{LIMITS}", folder.path().join("a.db").display());
        drop(with_mark(&url).await);
        let mut writer = Writer::start(WRITES, &url);
        let mut acknowledged = 0;
        while acknowledged < 25 {
            acknowledged = writer.says().parse().unwrap();
        }
        writer.child.kill().unwrap();
        // Those that it had said before it was killed.
        while let Some(Ok(line)) = writer.lines.next() {
            if let Some((_, said)) = line.split_once('@') {
                acknowledged = said.parse().unwrap();
            }
        }
        // One more may be there whose saying was cut off; of that one nobody was told.
        assert_whole(&url, (acknowledged, acknowledged + 1)).await;
    }
}
