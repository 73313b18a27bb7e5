//! What can be wrong with the file, and what the error says to do. The least-privileged account.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may fail loudly")]

mod support;

use lease_core::{
    Advice, Clock as _, Effect, ErrorKind, Forced, LeaseBackend as _, LeaseError, Release, Renewal, SystemClock,
};
use lease_sqlite::{SqliteBackend, SqliteDestination};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;
use support::*;

async fn refusal(url: &str) -> LeaseError {
    let error = SqliteBackend::connect(url).await.unwrap_err();
    let other = SqliteDestination::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), other.kind(), "backend and destination agree: {error} / {other}");
    assert_eq!(error.effect(), Effect::None);
    error
}

#[tokio::test]
async fn a_missing_directory_a_directory_and_a_foreign_file_are_told_apart() {
    let place = Place::new();
    let folder = place.folder.path().display();
    let error = refusal(&format!("sqlite://{folder}/missing/leases.db")).await;
    assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error}");
    assert!(error.to_string().contains("create it"), "{error}");

    let error = refusal(&format!("sqlite://{folder}")).await;
    assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error}");
    assert!(error.to_string().contains("name a file in it"), "{error}");

    let text = "this is a text of somebody else, long enough to be no empty database. ".repeat(20);
    std::fs::write(place.path(), &text).unwrap();
    let error = refusal(&place.url()).await;
    assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error}");
    assert!(error.to_string().contains("name another file"), "{error}");
    assert_eq!(std::fs::read_to_string(place.path()).unwrap(), text, "left alone");
}

/// The leases as they were before they could be ended by force.
const BEFORE_FORCED: &str = "leasehold_lease (resource TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, grant_id TEXT NOT NULL, \
    holder TEXT NOT NULL, value INTEGER NOT NULL, boot TEXT NOT NULL, expires INTEGER NOT NULL, granted INTEGER NOT NULL, \
    renewed INTEGER NOT NULL, released INTEGER NOT NULL, register TEXT) STRICT, WITHOUT ROWID";

#[tokio::test]
async fn a_table_of_another_shape_is_refused() {
    for (table, destination) in [
        ("leasehold_lease (resource TEXT, owner TEXT, value INTEGER)", false),
        (BEFORE_FORCED, false),
        ("leasehold_mark (resource TEXT, authority TEXT, value INTEGER, grant_id TEXT)", true),
    ] {
        let place = Place::new();
        let mut plain = place.plain().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE TABLE {table}"))).execute(&mut plain).await.unwrap();
        let error = if destination {
            SqliteDestination::connect(&place.url()).await.map(drop).unwrap_err()
        } else {
            SqliteBackend::connect(&place.url()).await.map(drop).unwrap_err()
        };
        assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error}");
        assert!(error.to_string().contains("choose another namespace"), "{error}");
        let other = format!("{}?namespace=other", place.url());
        SqliteBackend::connect(&other).await.unwrap();
    }
}

#[tokio::test]
async fn an_encoding_that_orders_names_otherwise_is_refused() {
    let place = Place::new();
    let mut plain = place.plain().await;
    sqlx::raw_sql("PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (a)").execute(&mut plain).await.unwrap();
    let error = refusal(&place.url()).await;
    assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error}");
    assert!(error.to_string().contains("UTF-16le"), "{error}");
}

#[tokio::test]
async fn a_file_that_was_replaced_while_open_is_noticed() {
    let place = Place::new();
    let old = place.backend().await;
    let lease = acquire(&old, "r").await;
    old.inspect(&name("r")).await.unwrap();
    std::fs::remove_file(place.path()).unwrap();
    let error = old.inspect(&name("r")).await.unwrap_err();
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    let error = old.renew(&lease).await.unwrap_err();
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain));
    let error = old.renew(&lease).await.unwrap_err();
    assert!(error.to_string().contains("connect anew"), "never silently a new file: {error}");
    drop(std::fs::remove_file(place.folder.path().join("leases.db-wal")));
    drop(std::fs::remove_file(place.folder.path().join("leases.db-shm")));

    let new = place.backend().await;
    let next = acquire(&new, "r").await;
    assert_eq!(next.token().partial_cmp(&lease.token()), None, "another history, another authority");
    assert!(matches!(old.renew(&lease).await, Ok(Renewal::Lost(_))), "it follows the path");
}

