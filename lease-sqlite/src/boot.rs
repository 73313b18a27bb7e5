//! Refuses a clock whose boot id other processes of this boot do not share.
//!
//! A record of another boot counts as expired. Where the system tells no boot id, its clock draws one per process, and then each process would
//! take the live grants of all others for expired ones.

use lease_core::{BootId, LeaseError, SharedClock, SystemClock};

/// Where Linux tells the boot id, which is where [`SystemClock`] has it from.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A clock of the caller's own is taken at its word; the system's must have its boot id from the system.
pub(crate) fn check(clock: &SharedClock) -> Result<(), LeaseError> {
    let told = std::fs::read_to_string(BOOT_ID).ok();
    if is_shared(&clock.boot_id(), &SystemClock::shared().boot_id(), told.as_deref()) {
        return Ok(());
    }
    Err(LeaseError::NotSetUp {
        reason: format!(
            "this system tells no boot id ({BOOT_ID}), so live grants of other processes can't be told from those of an earlier boot"
        ),
        advice: "make /proc readable; elsewhere than on Linux, give `ConnectOptions::clock` a boot id that all processes of one boot share"
            .into(),
        source: None,
    })
}

fn is_shared(clock: &BootId, system: &BootId, told: Option<&str>) -> bool {
    let told = told.map(str::trim).filter(|text| !text.is_empty());
    clock != system || told == Some(system.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_of_one_process_is_refused() {
        let id = BootId::from_text;
        assert!(is_shared(&id("b"), &id("b"), Some("b\n")), "what the system tells");
        assert!(is_shared(&id("own"), &id("drawn"), None), "a clock of the caller's own");
        assert!(!is_shared(&id("drawn"), &id("drawn"), None), "no file");
        assert!(!is_shared(&id("drawn"), &id("drawn"), Some("b")), "it could not be read when it was asked first");
        assert!(!is_shared(&id(""), &id(""), Some("")), "an empty file");
    }

    #[test]
    fn this_system_tells_one() {
        check(&SystemClock::shared()).unwrap();
    }
}
