//! Which etcd is installed, where that decides what is expected.

use std::process::Command;
use std::sync::OnceLock;

/// Whether the installed etcd ends a live lease by the count of a leader that has not noticed that it is none any more.
pub(crate) fn ends_live_leases() -> bool {
    installed().is_some_and(has_the_flaw)
}

/// Whether the installed etcd keeps leases in the order of the wall clock, by which it looks at the first one or not.
pub(crate) fn queues_by_wall_clock() -> bool {
    installed().is_some_and(|version| version < [3, 5, 0])
}

/// The version of the installed etcd.
fn installed() -> Option<[u32; 3]> {
    static INSTALLED: OnceLock<Option<[u32; 3]>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let output = Command::new("etcd").arg("--version").output().ok()?;
        version(&String::from_utf8_lossy(&output.stdout))
    })
}

/// What `etcd --version` says.
fn version(told: &str) -> Option<[u32; 3]> {
    let text = told.lines().next()?.rsplit(' ').next()?;
    let mut parts = text.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    Some([parts.next()?, parts.next()?, parts.next()?])
}

/// Cured in 3.4.31 and 3.5.13.
fn has_the_flaw(version: [u32; 3]) -> bool {
    match version {
        [3, 5, patch] => patch < 13,
        other => other < [3, 4, 31],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_and_without_the_flaw() {
        for (told, has) in [
            ("etcd Version: 3.4.23\nGit SHA: x", true),
            ("etcd Version: 3.4.30", true),
            ("etcd Version: 3.4.31", false),
            ("etcd Version: 3.5.12", true),
            ("etcd Version: 3.5.13", false),
            ("etcd Version: 3.5.0-rc.1", true),
            ("etcd Version: 3.3.27", true),
            ("etcd Version: 3.6.1", false),
        ] {
            assert_eq!(has_the_flaw(version(told).unwrap()), has, "{told}");
        }
        assert_eq!(version(""), None);
    }
}
