//! Faults of one server, on the real programs, each with what shows that it happened.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is wrong")]

mod backup;
mod clock;
mod common;
mod disk;
