//! Processes: stopping, resuming, ending them and looking at their state, by id.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;

/// Stops a process (`SIGSTOP`) and returns when the system shows it as stopped; false when it is gone.
#[must_use]
pub fn stop_process(pid: u32) -> bool {
    if !signal(pid, Signal::STOP) {
        return false;
    }
    // The signal is delivered when the process next leaves the kernel, so look until it shows.
    loop {
        match process_state(pid) {
            Some('T') => return true,
            None | Some('Z' | 'X') => return false,
            Some(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

/// Resumes a stopped process (`SIGCONT`); false when it is gone.
#[must_use]
pub fn resume_process(pid: u32) -> bool {
    signal(pid, Signal::CONT)
}

/// The state letter that the system shows for a process (`T` is stopped, `S` sleeping, `R` running, `Z` ended and not
/// yet reaped); `None` when it is gone.
#[must_use]
pub fn process_state(pid: u32) -> Option<char> {
    stat_fields(pid).map(|(state, _)| state)
}

pub(crate) fn signal(pid: u32, signal: Signal) -> bool {
    i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// The process and all its descendants, parents first.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some((_, parent)) = stat_fields(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let found = children.remove(pid).unwrap_or_default();
        all.extend(found);
        next = next.saturating_add(1);
    }
    all
}

/// State and parent from `/proc/PID/stat`; the name in parentheses may hold anything, so begin behind the last one.
fn stat_fields(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// Whether the connection between these two ports of 127.0.0.1 is the process's own.
pub(crate) fn owns_connection(pid: u32, from: u16, to: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let ends = [format!("0100007F:{from:04X}"), format!("0100007F:{to:04X}")];
    // Number, own end, other end, and the inode as the tenth field.
    let inode = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        (fields.get(1..3)? == ends).then(|| fields.get(9).copied())?
    });
    let Some(inode) = inode else { return false };
    let wanted = format!("socket:[{inode}]");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|link| link.as_os_str() == wanted.as_str())
}
