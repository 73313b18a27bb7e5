//! Poolers between client and server: one that drops what a session has set is refused at connect, before it can mix sessions up.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[expect(unreachable_pub, dead_code, reason = "one module for several test programs")]
mod support;

use lease_core::{Effect, LeaseBackend, LeaseError, Release, Renewal};
use lease_postgres::PostgresBackend;
use lease_servers::Server;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use support::{is_held, shared, take, url};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a client says first, without the parameter `name`: that is how poolers are told to get along with what they don't know.
fn without(name: &str, start: &[u8]) -> Vec<u8> {
    // Four bytes of length and four of the protocol's version; then names and values in turn, each with a zero behind it.
    let (head, parameters) = start.split_at(8);
    let texts: Vec<&[u8]> = parameters.split(|byte| *byte == 0).collect();
    let pairs = texts.chunks(2).take_while(|pair| pair.len() == 2 && !pair[0].is_empty());
    let mut kept = head[4..].to_vec();
    for pair in pairs.filter(|pair| pair[0] != name.as_bytes()) {
        kept.extend([pair[0], &[0], pair[1], &[0]].concat());
    }
    kept.push(0);
    let length = u32::try_from(kept.len().saturating_add(4)).unwrap().to_be_bytes();
    [&length[..], &kept].concat()
}

/// A client that can speak TLS asks for it first; a pooler without it says no, and the client begins in the clear.
const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();

/// The first message of a client has no type, only its length.
async fn first_message(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let length = client.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    message.resize(usize::try_from(length).unwrap(), 0);
    client.read_exact(&mut message[4..]).await?;
    Ok(message)
}

/// Forwards one connection to the server, with or without the startup parameter `options`.
async fn forward(mut client: TcpStream, server: u16, drops_options: bool) -> std::io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
    let mut start = first_message(&mut client).await?;
    if start[4..] == SSL_REQUEST {
        client.write_all(b"N").await?;
        start = first_message(&mut client).await?;
    }
    server.write_all(&if drops_options { without("options", &start) } else { start }).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// The port of something in between that forwards every connection.
async fn between(server: u16, drops_options: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(forward(client, server, drops_options));
        }
    });
    port
}

fn through(server: &Server, port: u16, parameters: &str) -> String {
    url(server, parameters).replace(&format!(":{}/", server.port()), &format!(":{port}/"))
}

fn refused(error: &LeaseError) {
    assert!(matches!(error, LeaseError::NotSetUp { .. }), "{error:?}");
    assert_eq!(error.effect(), Effect::None);
    assert!(error.to_string().contains("pooler"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_drops_the_settings_of_a_session_is_refused() {
    let server = shared();
    let passes = between(server.port(), false).await;
    let backend = PostgresBackend::connect(&through(&server, passes, "namespace=pooler")).await.unwrap();
    let lease = take(&backend, "r", 60_000).await;
    let drops = between(server.port(), true).await;
    refused(&PostgresBackend::connect(&through(&server, drops, "namespace=pooler")).await.unwrap_err());
    assert_eq!(backend.release(&lease).await.unwrap(), Release::Released);
}

/// A private `PgBouncer`; it ends with this value.
struct Pooler {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has said already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts a pooler before the server, and returns when it listens.
fn pooler(server: &Server, settings: &str) -> (Pooler, u16) {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let login = server.url().split_once("://").unwrap().1.split_once('@').unwrap().0;
    let (user, password) = login.split_once(':').unwrap();
    let file = folder.path().join("pgbouncer.ini");
    let text = format!(
        "[databases]\npostgres = host=127.0.0.1 port={} dbname=postgres user={user} password={password}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\ndefault_pool_size = 5\n{settings}\n",
        server.port()
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("pgbouncer");
    command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        // It refuses to run as root; `nobody` may read the file.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        command.uid(65_534).gid(65_534);
    }
    let child = command.spawn().unwrap_or_else(|e| panic!("cannot start pgbouncer (package pgbouncer): {e}"));
    let mut pooler = Pooler { child, _folder: folder };
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = pooler.child.try_wait().unwrap();
        assert!(ended.is_none(), "pgbouncer does not run: {ended:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    (pooler, port)
}

/// The real thing: what it does not know it refuses or drops, and either way nobody gets a lease over mixed-up sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_pooler_is_refused_or_passes_everything() {
    let server = shared();
    let direct = support::connect(&server, "bouncer").await;
    let lease = take(&direct, "r", 60_000).await;
    for mode in ["transaction", "statement", "session"] {
        for settings in
            ["", "ignore_startup_parameters = options", "ignore_startup_parameters = options,extra_float_digits"]
        {
            let (_pooler, port) = pooler(&server, &format!("pool_mode = {mode}\n{settings}"));
            match PostgresBackend::connect(&through(&server, port, "namespace=bouncer")).await {
                Err(error) => {
                    refused(&error);
                }
                // A later version may pass `options` on in session mode.
                Ok(backend) => {
                    assert_eq!(mode, "session", "{settings}");
                    assert!(is_held(&backend, "r").await);
                    assert!(matches!(backend.renew(&lease).await.unwrap(), Renewal::Renewed(_)));
                }
            }
        }
    }
    assert_eq!(direct.release(&lease).await.unwrap(), Release::Released);
}
