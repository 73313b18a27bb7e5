//! Every guard under two concurrent writers, in all interleavings of their steps, on real servers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test may end by a panic, and says how much it has tried"
)]

mod crash;
mod explorer;
mod model;
mod postgres;
mod requests;
mod scenes;
mod sqlite;
