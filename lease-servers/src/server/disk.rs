//! A disk of a server's own: what happens to it happens to nobody else.

use crate::wait::{LIMIT, until};
use crate::{Server, ServerError, binaries, program};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file with a file system in it, mounted on the folder of a server's data. Dropping it unmounts it.
#[derive(Debug)]
pub(super) struct Disk {
    image: PathBuf,
    mounted: PathBuf,
    frozen: AtomicBool,
    cuts: u32,
}

impl Server {
    /// Puts its data on a disk of its own of so many MiB, so that the disk can fail. It is asked to end for that, and started again. An
    /// etcd needs 256, a PostgreSQL 128.
    ///
    /// The disk is a file with ext4 in it, mounted through a loop device, and goes with the server's folder.
    ///
    /// # Errors
    /// [`ServerError::CannotHere`] when this process is not root or has no loop devices. When the server does not become ready again.
    pub fn put_on_disk(&mut self, mib: u32) -> Result<(), ServerError> {
        if !rustix::process::geteuid().is_root() {
            let because = "only root may mount a file system".into();
            return Err(ServerError::CannotHere { what: "a disk of a server's own".into(), because });
        }
        if self.disk.is_some() {
            return self.no_disk("put the data on a disk", "they are on one");
        }
        self.stop();
        self.disk = Some(Disk::with(self.folder(), &self.data(), mib)?);
        self.restart()
    }

    /// Takes the power away: whatever was not synced to its disk at this moment is gone, also what the kernel had; and starts it again. It
    /// needs [`put_on_disk`](Self::put_on_disk).
    ///
    /// # Errors
    /// [`ServerError::NotShown`] when a file that was written just before, and not synced, is there afterwards. When it has no disk of its
    /// own, or does not become ready on what is left.
    pub fn power_cut(&mut self) -> Result<(), ServerError> {
        let Some(mut disk) = self.disk.take() else { return self.no_disk("cut the power", NO_DISK) };
        let witness = disk.write_unsynced();
        self.pause();
        let copied = witness.and_then(|witness| disk.copy().map(|copy| (witness, copy)));
        self.kill();
        let exchanged = copied.and_then(|(witness, copy)| disk.exchange_for(&copy, &witness));
        self.disk = Some(disk);
        exchanged?;
        self.restart()
    }

    /// Writes its disk full, to the last byte. It needs [`put_on_disk`](Self::put_on_disk).
    ///
    /// # Errors
    /// When it has no disk of its own, or a write fails for another reason than that the disk is full.
    pub fn fill_disk(&self) -> Result<(), ServerError> {
        let Some(disk) = &self.disk else { return self.no_disk("fill the disk", NO_DISK) };
        disk.fill().map_err(ServerError::io("fill the disk"))
    }

    /// Makes room again after [`fill_disk`](Self::fill_disk).
    ///
    /// # Errors
    /// When the disk was not filled.
    pub fn clear_disk(&self) -> Result<(), ServerError> {
        let Some(disk) = &self.disk else { return self.no_disk("clear the disk", NO_DISK) };
        std::fs::remove_file(disk.ballast()).map_err(ServerError::io("clear the disk"))
    }

