//! A temporary folder that goes with this process, whatever ends it.

use crate::process::signal;
use crate::{Kind, ServerError};
use rustix::process::Signal;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A temporary folder, and the process that removes it when this one is gone without having done so.
#[derive(Debug)]
pub(crate) struct Folder {
    // First the watchdog: it must not look at a folder that is gone, whose name somebody else may have.
    watchdog: Watchdog,
    folder: TempDir,
}

impl Folder {
    pub(crate) fn new(kind: Kind) -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("leasehold-{kind}-"))
            .tempdir()
            .map_err(ServerError::io("make a temporary folder"))?;
        Ok(Self { watchdog: Watchdog::over(folder.path())?, folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where a server has its data. It can be a disk of its own, so it holds neither log nor settings.
    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The process that works in the folder from now on, to be ended before the folder is removed.
    pub(crate) fn belongs_to(&mut self, pid: Option<u32>) -> Result<(), ServerError> {
        self.watchdog.tell(&pid.map(|pid| pid.to_string()).unwrap_or_default())
    }
}

/// Ends the server and removes its folder when this process is gone without having done so: the pipe closes then.
#[derive(Debug)]
struct Watchdog(Child);

impl Watchdog {
    fn over(folder: &Path) -> Result<Self, ServerError> {
        Command::new("sh")
            .args(["-c", WATCH])
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

    fn tell(&mut self, pid: &str) -> Result<(), ServerError> {
        let Some(pipe) = self.0.stdin.as_mut() else { return Ok(()) };
        writeln!(pipe, "{pid}").map_err(ServerError::io("tell the watchdog"))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Before the pipe closes.
        signal(self.0.id(), Signal::KILL);
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

/// What the watchdog runs. It reads process ids, an empty line for none, until the pipe closes. A disk may be mounted on `data`, and be
/// frozen, which would keep the server from ending; it is busy until the server has ended. PostgreSQL's children end by themselves, a moment
/// after their parent, and may write until then.
const WATCH: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
while read -r told; do pid=$told; done
fsfreeze --unfreeze "$0/data"
[ -n "$pid" ] && kill -9 "$pid"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    while umount "$0/data"; do :; done
    rm -rf -- "$0" && exit
    sleep 1
done"#;
