//! The conformance suite of Leasehold: every case on every lease backend, judged against what the backend declares.
//!
//! The library, without default features, sees `lease-core` only: test your own adapter with it. The program
//! `lease-conformance` brings the workspace's backends and starts private servers.

pub mod judge;
pub mod report;
pub mod subject;