#[tokio::test]
async fn a_file_that_is_removed_while_a_call_waits_for_its_lock_grants_nothing() {
    let place = Place::new();
    let backend = place.backend_with("call_timeout_ms=600000").await;
    let mut locked = place.plain().await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut locked).await.unwrap();
    let attempt = attempt("r", TEN);
    let removing = async {
        // So that it waits for SQLite's lock by now; if it does not, it finds the file gone even earlier.
        SystemClock.sleep_until(SystemClock.now().saturating_add(Duration::from_millis(100))).await;
        std::fs::remove_file(place.path()).unwrap();
        sqlx::query("ROLLBACK").execute(&mut locked).await.unwrap();
    };
    let (answer, ()) = tokio::join!(biased; backend.acquire(&attempt), removing);
    let error = answer.unwrap_err();
    assert!(error.to_string().contains("removed"), "{error}");
    let left = number(&mut locked, "SELECT count(*) FROM leasehold_lease").await;
    assert_eq!(left, 0, "nor in the file that has no name any more");
}

/// The moment between SQLite's opening the file and this crate's looking which file that is.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_replaced_while_it_is_opened_is_never_taken_for_the_new_one() {
    for round in 0..100_u64 {
        let place = Place::new();
        drop(place.backend().await);
        let path = place.path();
        std::fs::write(path.with_extension("new"), "").unwrap();
        let replacing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * 30));
            for suffix in ["-wal", "-shm"] {
                drop(std::fs::remove_file(format!("{}{suffix}", path.display())));
            }
            std::fs::rename(path.with_extension("new"), &path).unwrap();
        });
        let early = SqliteBackend::connect(&place.url()).await;
        replacing.join().unwrap();
        let (Ok(early), Ok(late)) = (early, SqliteBackend::connect(&place.url()).await) else { continue };
        let early = try_acquire(&early, &attempt("r", TEN)).await;
        let late = try_acquire(&late, &attempt("r", TEN)).await;
        assert!(!matches!((early, late), (Ok(Some(_)), Ok(Some(_)))), "two holders, in round {round}");
    }
}

/// The write lock is in the journal's index, so two processes with different ones do not exclude each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_was_removed_while_open_is_noticed() {
    for removed in [&["-shm"][..], &["-shm", "-wal"]] {
        let place = Place::new();
        let backend = place.backend().await;
        let lease = acquire(&backend, "r").await;
        // The connection that reads is open too.
        backend.inspect(&name("r")).await.unwrap();
        for suffix in removed {
            std::fs::remove_file(format!("{}{suffix}", place.path().display())).unwrap();
        }
        assert_eq!(elsewhere(&place), "granted", "without {removed:?}");
        for _ in 0..2 {
            for error in [
                backend.renew(&lease).await.unwrap_err(),
                backend.acquire(&attempt("s", TEN)).await.unwrap_err(),
                backend.inspect(&name("r")).await.unwrap_err(),
                SqliteBackend::connect(&place.url()).await.unwrap_err(),
            ] {
                assert!(error.to_string().contains("restarted"), "{error}");
                assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::Fix));
            }
        }
        drop(backend);
        assert_eq!(elsewhere(&place), "held", "what was granted since is left alone, without {removed:?}");
    }
}

/// What another process, which ends then, gets when it tries to acquire.
fn elsewhere(place: &Place) -> &'static str {
    let output = helper("role_acquires", &place.url()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ["granted", "held"].into_iter().find(|answer| text.contains(&format!("answer: {answer}"))).unwrap_or("nothing")
}

async fn role_acquires(url: &str) {
    let backend = SqliteBackend::connect(url).await.unwrap();
    let lease = try_acquire(&backend, &attempt("s", Duration::from_hours(1))).await.unwrap();
    println!("answer: {}", if lease.is_some() { "granted" } else { "held" });
}

