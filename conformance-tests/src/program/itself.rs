//! How this program is started again: what it prints has to work where its reader is.

use std::ffi::OsStr;

/// The command that starts this program as it was started.
pub(crate) fn command() -> String {
    let by_cargo = std::env::var_os("CARGO").is_some()
        && std::env::var_os("CARGO_PKG_NAME").as_deref() == Some(OsStr::new(env!("CARGO_PKG_NAME")));
    let name = std::env::args().next().filter(|name| !name.is_empty());
    command_for(by_cargo, name.as_deref().unwrap_or("lease-conformance"))
}

/// Started by Cargo it need not be on the path, and neither is the target folder where the reader is: then by Cargo again.
fn command_for(by_cargo: bool, name: &str) -> String {
    if by_cargo {
        // The default leaves etcd out.
        let features = if cfg!(feature = "etcd") { " --features etcd" } else { "" };
        return format!("cargo run -p {}{features} --", env!("CARGO_PKG_NAME"));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if name.chars().all(is_plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_cargo_or_by_its_own_name() {
        assert!(command_for(true, "x").starts_with("cargo run -p conformance-tests"));
        assert!(command_for(true, "x").ends_with(" --"));
        assert_eq!(command_for(false, "target/debug/lease-conformance"), "target/debug/lease-conformance");
        assert_eq!(command_for(false, "/a b/it's"), r"'/a b/it'\''s'");
        assert!(command().starts_with("cargo run -p "), "these tests are run by Cargo: {}", command());
    }
}
