//! Workers: who holds leases and is paused. A process of its own, or a runtime on a thread of this one; the same code in both.

mod asker;
mod driver;
mod handler;
mod outlet;
mod process;
mod protocol;
mod stdio;
mod thread;
mod wall_clock;

pub use asker::{Seen, SeenLoss};
pub(crate) use driver::Worker;
pub(crate) use handler::now_ns;
pub(crate) use outlet::Outlet;
pub(crate) use process::WorkerProgram;
pub use protocol::{Answer, Command, How, Reply, Request, Said, Told};
pub use stdio::run_stdio;
pub(crate) use wall_clock::WallClock;
