//! What happened, noted from outside, and the invariants that must hold of it whatever a case asserts itself.

mod check;
mod event;
mod recorded;

pub(crate) use check::violations;
pub(crate) use event::{Event, Recorder, Renewed, What, Wrote};
pub(crate) use recorded::{Recorded, RecordedDestination};
