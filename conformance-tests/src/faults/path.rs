//! The path whose faults are at the calls: what is armed, what is held, and what becomes of a call.

use super::{FaultyPath, OnceFault};
use crate::subject::BoxFuture;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

#[derive(Debug, Default)]
pub(super) struct CallPath {
    state: Mutex<State>,
    pub(super) cuts: watch::Sender<u64>,
    /// The ends of black holes.
    pub(super) hole_ends: watch::Sender<u64>,
    pub(super) deliveries: watch::Sender<u64>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "switches that do not depend on each other")]
struct State {
    once: Option<(u32, OnceFault)>,
    happened: bool,
    hole: bool,
    /// Something was swallowed by the black hole that is there.
    swallowed: bool,
    refuse: bool,
    cut: bool,
    held: Vec<BoxFuture<'static, ()>>,
    requests: u64,
    replies: u64,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("once", &self.once).field("held", &self.held.len()).finish_non_exhaustive()
    }
}

/// What becomes of a call.
pub(super) enum Way {
    Passes,
    Refused,
    Swallowed,
    Fault(OnceFault),
}

impl CallPath {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self) -> Way {
        let mut state = self.state();
        if state.cut && state.refuse {
            return Way::Refused;
        }
        state.cut = false;
        state.requests = state.requests.saturating_add(1);
        if state.hole {
            state.swallowed = true;
            return Way::Swallowed;
        }
        match state.once {
            None => Way::Passes,
            Some((0, fault)) => {
                (state.once, state.happened) = (None, true);
                Way::Fault(fault)
            }
            Some((passed, fault)) => {
                state.once = Some((passed.saturating_sub(1), fault));
                Way::Passes
            }
        }
    }

    pub(super) fn replied(&self) {
        let mut state = self.state();
        state.replies = state.replies.saturating_add(1);
    }

    /// Ends a black hole: the calls that it swallowed learn that their connection is gone.
    fn end_hole(&self) {
        let mut state = self.state();
        state.hole = false;
        state.cut |= std::mem::take(&mut state.swallowed);
        drop(state);
        self.hole_ends.send_modify(|ends| *ends = ends.saturating_add(1));
    }

    /// Keeps a request until it is delivered.
    pub(super) fn hold(self: &Arc<Self>, request: Option<BoxFuture<'static, ()>>) {
        let Some(request) = request else { return };
        let path = Arc::clone(self);
        let whole = Box::pin(async move {
            request.await;
            path.replied();
        });
        self.state().held.push(whole);
    }
}

impl FaultyPath for CallPath {
    fn kind(&self) -> &'static str {
        "calls"
    }

    fn once_after(&self, passed: u32, fault: OnceFault) {
        let mut state = self.state();
        (state.once, state.happened) = (Some((passed, fault)), false);
    }

    fn happened(&self) -> bool {
        self.state().happened
    }

    fn black_hole(&self, on: bool) {
        if on {
            self.state().hole = true;
        } else {
            self.end_hole();
        }
    }

    fn cut(&self) {
        self.state().cut = true;
        self.cuts.send_modify(|cuts| *cuts = cuts.saturating_add(1));
    }

    fn refuse(&self, on: bool) {
        self.state().refuse = on;
    }

    fn deliver(&self) {
        let held = std::mem::take(&mut self.state().held);
        // The suite runs on a Tokio runtime; without one nothing can be carried out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            for request in held {
                runtime.spawn(request);
            }
        }
        self.deliveries.send_modify(|deliveries| *deliveries = deliveries.saturating_add(1));
    }

    fn heal(&self) {
        let mut state = self.state();
        (state.once, state.refuse) = (None, false);
        drop(state);
        self.end_hole();
        self.deliver();
    }

    fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.requests, state.replies)
    }
}
