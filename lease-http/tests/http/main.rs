//! The layer in front of an axum handler, asked over real loopback sockets.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

mod admission;
mod forgotten;
mod paused;
mod server;
mod sources;
