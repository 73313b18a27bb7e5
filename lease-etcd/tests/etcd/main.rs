//! The backend and the destination on real etcd servers.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod faults;
mod floor;
mod force;
mod guard;
mod lifecycle;
mod listing;
#[cfg(feature = "testing")]
mod sabotage;
mod setup;
mod support;
#[cfg(feature = "tls-rustls")]
mod tls;
