//! A wall clock of a server's own.

use super::port::ask;
use crate::{Kind, Server, ServerError, binaries, postgres_query, program, redis_command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// What is preloaded into the server.
const SHIM: &str = include_str!("clock.c");
/// What is preloaded into one that is written in Go, which looks for the function by this version of it.
const SHIM_FOR_GO: &str = include_str!("clock_go.c");
const VERSION_FOR_GO: &str = "LINUX_2.6 { global: __vdso_clock_gettime; local: *; };\n";

/// The wall clock of one server.
#[derive(Debug)]
pub(super) struct Clock {
    shim: PathBuf,
    ahead: PathBuf,
}

impl Server {
    /// Gives it a wall clock of its own, which [`set_clock`](Self::set_clock) moves. It is asked to end for that, and started again; the
    /// clock is right at first. No other clock is touched.
    ///
    /// # Errors
    /// [`ServerError::CannotHere`] for an etcd on another processor than `x86_64`, and for one that is linked statically. When `cc` is not
    /// installed, or the server does not become ready again.
    pub fn put_on_clock(&mut self) -> Result<(), ServerError> {
        let is_etcd = self.kind() == Kind::Etcd;
        if is_etcd && !cfg!(target_arch = "x86_64") {
            return no_clock("it asks the kernel without the C library, in a way that is known for x86_64 only");
        }
        self.stop();
        self.clock = Some(Clock::build(self.folder(), self.kind(), self.plan.run_as)?);
        self.restart()?;
        if is_etcd && !self.has_preloaded() {
            self.clock = None;
            return no_clock("it is linked statically, so that nothing is preloaded into it");
        }
        self.set_clock(0)
    }

    fn has_preloaded(&self) -> bool {
        let maps = self.pid().map(|pid| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default());
        let shim = self.clock.as_ref().map(|clock| clock.shim.display().to_string());
        maps.zip(shim).is_some_and(|(maps, shim)| maps.contains(&shim))
    }

    /// Moves its wall clock so many seconds ahead of the real one, or behind it; and asks it for the time, which shows that it was moved. It
    /// needs [`put_on_clock`](Self::put_on_clock).
    ///
    /// # Errors
    /// [`ServerError::NotShown`] when the server tells another time. When it has no clock of its own, or cannot be asked.
    pub fn set_clock(&self, ahead_s: i64) -> Result<(), ServerError> {
        let Some(clock) = &self.clock else {
            let what = format!("move the clock of the {} on port {}", self.kind(), self.port());
            return Err(ServerError::Refused { what, answer: "it has no clock of its own".into() });
        };
        // In place: the server has the file in its memory.
        clock.write(ahead_s).map_err(ServerError::io("move the clock"))?;
        let (before, told, after) = (now()?, self.time()?, now()?);
        let real = if ahead_s < 0 {
            told.saturating_add(Duration::from_secs(ahead_s.unsigned_abs()))
        } else {
            told.saturating_sub(Duration::from_secs(ahead_s.unsigned_abs()))
        };
        // The system's own clock may be corrected by a little meanwhile.
        let little = Duration::from_secs(1);
        if (before.saturating_sub(little)..=after.saturating_add(little)).contains(&real) {
            return Ok(());
        }
        let what = format!("the clock was moved {ahead_s} s ahead");
        Err(ServerError::NotShown { what, seen: format!("it is {told:?} there and {after:?} here") })
    }

    /// What the server says the time is, since 1970, in whole seconds.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn time(&self) -> Result<Duration, ServerError> {
        let text = match self.kind() {
            Kind::Redis => redis_command(self, &["TIME"])?,
            Kind::Postgres => postgres_query(self, "SELECT floor(extract(epoch FROM clock_timestamp()))")?,
            Kind::Etcd => seconds_of(&dated(self.port()).map_err(ServerError::io("ask an etcd for the time"))?)?,
        };
        let seconds = text.lines().next().and_then(|seconds| seconds.parse().ok());
        seconds.map(Duration::from_secs).ok_or_else(|| ServerError::Refused {
            what: format!("ask the {} on port {} for the time", self.kind(), self.port()),
            answer: text,
        })
    }
}

impl Clock {
    fn build(folder: &Path, kind: Kind, user: Option<(u32, u32)>) -> Result<Self, ServerError> {
        let clock = Self { shim: folder.join("clock.so"), ahead: folder.join("clock") };
        let source = folder.join("clock.c");
        let shim = if kind == Kind::Etcd { SHIM_FOR_GO } else { SHIM };
        std::fs::write(&source, shim).map_err(ServerError::io("write clock.c"))?;
        let mut compiler = Command::new(binaries::find_tool("cc", "gcc")?);
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&clock.shim).arg(&source);
        if kind == Kind::Etcd {
            let version = folder.join("clock.map");
            std::fs::write(&version, VERSION_FOR_GO).map_err(ServerError::io("write clock.map"))?;
            compiler.arg(format!("-Wl,--version-script={}", version.display()));
        }
        program::run(&mut compiler, "build a clock with cc")?;
        std::fs::write(&clock.ahead, [0; 8]).map_err(ServerError::io("write the clock"))?;
        if let Some((user, group)) = user {
            for file in [&clock.shim, &clock.ahead] {
                let given = std::os::unix::fs::chown(file, Some(user), Some(group));
                given.map_err(ServerError::io("give the clock to the user"))?;
            }
        }
        Ok(clock)
    }

    fn write(&self, ahead_s: i64) -> std::io::Result<()> {
        let file = std::fs::File::options().write(true).open(&self.ahead)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &ahead_s.to_ne_bytes(), 0)
    }

    /// What a server under it has in its environment besides.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 2] {
        let mut preload = self.shim.clone().into_os_string();
        // Whoever preloads something of his own keeps it.
        if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        [(PRELOAD, preload), ("PRIVATE_SERVER_CLOCK", self.ahead.clone().into_os_string())]
    }
}

const PRELOAD: &str = "LD_PRELOAD";

fn no_clock(because: &str) -> Result<(), ServerError> {
    Err(ServerError::CannotHere { what: "a wall clock of an etcd's own".into(), because: because.into() })
}

/// The date in the head of an etcd's answer, which is the only place where it tells the time.
fn dated(port: u16) -> std::io::Result<String> {
    let answer = ask(port, b"GET /version HTTP/1.0\r\n\r\n")?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let date = answer.lines().find_map(|line| line.strip_prefix("Date: "));
    date.map(|date| date.trim().to_owned()).ok_or_else(|| std::io::Error::other(format!("no date in {answer:?}")))
}

/// Such a date, in seconds since 1970.
fn seconds_of(date: &str) -> Result<String, ServerError> {
    let mut command = Command::new(binaries::find_tool("date", "coreutils")?);
    command.args(["--utc", "--date", date, "+%s"]);
    program::run(&mut command, "read a date")
}

fn now() -> Result<Duration, ServerError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_err(|error| ServerError::Refused { what: "read the time".into(), answer: error.to_string() })
}
