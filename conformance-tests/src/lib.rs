//! The conformance suite of Leasehold: every case on every lease backend, judged against what the backend declares.
//!
//! The library, without default features, sees `lease-core` only: test your own adapter with it. The feature `http` adds the cases
//! `fencing/http/`, in which a service writes for the workers, and brings axum. The program `lease-conformance` brings the workspace's
//! backends and starts private servers.
//!
//! ```
//! use lease_conformance::{Suite, subject};
//! use lease_core::memory::{MemoryBackend, MemoryStore};
//!
//! # #[tokio::main] async fn main() -> Result<(), lease_core::LeaseError> {
//! let store = MemoryStore::new()?;
//! let connect = move || std::future::ready(Ok(MemoryBackend::on(store.clone())));
//! let report = Suite::new(subject("memory", connect)).only("exclusion/").run().await;
//! assert_eq!(report.exit_status(), 0, "{:#?}", report.cells);
//! # Ok(()) }
//! ```

pub mod cases;
mod context;
pub mod faults;
mod figures;
mod history;
pub mod judge;
mod place;
#[cfg(feature = "program")]
pub mod program;
pub mod report;
pub mod soak;
pub mod subject;
mod suite;
pub mod survival;
mod task;
pub mod timeline;
mod trials;
pub mod worker;

pub use cases::{CaseInfo, cases};
pub use judge::{Observed, Rule, judge};
pub use place::MemoryPlace;
pub use report::{Cell, Report, Verdict};
pub use subject::subject;
pub use suite::{Progress, Suite};
