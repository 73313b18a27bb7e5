//! The in-memory backend and destination: the executable specification of the contract, and a stand-in for tests.
//!
//! One [`MemoryStore`] is one "server"; backends on it exclude each other as clients of a server would. It lives in one
//! process: nothing of it survives the process, and it claims nothing across processes.

mod backend;
mod destination;
mod store;

pub use backend::MemoryBackend;
pub use destination::MemoryDestination;
pub use store::MemoryStore;