#[tokio::test]
async fn one_file_under_any_name_of_it() {
    let place = Place::new();
    let backend = place.backend().await;
    let link = place.folder.path().join("link.db");
    std::os::unix::fs::symlink(place.path(), &link).unwrap();
    let other = SqliteBackend::connect(&format!("sqlite://{}", link.display())).await.unwrap();
    let lease = acquire(&other, "r").await;
    assert!(is_held(&backend, "r").await);
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
}

const NOBODY: u32 = 65_534;

/// Runs the function `role` of this file in a [helper process](helper) as an unprivileged user, and gives back what it printed.
fn as_nobody(role: &str, url: &str) -> String {
    let mut command = helper(role, url);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

fn open_to_nobody(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_account_that_owns_file_and_directory_can_do_everything() {
    let place = Place::new();
    open_to_nobody(place.folder.path(), 0o700);
    if is_root() {
        chown(place.folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    assert!(as_nobody("role_runs_all_operations", &place.url()).contains("all done"));
}

async fn role_runs_all_operations(url: &str) {
    use lease_core::GuardedDestination as _;
    let backend = SqliteBackend::connect(url).await.unwrap();
    let lease = acquire(&backend, "r").await;
    assert!(matches!(backend.renew(&lease).await, Ok(Renewal::Renewed(_))));
    backend.begin_fenced(&lease).await.unwrap().commit().await.unwrap();
    assert_eq!(backend.list("", None, 1).await.unwrap().grants.len(), 1);
    assert!(backend.inspect(&name("r")).await.unwrap().held.is_some());
    assert!(matches!(backend.release(&lease).await, Ok(Release::Released)));
    backend.abandon(&attempt("r", TEN)).await.unwrap();
    assert_eq!(force(&backend, &acquire(&backend, "r").await).await, Forced::Ended);
    backend.clean_up().await.unwrap();
    let destination = SqliteDestination::connect(url).await.unwrap();
    destination.adopt(None, &authority("a")).await.unwrap();
    destination.write(&name("r"), &token(1, 1), "x").await.unwrap();
    destination.purge().await.unwrap();
    backend.purge().await.unwrap();
    println!("all done");
}

/// A file or a directory that this user may not write to, and one that it may not look into.
#[test]
fn a_missing_permission_is_named_with_what_is_needed() {
    for (what, folder_mode, file_mode) in
        [("file", 0o777, 0o444), ("directory", 0o555, 0o666), ("no entry", 0o000, 0o666)]
    {
        let place = Place::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut plain = place.plain().await;
            sqlx::raw_sql("PRAGMA journal_mode = wal; CREATE TABLE t (a)").execute(&mut plain).await.unwrap();
            sqlx::Connection::close(plain).await.unwrap();
        });
        open_to_nobody(&place.path(), file_mode);
        open_to_nobody(place.folder.path(), folder_mode);
        let told = as_nobody("role_is_refused", &place.url());
        open_to_nobody(place.folder.path(), 0o700);
        assert!(told.contains("read and write permission"), "{what}: {told}");
    }
}

async fn role_is_refused(url: &str) {
    let error = refusal(url).await;
    assert!(matches!(error, LeaseError::MissingPrivilege { .. }), "{error}");
    assert_eq!((error.kind(), error.advice()), (ErrorKind::SetUp, Advice::Fix));
    println!("{error}");
}

/// Plays the role that this program was started for; started by nobody, it checks that a role which does not exist is no success.
#[tokio::test]
async fn helper_process() {
    let Some((role, url)) = role() else {
        assert!(!helper("role_of_nobody", "").output().unwrap().status.success());
        return;
    };
    match role.as_str() {
        "role_acquires" => role_acquires(&url).await,
        "role_runs_all_operations" => role_runs_all_operations(&url).await,
        "role_is_refused" => role_is_refused(&url).await,
        other => unreachable!("there is no {other}"),
    }
}
