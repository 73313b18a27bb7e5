//! The program `lease-conformance`: the command line, private servers, the workspace's own stores, and what is printed.

mod ask;
mod bench;
mod cli;
mod diff;
mod evidence;
mod expected;
mod failure;
mod holders;
mod html;
mod itself;
mod junit;
mod kind;
mod layout;
mod markdown;
mod markup;
mod matrix;
mod opener;
mod paint;
mod places;
mod plan;
mod progress;
mod readme;
mod render;
mod run;
pub mod scenarios;
mod servers;
mod signals;
mod soak;
mod stores;
mod story;
mod subjects;
mod survive;
mod survive_table;
mod svg;
mod terminal;
mod tidy;

pub use failure::Failure;
pub use kind::{Backend, Store};

use std::io::Write as _;
use std::process::ExitCode;

/// Exit status for a usage error, as in BSD's `sysexits.h`.
const USAGE: u8 = 64;

/// Runs the program on this process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    match cli::run(std::env::args_os()) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            // Nobody may be reading any more; the exit status still tells.
            drop(writeln!(std::io::stderr(), "lease-conformance: {failure}"));
            ExitCode::from(failure.status())
        }
    }
}
