//! A running private server.

use crate::process::{process_state, signal, stop_process, tree};
use crate::{Kind, ServerError};
use rustix::process::Signal;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A private server. Dropping it ends its process and removes its folder.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    plan: Plan,
    folder: TempDir,
    version: String,
    child: Option<(Child, Watchdog)>,
}

/// How to start one kind of server, and how to see that it is ready.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// User and group to run as; `None` for those of this process.
    pub(crate) run_as: Option<(u32, u32)>,
    pub(crate) port: u16,
    pub(crate) url: String,
    pub(crate) ready: fn(u16) -> std::io::Result<bool>,
}

/// How long a server may take to become ready; generous, since a loaded machine is slow.
const READY_LIMIT: Duration = Duration::from_mins(1);

impl Server {
    pub(crate) fn start(kind: Kind, version: String, folder: TempDir, plan: Plan) -> Result<Self, ServerError> {
        let mut server = Self { kind, plan, folder, version, child: None };
        server.restart()?;
        Ok(server)
    }

    /// Which server it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its URL, with the credentials of its administrator where it has any.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.plan.url
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.plan.port
    }

    /// Its version, as its program tells it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its folder, with data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process id; `None` after [`kill`](Self::kill).
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|(child, _)| child.id())
    }

    /// Stops all its processes (`SIGSTOP`): it still accepts connections and answers nothing.
    pub fn pause(&self) {
        // Parents first, so that nothing new is forked meanwhile.
        for pid in self.pid().map(tree).unwrap_or_default() {
            // One that has just ended needs no stopping.
            let _gone = !stop_process(pid);
        }
    }

    /// Resumes it after [`pause`](Self::pause).
    pub fn resume(&self) {
        for pid in self.pid().map(tree).unwrap_or_default().into_iter().rev() {
            signal(pid, Signal::CONT);
        }
    }

    /// Ends all its processes at once (`SIGKILL`). What it had not written is lost to it; what the kernel had is not.
    pub fn kill(&mut self) {
        let Some((mut child, watchdog)) = self.child.take() else {
            return;
        };
        // The watchdog first: it must not signal a process id that was given to somebody else.
        watchdog.end();
        let all = tree(child.id());
        for pid in &all {
            signal(*pid, Signal::KILL);
            signal(*pid, Signal::CONT);
        }
        // They were killed just now, so the waits are short; a failure means that it is gone already. The children too: PostgreSQL
        // does not start again while one of them has its shared memory.
        drop(child.wait());
        while all.iter().any(|pid| !matches!(process_state(*pid), None | Some('Z' | 'X'))) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts it again on the same folder and port, and returns when it is ready.
    ///
    /// # Errors
    /// When it does not become ready within a minute; the error has the end of its log.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill();
        let log = self.folder.path().join("log");
        let open = || File::options().create(true).append(true).open(&log).map_err(ServerError::io("open the log"));
        let mut command = Command::new(&self.plan.program);
        command.args(&self.plan.args).stdin(Stdio::null()).stdout(open()?).stderr(open()?);
        if let Some((user, group)) = self.plan.run_as {
            std::os::unix::process::CommandExt::uid(&mut command, user);
            std::os::unix::process::CommandExt::gid(&mut command, group);
        }
        command.current_dir(self.folder.path());
        let mut child = command.spawn().map_err(ServerError::io(format!("start {}", self.plan.program.display())))?;
        match Watchdog::over(child.id(), self.folder.path()) {
            Ok(watchdog) => self.child = Some((child, watchdog)),
            Err(error) => {
                // Nobody would end it. A failure means that it is gone already.
                drop(child.kill().and_then(|()| child.wait()));
                return Err(error);
            }
        }
        self.wait_until_ready(&log)
    }

    fn wait_until_ready(&mut self, log: &Path) -> Result<(), ServerError> {
        let begin = Instant::now();
        loop {
            let answer = (self.plan.ready)(self.plan.port);
            let ended = self.child.as_mut().and_then(|(child, _)| child.try_wait().ok().flatten());
            let reason = match answer {
                // Unless it is another server that has the port.
                Ok(true) if ended.is_none() => return Ok(()),
                Ok(_) => "it answers that it is not ready".to_owned(),
                Err(error) => error.to_string(),
            };
            if ended.is_some() || begin.elapsed() > READY_LIMIT {
                self.kill();
                let reason = ended.map_or(reason, |status| format!("it ended with {status}"));
                return Err(ServerError::NotReady { kind: self.kind, reason, log: tail(log) });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.kind == Kind::Postgres {
            self.ask_to_end();
        }
        self.kill();
    }
}

impl Server {
    /// PostgreSQL ends and reaps its own children when it is asked to; killed, it would leave them to the system.
    fn ask_to_end(&mut self) {
        let Some((child, _)) = self.child.as_mut() else { return };
        signal(child.id(), Signal::CONT);
        signal(child.id(), Signal::QUIT);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) && child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
}

/// Ends the server and removes its folder when this process is gone without having done so: the pipe closes then.
#[derive(Debug)]
struct Watchdog(Child);

impl Watchdog {
    fn over(pid: u32, folder: &Path) -> Result<Self, ServerError> {
        Command::new("sh")
            .args(["-c", WATCH, &pid.to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group, so that an interrupt from the terminal does not end it before it has done its work.
            .process_group_of_its_own()
            .spawn()
            .map(Self)
            .map_err(ServerError::io("start the watchdog"))
    }

    fn end(mut self) {
        // `sh` forks `cat`: both have to go before the pipe closes.
        for pid in tree(self.0.id()) {
            signal(pid, Signal::KILL);
        }
        drop(self.0.wait());
    }
}

trait OwnGroup {
    fn process_group_of_its_own(&mut self) -> &mut Self;
}

impl OwnGroup for Command {
    fn process_group_of_its_own(&mut self) -> &mut Self {
        std::os::unix::process::CommandExt::process_group(self, 0)
    }
}

/// What the watchdog runs. PostgreSQL's children end by themselves, a moment after their parent, and may write until then.
const WATCH: &str = r#"cat >/dev/null; kill -9 "$0"; for _ in 1 2 3 4 5; do rm -rf -- "$1" && exit; sleep 1; done"#;

/// A temporary folder for a server.
pub(crate) fn folder(kind: Kind) -> Result<TempDir, ServerError> {
    tempfile::Builder::new()
        .prefix(&format!("leasehold-{kind}-"))
        .tempdir()
        .map_err(ServerError::io("make a temporary folder"))
}

/// Below those that systems give to outgoing connections (from 32768 on Linux). One of those could be taken by any client before the
/// server has it, or while the server is down; and a client that connects to such a port of its own machine again and again, while nobody
/// listens there, is in the end connected to itself.
const FIRST_PORT: u16 = 18_000;
const PORTS: u16 = 14_000;

/// A port on 127.0.0.1 that is free at this moment, and that nobody else in this process is given.
pub(crate) fn free_port() -> Result<u16, ServerError> {
    // Processes begin at different places.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        let [one, two, ..] = RandomState::new().hash_one(std::process::id()).to_le_bytes();
        AtomicU16::new(u16::from_le_bytes([one, two]))
    });
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrInUse);
    for _ in 0..PORTS {
        let place = NEXT.fetch_add(1, Ordering::Relaxed).checked_rem(PORTS).unwrap_or_default();
        let port = FIRST_PORT.saturating_add(place);
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(ServerError::io("find a free port")(last))
}

/// What the program says to `--version`.
pub(crate) fn version_text(program: &Path) -> Result<String, ServerError> {
    let what = format!("run {} --version", program.display());
    let output = Command::new(program).arg("--version").output().map_err(ServerError::io(what))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sends `question` to the port and returns the first bytes of the answer.
pub(crate) fn ask(port: u16, question: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(question)?;
    let mut answer = vec![0; 512];
    let length = stream.read(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}
