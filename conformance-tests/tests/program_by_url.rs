//! The program on servers that are there already: it uses namespaces of its own and leaves nothing behind, whatever ends it.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

use lease_servers::{PostgresSetup, RedisSetup, Server};
use sqlx::{Connection as _, PgConnection};
use std::io::{Read as _, Write as _};
use std::process::{Command, Output};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lease-conformance"))
}

fn run(backend: &str, case: &str) -> Output {
    let output = program().args(["run", "--backend", backend, "--case", case]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    output
}

/// Everything that the program printed.
fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

/// How many keys Redis has.
fn keys(server: &Server) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"DBSIZE\r\n").unwrap();
    let mut answer = [0; 32];
    let length = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(answer.get(..length).unwrap()).trim().to_owned()
}

/// The schemas in PostgreSQL that are not its own.
async fn schemas(server: &Server) -> Vec<String> {
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ('public', 'information_schema')";
    sqlx::query_scalar(sql).fetch_all(&mut connection).await.unwrap()
}

#[test]
fn redis_has_no_key_more_afterwards() {
    let server = lease_servers::redis(&RedisSetup::default()).unwrap();
    let output = run(&format!("redis={}", server.url()), "fencing/");
    assert_eq!(keys(&server), ":0");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("same") && text.contains("refused"), "{text}");
    run(&format!("redis-fred={}", server.url().replacen("redis:", "redis+fred:", 1)), "destination/admits-holder");
    assert_eq!(keys(&server), ":0");
}

#[tokio::test]
async fn postgres_has_no_schema_more_afterwards() {
    let server = lease_servers::postgres(&PostgresSetup::default()).unwrap();
    let url = format!("postgres={}", server.url());
    tokio::task::spawn_blocking(move || run(&url, "fencing/")).await.unwrap();
    assert_eq!(schemas(&server).await, Vec::<String>::new());
}

#[test]
fn a_signal_ends_the_run_and_its_traces() {
    let server = lease_servers::redis(&RedisSetup::default()).unwrap();
    let mut child = program()
        .args(["run", "--backend", &format!("redis={}", server.url()), "--case", "fencing/"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // In the middle of the two-worker test: it has written, and it is far from done.
    while keys(&server) == ":0" {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it had written anything");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(keys(&server), ":0");
}

#[test]
fn a_server_that_is_not_there_and_a_wrong_password_exit_3_and_keep_the_secret() {
    let server = lease_servers::redis(&RedisSetup { password: Some("right".into()), ..RedisSetup::default() }).unwrap();
    let wrong = format!("redis=redis://:s3cret@127.0.0.1:{}/", server.port());
    for (url, says) in [(wrong.as_str(), "password"), ("redis=redis://:s3cret@127.0.0.1:1/", "reach")] {
        let output = program().args(["run", "--backend", url, "--case", "exclusion/s"]).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(says) && !said.contains("s3cret"), "{said}");
    }
}

/// What was seen is reported, whatever becomes of the server at the end.
#[test]
fn a_server_that_is_gone_at_the_end_costs_no_report() {
    let mut server = lease_servers::redis(&RedisSetup::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let url = format!("redis={}", server.url());
    let mut child = program()
        .args(["run", "--backend", &url, "--case", "fencing/", "--json"])
        .arg(&json)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while keys(&server) == ":0" {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it had written anything");
        std::thread::yield_now();
    }
    server.kill();
    assert!(!child.wait().unwrap().success());
    let report: lease_conformance::Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(!report.cells.is_empty());
    assert!(report.missing.iter().any(|missing| missing.reason.contains("was not removed")), "{:?}", report.missing);
}
