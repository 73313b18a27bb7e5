//! Set-ups of several servers, and what a fault of one of them loses, on the real programs.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is wrong")]

mod etcd_cluster;
mod postgres_pair;
mod redis_pair;
mod sentinel;