    /// Lets each write to its disk wait, until [`resume_disk`](Self::resume_disk) or the server's end. It needs
    /// [`put_on_disk`](Self::put_on_disk). A server that has nothing to write does not notice; a Redis that waits shows as `D` in
    /// [`process_state`](crate::process_state). Whoever else writes there waits too, and cannot be killed meanwhile.
    ///
    /// # Errors
    /// When it has no disk of its own, or the system refuses.
    pub fn stall_disk(&self) -> Result<(), ServerError> {
        let Some(disk) = &self.disk else { return self.no_disk("stall the disk", NO_DISK) };
        tool("fsfreeze", ["--freeze".as_ref(), disk.mounted.as_os_str()], "stall the disk")?;
        disk.frozen.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Lets the writes go on that waited.
    ///
    /// # Errors
    /// When it has no disk of its own, or the disk was not stalled.
    pub fn resume_disk(&self) -> Result<(), ServerError> {
        let Some(disk) = &self.disk else { return self.no_disk("let the disk go on", NO_DISK) };
        disk.thaw()
    }

    /// A server cannot end while it waits for its disk.
    pub(super) fn thaw_disk(&self) {
        if let Some(disk) = self.disk.as_ref().filter(|disk| disk.frozen.load(Ordering::SeqCst)) {
            // A failure means that somebody else has done it.
            drop(disk.thaw());
        }
    }

    fn no_disk(&self, what: &str, answer: &str) -> Result<(), ServerError> {
        let what = format!("{what} of the {} on port {}", self.kind(), self.port());
        Err(ServerError::Refused { what, answer: answer.into() })
    }
}

const NO_DISK: &str = "it has no disk of its own";

impl Disk {
    /// Makes the disk, with what is in `data`, and mounts it there.
    fn with(folder: &Path, data: &Path, mib: u32) -> Result<Self, ServerError> {
        let (image, first) = (folder.join("disk"), folder.join("first"));
        let bytes = u64::from(mib).saturating_mul(1 << 20);
        let made = File::create(&image).and_then(|file| file.set_len(bytes)).and_then(|()| std::fs::create_dir(&first));
        made.map_err(ServerError::io("make the disk's file"))?;
        // No part of it is kept for root, who could still write then.
        let ext4 = ["-q", "-F", "-m", "0"].map(OsStr::new).into_iter().chain([image.as_os_str()]);
        run(binaries::find_tool("mkfs.ext4", "e2fsprogs")?, ext4, "make a file system")?;
        mount(&image, &first)?;
        let moved = move_data(data, &first);
        // Also when it failed.
        unmount(&first)?;
        moved?;
        mount(&image, data)?;
        Ok(Self { image, mounted: data.to_owned(), frozen: AtomicBool::new(false), cuts: 0 })
    }

    fn thaw(&self) -> Result<(), ServerError> {
        self.frozen.store(false, Ordering::SeqCst);
        tool("fsfreeze", ["--unfreeze".as_ref(), self.mounted.as_os_str()], "let the disk go on")
    }

    /// A file that is only in the kernel's memory: the witness of a power cut.
    fn write_unsynced(&mut self) -> Result<PathBuf, ServerError> {
        self.cuts = self.cuts.saturating_add(1);
        let witness = self.mounted.join(format!("unsynced-{}", self.cuts));
        std::fs::write(&witness, UNSYNCED).map_err(ServerError::io("write a file without a sync"))?;
        Ok(witness)
    }

    /// Copies what is on the disk at one moment, which is not what is in it by way of the kernel. A copy during which the kernel wrote is of
    /// no moment, so it is made again.
    fn copy(&self) -> Result<PathBuf, ServerError> {
        let copy = self.image.with_extension("copy");
        let writes = writes_to(&device(&self.mounted)?);
        until("the disk is copied without a write meanwhile", LIMIT, || {
            let before = writes()?;
            let arguments = ["--sparse=always".as_ref(), self.image.as_os_str(), copy.as_os_str()];
            tool("cp", arguments, "copy the disk").map_err(|e| e.to_string())?;
            if writes()? == before { Ok(()) } else { Err("something was written".to_owned()) }
        })?;
        Ok(copy)
    }

    /// Mounts the copy instead.
    fn exchange_for(&mut self, copy: &Path, witness: &Path) -> Result<(), ServerError> {
        unmount(&self.mounted)?;
        std::fs::rename(copy, &self.image).map_err(ServerError::io("put the copy in the disk's place"))?;
        mount(&self.image, &self.mounted)?;
        let left = std::fs::read(witness).unwrap_or_default();
        // Its name may have been written with something else that was synced.
        drop(std::fs::remove_file(witness));
        if left == UNSYNCED {
            let (what, seen) = ("the power was cut".into(), "a file that was not synced is there".into());
            return Err(ServerError::NotShown { what, seen });
        }
        Ok(())
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("ballast")
    }

