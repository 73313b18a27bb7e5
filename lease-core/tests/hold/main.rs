//! Holding a lease on virtual time, with scripted faults: loss is loud, on time and for good; nothing else is a loss.
#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a test may end at the first thing that is wrong"
)]

mod acquire;
mod bench;
mod crowd;
mod ending;
mod limits;
mod loss;
mod renewal;
mod run;
mod suspend;
mod waiting;
