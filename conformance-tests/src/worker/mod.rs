//! Workers: who holds leases and is paused. A process of its own, or a runtime on a thread of this one; the same code in both.

mod driver;
mod handler;
mod process;
mod protocol;
mod stdio;
mod thread;

pub(crate) use driver::Worker;
pub(crate) use process::WorkerProgram;
pub use protocol::{Answer, Command, How, Reply, Request, Told};
pub use stdio::run_stdio;
