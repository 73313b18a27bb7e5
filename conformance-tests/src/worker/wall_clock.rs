//! A wall clock that the suite moves while a worker process runs. Nothing else of the process is touched, and no other process.

use lease_core::GrantId;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is preloaded into the process.
const SHIM: &str = include_str!("wall_clock.c");

/// Tells the shim where the offset is.
const OFFSET: &str = "LEASE_WALL_CLOCK";

const PRELOAD: &str = "LD_PRELOAD";

/// The wall clock of the worker processes that are started under it.
#[derive(Debug)]
pub(crate) struct WallClock {
    shim: Arc<Shim>,
    path: PathBuf,
    offset: File,
}

impl WallClock {
    /// Builds the shim with the C compiler; the clock is the real one until it is set.
    ///
    /// # Errors
    /// When there is no compiler or no folder for temporary files, with what to do about it.
    ///
    /// # Cancel safety
    /// The folder is removed.
    pub(crate) async fn build() -> Result<Self, String> {
        Self::on(Arc::new(Shim::build().await?))
    }

    /// One more clock, which is set apart from this one.
    ///
    /// # Errors
    /// When its file cannot be made.
    pub(crate) fn another(&self) -> Result<Self, String> {
        Self::on(Arc::clone(&self.shim))
    }

    fn on(shim: Arc<Shim>) -> Result<Self, String> {
        let number = shim.clocks.fetch_add(1, Ordering::Relaxed);
        let path = shim.folder.join(format!("offset-{number}"));
        let offset = File::create_new(&path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        let clock = Self { shim, path, offset };
        clock.set(0)?;
        Ok(clock)
    }

    /// Puts it `seconds` ahead of the real one (or behind, where that is negative), at once.
    ///
    /// # Errors
    /// When the file of the offset cannot be written.
    pub(crate) fn set(&self, seconds: i64) -> Result<(), String> {
        let nanos = seconds.saturating_mul(1_000_000_000);
        self.offset.write_all_at(&nanos.to_ne_bytes(), 0).map_err(|e| format!("cannot move the wall clock: {e}"))
    }

    /// What a process under it has in its environment besides.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 2] {
        let mut preload = self.shim.library().into_os_string();
        // Whoever preloads something of his own keeps it.
        if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        [(PRELOAD, preload), (OFFSET, self.path.clone().into_os_string())]
    }
}

/// The built shim, in a folder of its own that goes with it.
#[derive(Debug)]
struct Shim {
    folder: PathBuf,
    clocks: AtomicU32,
}

impl Shim {
    async fn build() -> Result<Self, String> {
        let name = format!("lease-wall-clock-{}", GrantId::random().map_err(|e| e.to_string())?.to_hex());
        let folder = std::env::temp_dir().join(name);
        let failed = |e: std::io::Error| format!("cannot use the folder {}: {e}", std::env::temp_dir().display());
        // Nobody else may put anything there: a process is going to run it.
        DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
        let shim = Self { folder, clocks: AtomicU32::new(0) };
        let source = shim.folder.join("wall_clock.c");
        File::create_new(&source).and_then(|mut file| file.write_all(SHIM.as_bytes())).map_err(failed)?;
        let mut compiler = tokio::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(shim.library()).arg(source).kill_on_drop(true);
        let advice = "Debian has a C compiler in the packages gcc and libc6-dev";
        let output = compiler.output().await.map_err(|e| format!("`cc` cannot be run: {e}; {advice}"))?;
        if output.status.success() {
            return Ok(shim);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("`cc` cannot build the wall clock: {}; {advice}", said.lines().next().unwrap_or("it says nothing")))
    }

    fn library(&self) -> PathBuf {
        self.folder.join("wall_clock.so")
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // A folder that stays behind does no harm.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    /// The clock of a process that this workspace did not write.
    async fn told_by_date(clock: &WallClock) -> u64 {
        let mut date = tokio::process::Command::new("date");
        let output = date.arg("+%s").envs(clock.environment()).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[tokio::test]
    async fn another_process_is_told_the_moved_time_and_nothing_stays_behind() {
        let clock = WallClock::build().await.unwrap();
        let other = clock.another().unwrap();
        let here = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        for seconds in [10_800_i64, 0, -10_800] {
            clock.set(seconds).unwrap();
            let from = here().saturating_add_signed(seconds);
            let told = told_by_date(&clock).await;
            assert!((from..=here().saturating_add_signed(seconds)).contains(&told), "{seconds}: {told}, not {from}");
            let told = told_by_date(&other).await;
            assert!(told.abs_diff(here()) < Duration::from_mins(10).as_secs(), "the other clock was moved: {told}");
        }
        let folder = clock.shim.folder.clone();
        assert!(folder.is_dir());
        drop((clock, other));
        assert!(!folder.exists());
    }
}
