//! A wall clock of a server's own.

use crate::{Kind, Server, ServerError, binaries, postgres_query, program, redis_command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// What is preloaded into the server.
const SHIM: &str = include_str!("clock.c");

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
    /// [`ServerError::CannotHere`] for etcd. When `cc` is not installed, or the server does not become ready again.
    pub fn put_on_clock(&mut self) -> Result<(), ServerError> {
        if self.kind() == Kind::Etcd {
            let (what, because) = ("a wall clock of an etcd's own", "it asks the kernel without the C library");
            return Err(ServerError::CannotHere { what: what.into(), because: because.into() });
        }
        self.stop();
        self.clock = Some(Clock::build(self.folder(), self.plan.run_as)?);
        self.restart()?;
        self.set_clock(0)
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

    /// What the server says the time is, since 1970.
    fn time(&self) -> Result<Duration, ServerError> {
        let text = match self.kind() {
            Kind::Redis => redis_command(self, &["TIME"])?,
            _ => postgres_query(self, "SELECT floor(extract(epoch FROM clock_timestamp()))")?,
        };
        let seconds = text.lines().next().and_then(|seconds| seconds.parse().ok());
        seconds.map(Duration::from_secs).ok_or_else(|| ServerError::Refused {
            what: format!("ask the {} on port {} for the time", self.kind(), self.port()),
            answer: text,
        })
    }
}

impl Clock {
    fn build(folder: &Path, user: Option<(u32, u32)>) -> Result<Self, ServerError> {
        let clock = Self { shim: folder.join("clock.so"), ahead: folder.join("clock") };
        let source = folder.join("clock.c");
        std::fs::write(&source, SHIM).map_err(ServerError::io("write clock.c"))?;
        let mut compiler = Command::new(binaries::find_tool("cc", "gcc")?);
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&clock.shim).arg(&source);
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

fn now() -> Result<Duration, ServerError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_err(|error| ServerError::Refused { what: "read the time".into(), answer: error.to_string() })
}
