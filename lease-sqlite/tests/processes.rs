//! Several processes on one file. Each worker is a helper process: see [`helper`]. The functions that these run are called `role_…`.
#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may fail loudly")]

mod support;

use lease_core::{
    Acquisition, Clock as _, GuardedDestination as _, LeaseBackend as _, LeaseExt as _, Release, SystemClock,
};
use lease_sqlite::{SqliteBackend, SqliteDestination};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use support::*;

/// Longer than any machine is slow.
const PATIENT: &str = "call_timeout_ms=600000&connect_timeout_ms=600000";

/// A worker: it prints a line per event, and waits for a line where its role says so. Killed when dropped.
struct Worker {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
}

impl Worker {
    fn start(role: &str, url: &str) -> Self {
        let mut child =
            helper(role, &format!("{url}?{PATIENT}")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take().unwrap();
        Self { child, lines, input }
    }

    /// What follows `event` in the next line that begins with it; the test harness prints lines too.
    fn event(&mut self, event: &str) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            // The harness prints "test NAME ... " without a line end in front of the first one.
            if let Some((_, rest)) = line.split_once(&format!("@{event}")) {
                return Some(rest.trim().to_owned());
            }
        }
    }

    fn go_on(&mut self) {
        writeln!(self.input).unwrap();
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Stops it, and returns when the system says that it is stopped.
    fn stop(&self) {
        self.signal("-STOP");
        let stat = format!("/proc/{}/stat", self.child.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn say(event: &str, rest: impl std::fmt::Display) {
    println!("@{event} {rest}");
    std::io::stdout().flush().unwrap();
}

fn wait_for_line() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// A helper process's own backend.
async fn backend(url: &str) -> SqliteBackend {
    SqliteBackend::connect(url).await.unwrap()
}

async fn role_first_user(url: &str) {
    say("ready", "");
    wait_for_line();
    // Only now: the file is created by all of them at once.
    let backend = SqliteBackend::connect(url).await.unwrap();
    match backend.acquire(&attempt("r", TEN)).await.unwrap() {
        Acquisition::Acquired(lease) => say("done", value(&lease)),
        Acquisition::Held(_) => say("done", "held"),
    }
}

#[test]
fn ten_processes_that_create_the_file_at_once_get_one_grant() {
    let place = Place::new();
    let mut workers: Vec<_> = (0..10).map(|_| Worker::start("role_first_user", &place.url())).collect();
    for worker in &mut workers {
        worker.event("ready").unwrap();
    }
    for worker in &mut workers {
        worker.go_on();
    }
    let answers: Vec<_> = workers.iter_mut().map(|w| w.event("done").expect("it got an answer")).collect();
    assert_eq!(answers.iter().filter(|answer| *answer != "held").count(), 1, "{answers:?}");
}

async fn role_racer(url: &str) {
    let backend = backend(url).await;
    for _ in 0..60 {
        let lease = backend.acquire_within("r", TEN, Duration::from_mins(10)).await.unwrap().unwrap();
        let held_from = SystemClock.now().as_nanos();
        tokio::task::yield_now().await;
        let held_to = SystemClock.now().as_nanos();
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
        say("held", format_args!("{held_from} {held_to} {}", value(&lease)));
    }
}

#[test]
fn racing_processes_exclude_each_other_and_their_tokens_follow_the_grants() {
    let place = Place::new();
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start("role_racer", &place.url())).collect();
    let mut grants = Vec::new();
    for worker in &mut workers {
        while let Some(line) = worker.event("held") {
            let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            grants.push((numbers[0], numbers[1], numbers[2]));
        }
    }
    assert_eq!(grants.len(), 4 * 60);
    grants.sort_unstable();
    for pair in grants.windows(2) {
        assert!(pair[0].1 < pair[1].0, "two at once: {pair:?}");
        assert!(pair[0].2 < pair[1].2, "the later grant has the larger token: {pair:?}");
    }
}

async fn with_table(place: &Place) -> SqliteDestination {
    let mut plain = place.plain().await;
    sqlx::raw_sql("CREATE TABLE work (what TEXT)").execute(&mut plain).await.unwrap();
    let destination = SqliteDestination::connect(&place.url()).await.unwrap();
    destination.adopt(None, &authority("a")).await.unwrap();
    destination
}

async fn landed(place: &Place) -> i64 {
    number(&mut place.plain().await, "SELECT count(*) FROM work").await
}

/// A holder that waits inside its transaction, with data written.
async fn role_in_transaction(url: &str) {
    let backend = backend(url).await;
    let lease = acquire_for(&backend, "r", Duration::from_secs(2)).await;
    let mut transaction = backend.begin_fenced(&lease).await.unwrap();
    sqlx::query("INSERT INTO work VALUES ('in transaction')").execute(&mut *transaction).await.unwrap();
    say("open", value(&lease));
    wait_for_line();
    say("committed", transaction.commit().await.is_ok());
}

#[tokio::test]
async fn a_process_that_is_killed_inside_its_transaction_frees_the_file_and_leaves_nothing() {
    let place = Place::new();
    with_table(&place).await;
    let mut worker = Worker::start("role_in_transaction", &place.url());
    let old: u64 = worker.event("open").unwrap().parse().unwrap();
    drop(worker);
    assert_eq!(landed(&place).await, 0);
    let next = place.backend().await.acquire_within("r", TEN, Duration::from_mins(10)).await.unwrap().unwrap();
    assert!(value(&next) > old);
}

#[tokio::test]
async fn a_process_that_is_stopped_inside_its_transaction_holds_up_writers_but_nothing_overtakes_it() {
    let place = Place::new();
    with_table(&place).await;
    let backend = place.backend_with("call_timeout_ms=200").await;
    let mut worker = Worker::start("role_in_transaction", &place.url());
    worker.event("open").unwrap();
    worker.stop();
    let clock = backend.clock();
    clock.sleep_until(clock.now().saturating_add(Duration::from_millis(2_100))).await;
    assert!(backend.inspect(&name("r")).await.unwrap().held.is_none(), "its grant has run out");
    let error = backend.acquire(&attempt("r", TEN)).await.unwrap_err();
    assert_busy(&error);
    worker.signal("-CONT");
    worker.go_on();
    assert_eq!(worker.event("committed").unwrap(), "false", "it woke up after its expiry");
    assert_eq!(landed(&place).await, 0);
    backend.acquire_within("r", TEN, Duration::from_mins(10)).await.unwrap().unwrap();
}

/// The two-worker test: it acquires, prepares a write, is stopped past its TTL, and goes on.
async fn role_stale_worker(url: &str) {
    let backend = SqliteBackend::connect(url).await.unwrap();
    let destination = SqliteDestination::connect(url).await.unwrap();
    let lease = acquire_for(&backend, "r", Duration::from_millis(500)).await;
    let token = lease.token().unwrap().clone();
    say("acquired", &token);
    wait_for_line();
    say("past deadline", lease.is_past_deadline());
    say("renewed", matches!(backend.renew(&lease).await, Ok(lease_core::Renewal::Renewed(_))));
    say("released", matches!(backend.release(&lease).await, Ok(Release::Released)));
    say("fenced", backend.fence().register().unwrap().write(&lease, "stale").await.is_ok());
    say("fenced transaction", backend.begin_fenced(&lease).await.is_ok());
    say("guarded", destination.write(&name("r"), &token, "stale").await.is_ok());
    say("guarded transaction", destination.guard().begin(&name("r"), &token).await.is_ok());
}

#[tokio::test]
async fn a_worker_that_was_stopped_past_its_ttl_can_do_nothing() {
    let place = Place::new();
    let mut worker = Worker::start("role_stale_worker", &place.url());
    let token: lease_core::FencingToken = worker.event("acquired").unwrap().parse().unwrap();
    worker.stop();
    let backend = place.backend().await;
    let destination = SqliteDestination::connect(&place.url()).await.unwrap();
    destination.adopt(None, token.authority()).await.unwrap();
    let next = backend.acquire_within("r", TEN, Duration::from_mins(10)).await.unwrap().unwrap();
    // It seals, and has not written yet.
    destination.seal(&name("r"), next.token().unwrap()).await.unwrap();
    worker.signal("-CONT");
    worker.go_on();
    assert_eq!(worker.event("past deadline").unwrap(), "true");
    for what in ["renewed", "released", "fenced", "fenced transaction", "guarded", "guarded transaction"] {
        assert_eq!(worker.event(what).unwrap(), "false", "{what}");
    }
    assert!(is_held(&backend, "r").await, "the new lease is untouched");
    assert_eq!(destination.read(&name("r")).await.unwrap().value, None);
}

/// Takes grants until it is killed, and says each one only after it was acknowledged.
async fn role_until_killed(url: &str) {
    let backend = backend(url).await;
    loop {
        let lease = acquire(&backend, "r").await;
        say("granted", value(&lease));
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn tokens_grow_over_killed_processes() {
    let place = Place::new();
    let backend = place.backend().await;
    // Only the record orders the values: it is far ahead of the wall clock.
    let first = acquire(&backend, "r").await;
    assert!(matches!(backend.release(&first).await, Ok(Release::Released)));
    let mut plain = place.plain().await;
    sqlx::query("UPDATE leasehold_lease SET value = 8000000000000000000").execute(&mut plain).await.unwrap();
    let mut last = 8_000_000_000_000_000_000;
    for _ in 0..5 {
        let mut worker = Worker::start("role_until_killed", &place.url());
        for _ in 0..20 {
            let value: u64 = worker.event("granted").unwrap().parse().unwrap();
            assert!(value > last);
            last = value;
        }
        drop(worker);
        // It may have been killed while it held one.
        sqlx::query("UPDATE leasehold_lease SET released = 1").execute(&mut plain).await.unwrap();
    }
    assert!(value(&acquire(&backend, "r").await) > last);
}

/// Lives through whole leases on three names that others want too.
async fn role_cycler(url: &str) {
    let backend = backend(url).await;
    let long = Duration::from_mins(10);
    for round in 0..45 {
        let resource = ["a", "b", "c"][round % 3];
        let lease = backend.acquire_within(resource, long, long).await.unwrap().unwrap();
        assert!(matches!(backend.renew(&lease).await, Ok(lease_core::Renewal::Renewed(_))));
        assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
    }
    say("done", "");
}

/// Somebody else's program on the same file, which reads before it writes and pays no heed.
async fn role_stranger(url: &str) {
    use sqlx::ConnectOptions as _;
    let path = lease_sqlite::SqliteConfig::parse(url).unwrap().path().to_owned();
    let mut plain = sqlx::sqlite::SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    let mut written = 0_u64;
    loop {
        let work = "BEGIN; SELECT count(*) FROM stranger; INSERT INTO stranger VALUES (1); COMMIT";
        match sqlx::raw_sql(work).execute(&mut plain).await {
            Ok(_) => {
                written = written.saturating_add(1);
                say("wrote", written);
            }
            // It is this program that has the trouble.
            Err(_) => drop(sqlx::raw_sql("ROLLBACK").execute(&mut plain).await),
        }
    }
}

#[tokio::test]
async fn processes_on_a_file_that_a_stranger_writes_too_see_no_error() {
    let place = Place::new();
    let mut plain = place.plain().await;
    sqlx::raw_sql("PRAGMA journal_mode = wal; CREATE TABLE stranger (n INTEGER)").execute(&mut plain).await.unwrap();
    let mut stranger = Worker::start("role_stranger", &place.url());
    stranger.event("wrote").unwrap();
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start("role_cycler", &place.url())).collect();
    for worker in &mut workers {
        worker.event("done").expect("it lived through all its leases");
    }
    let wrote = number(&mut plain, "SELECT count(*) FROM stranger").await;
    assert!(wrote > 10, "the stranger was in the way: {wrote}");
}

/// Plays the role that this program was started for; started by nobody, it checks that a role which does not exist is no success.
#[tokio::test]
async fn helper_process() {
    let Some((role, url)) = role() else {
        assert!(!helper("role_of_nobody", "").output().unwrap().status.success());
        return;
    };
    match role.as_str() {
        "role_first_user" => role_first_user(&url).await,
        "role_racer" => role_racer(&url).await,
        "role_in_transaction" => role_in_transaction(&url).await,
        "role_stale_worker" => role_stale_worker(&url).await,
        "role_until_killed" => role_until_killed(&url).await,
        "role_cycler" => role_cycler(&url).await,
        "role_stranger" => role_stranger(&url).await,
        other => unreachable!("there is no {other}"),
    }
}