    fn fill(&self) -> std::io::Result<()> {
        let mut ballast = File::create(self.ballast())?;
        // What does not fit as a whole may fit in part.
        for size in [1 << 20, 1 << 12, 1] {
            let piece = vec![0; size];
            loop {
                match ballast.write_all(&piece) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        ballast.sync_all()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nothing can be unmounted that stands still; mostly there is nothing to thaw.
        if self.frozen.load(Ordering::SeqCst) {
            drop(self.thaw());
        }
        // What the error would say, the next look at the mounts shows; there is nobody to tell.
        drop(unmount(&self.mounted));
    }
}

const UNSYNCED: &[u8] = b"this was not synced";

/// Copies what is there, owners and rights too, and removes it from where it was.
fn move_data(from: &Path, to: &Path) -> Result<(), ServerError> {
    // `mkfs` puts a folder for its repairs on the disk, which PostgreSQL's backups cannot read.
    std::fs::remove_dir(to.join("lost+found")).map_err(ServerError::io("remove lost+found"))?;
    tool("cp", ["-a".as_ref(), from.join(".").as_os_str(), to.as_os_str()], "move the data to the disk")?;
    crate::backup::empty(from).map_err(ServerError::io("remove what was moved"))
}

fn mount(image: &Path, on: &Path) -> Result<(), ServerError> {
    let arguments = ["-t", "ext4", "-o", "loop"].map(OsStr::new).into_iter().chain([image.as_os_str(), on.as_os_str()]);
    run(binaries::find_tool("mount", "mount")?, arguments, "mount the disk").map_err(|error| match error {
        ServerError::Refused { what, answer } => ServerError::CannotHere { what, because: answer },
        other => other,
    })
}

/// Somebody may have a file of it open; then it goes when they close it.
fn unmount(from: &Path) -> Result<(), ServerError> {
    let what = "unmount the disk";
    tool("umount", [from.as_os_str()], what).or_else(|_| tool("umount", ["--lazy".as_ref(), from.as_os_str()], what))
}

/// The name of the loop device that is mounted there.
fn device(mounted: &Path) -> Result<String, ServerError> {
    let what = "look for the disk's loop device";
    let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(ServerError::io(what))?;
    let mounted = mounted.display().to_string();
    let found = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ');
        let (device, place) = (fields.next()?, fields.next()?);
        (place == mounted).then(|| device.trim_start_matches("/dev/").to_owned())
    });
    found.ok_or_else(|| ServerError::Refused { what: what.into(), answer: format!("nothing is mounted on {mounted}") })
}

/// A look at how much was written to a device. As long as something is on its way there is no answer.
///
/// From `/proc`, which the search for the device needs too: `/sys` is not mounted everywhere.
fn writes_to(device: &str) -> impl Fn() -> Result<String, String> + use<> {
    let (file, device) = ("/proc/diskstats", device.to_owned());
    move || {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        // Two numbers and the name; then counts, of which the fifth is of writes and the ninth of what is on its way.
        let mut lines = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        match lines.find(|fields| fields.get(2) == Some(&device.as_str())) {
            Some(fields) if fields.get(11) == Some(&"0") && fields.len() > 7 => Ok(fields[7].to_owned()),
            Some(fields) => Err(format!("{file}: {}", fields.join(" "))),
            None => Err(format!("{file} has no line of {device}")),
        }
    }
}

fn tool<'a>(name: &'static str, arguments: impl IntoIterator<Item = &'a OsStr>, what: &str) -> Result<(), ServerError> {
    let package = if name == "cp" { "coreutils" } else { "mount" };
    run(binaries::find_tool(name, package)?, arguments, what)
}

fn run<'a>(program: PathBuf, arguments: impl IntoIterator<Item = &'a OsStr>, what: &str) -> Result<(), ServerError> {
    program::run(Command::new(program).args(arguments), what).map(drop)
}
