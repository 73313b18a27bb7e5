//! A running private server.

mod clock;
mod disk;
mod folder;
mod port;

pub(crate) use folder::Folder;
pub(crate) use port::{ask, free_port};

use crate::process::{process_state, signal, stop_process, tree};
use crate::{Kind, ServerError};
use clock::Clock;
use disk::Disk;
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A private server. Dropping it ends its process and removes its folder.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    plan: Plan,
    version: String,
    child: Option<Child>,
    clock: Option<Clock>,
    // Before the folder, in which it is mounted.
    disk: Option<Disk>,
    folder: Folder,
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
    /// Starts it and returns when it is ready.
    pub(crate) fn start(kind: Kind, version: String, folder: Folder, plan: Plan) -> Result<Self, ServerError> {
        let mut server = Self::launch_new(kind, version, folder, plan)?;
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Starts it. It may need others to become ready.
    pub(crate) fn launch_new(kind: Kind, version: String, folder: Folder, plan: Plan) -> Result<Self, ServerError> {
        let mut server = Self { kind, plan, version, child: None, clock: None, disk: None, folder };
        server.launch()?;
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

    /// Its folder, with its log, and its data in the folder `data`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process id; `None` after [`kill`](Self::kill).
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
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
        self.thaw_disk();
        let Some(mut child) = self.child.take() else {
            return;
        };
        // When it has ended by itself, its id may be somebody else's.
        let ended = child.try_wait().is_ok_and(|status| status.is_some());
        let all = if ended { Vec::new() } else { tree(child.id()) };
        for pid in &all {
            signal(*pid, Signal::KILL);
            signal(*pid, Signal::CONT);
        }
        // Before the process is reaped: afterwards its id may be somebody else's. A watchdog that is gone signals nobody.
        drop(self.folder.belongs_to(None));
        // They were killed just now, so the waits are short; a failure means that it is gone already. The children too: PostgreSQL
        // does not start again while one of them has its shared memory.
        drop(child.wait());
        while all.iter().any(|pid| !matches!(process_state(*pid), None | Some('Z' | 'X'))) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks it to end in its own way, in which it loses nothing that it keeps at all; one that is not done after ten seconds is killed.
    pub fn stop(&mut self) {
        let how = if self.kind == Kind::Postgres { Signal::INT } else { Signal::TERM };
        self.end_by(how, Duration::from_secs(10));
        self.kill();
    }

    /// Starts it again on the same folder and port, and returns when it is ready.
    ///
    /// # Errors
    /// When it does not become ready within a minute; the error has the end of its log.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.launch()?;
        self.wait_until_ready()
    }

    /// Starts it again and does not wait.
    pub(crate) fn launch(&mut self) -> Result<(), ServerError> {
        self.kill();
        let log = self.log();
        let open = || File::options().create(true).append(true).open(&log).map_err(ServerError::io("open the log"));
        let mut command = Command::new(&self.plan.program);
        command.args(&self.plan.args).stdin(Stdio::null()).stdout(open()?).stderr(open()?);
        as_user(&mut command, self.plan.run_as);
        command.current_dir(self.folder.path());
        command.envs(self.clock.iter().flat_map(Clock::environment));
        let mut child = command.spawn().map_err(ServerError::io(format!("start {}", self.plan.program.display())))?;
        if let Err(error) = self.folder.belongs_to(Some(child.id())) {
            // Nobody would end it. A failure means that it is gone already.
            drop(child.kill().and_then(|()| child.wait()));
            return Err(error);
        }
        self.child = Some(child);
        Ok(())
    }

    pub(crate) fn wait_until_ready(&mut self) -> Result<(), ServerError> {
        let begin = Instant::now();
        loop {
            let answer = (self.plan.ready)(self.plan.port);
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            let reason = match answer {
                // Unless it is another server that has the port.
                Ok(true) if ended.is_none() => return Ok(()),
                Ok(_) => "it answers that it is not ready".to_owned(),
                Err(error) => error.to_string(),
            };
            if ended.is_some() || begin.elapsed() > READY_LIMIT {
                self.kill();
                let reason = ended.map_or(reason, |status| format!("it ended with {status}"));
                return Err(ServerError::NotReady { kind: self.kind, reason, log: tail(&self.log()) });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Where its data are. The folder may be a disk of its own.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.data()
    }

    /// The value of one of its arguments.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        let place = self.plan.args.iter().position(|argument| argument == name)?;
        self.plan.args.get(place.checked_add(1)?).map(String::as_str)
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL ends and reaps its own children when it is asked to; killed, it would leave them to the system.
        if self.kind == Kind::Postgres {
            self.end_by(Signal::QUIT, Duration::from_secs(2));
        }
        self.kill();
    }
}

impl Server {
    /// Sends it a signal by which it ends in its own way, and waits for that.
    fn end_by(&mut self, how: Signal, limit: Duration) {
        self.thaw_disk();
        let Some(child) = self.child.as_mut() else { return };
        signal(child.id(), Signal::CONT);
        signal(child.id(), how);
        let begin = Instant::now();
        while begin.elapsed() < limit && child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Lets a program run as this user and group.
pub(crate) fn as_user(command: &mut Command, run_as: Option<(u32, u32)>) {
    if let Some((user, group)) = run_as {
        std::os::unix::process::CommandExt::uid(command, user);
        std::os::unix::process::CommandExt::gid(command, group);
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
}

/// What the program says to `--version`.
pub(crate) fn version_text(program: &Path) -> Result<String, ServerError> {
    let what = format!("run {} --version", program.display());
    let output = Command::new(program).arg("--version").output().map_err(ServerError::io(what))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
