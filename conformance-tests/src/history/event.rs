//! The events of a history.

use crate::context::now;
use lease_core::{BootInstant, FencingToken, OwnerToken, ResourceName};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One operation: it took effect, if at all, between `invoked` and `returned`; later too, when its outcome is unknown.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) resource: ResourceName,
    pub(crate) invoked: BootInstant,
    pub(crate) returned: BootInstant,
    pub(crate) what: What,
}

/// What was done and what came of it. Grants are told apart by their owner token, which is compared and never shown.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A grant was made, or the same attempt's grant was found.
    Granted { owner: OwnerToken, token: Option<FencingToken>, granted_ttl: Duration },
    /// An attempt whose outcome is unknown: it may have made a grant from here on.
    AcquireUnknown { owner: OwnerToken },
    /// A renewal.
    Renew { owner: OwnerToken, granted_ttl: Duration, outcome: Renewed },
    /// A release, or an abandoned attempt: whatever came of it, its holder does not count on the grant any more.
    Ended {
        owner: OwnerToken,
        /// The store said for certain that the grant is over.
        certain: bool,
    },
    /// An order to end the grant with this value, whoever holds it: from here on nobody counts on that grant.
    Forced {
        value: u64,
        /// The store said for certain that the grant is over.
        certain: bool,
    },
    /// A guarded write or a seal at a destination.
    Write { place: String, token: FencingToken, outcome: Wrote },
}

/// What came of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Extended(Option<FencingToken>),
    Lost,
    Unknown,
}

/// What came of a guarded write or a seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    Admitted,
    /// Refused because a larger value had been there.
    Stale,
    /// Refused for another reason.
    Refused,
    Unknown,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.invoked.as_nanos() / 1_000, self.returned.as_nanos() / 1_000);
        write!(f, "[{from}..{to} µs] {} ", self.resource)?;
        match &self.what {
            What::Granted { token: Some(token), .. } => write!(f, "granted with {token}"),
            What::Granted { token: None, .. } => f.write_str("granted without a token"),
            What::AcquireUnknown { .. } => f.write_str("acquire, outcome unknown"),
            What::Renew { outcome, .. } => write!(f, "renew: {outcome:?}"),
            What::Ended { certain, .. } => write!(f, "ended, certain: {certain}"),
            What::Forced { value, certain } => write!(f, "force-release of {value}, certain: {certain}"),
            What::Write { place, token, outcome } => write!(f, "write at {place} with {token}: {outcome:?}"),
        }
    }
}

/// Collects events; clones collect into the same history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    events: Arc<Mutex<Vec<Event>>>,
}

impl Recorder {
    pub(crate) fn push(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes an operation that begins now. If its future is dropped before it ends, `unknown` is what is noted.
    pub(crate) fn begin(&self, resource: &ResourceName, unknown: What) -> Open {
        Open {
            recorder: self.clone(),
            event: Some(Event {
                resource: resource.clone(),
                invoked: now(),
                returned: BootInstant::ZERO,
                what: unknown,
            }),
        }
    }
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Open {
    recorder: Recorder,
    event: Option<Event>,
}

impl Open {
    /// It ended with `what`; `None`: nothing came of it, for certain.
    pub(crate) fn end(mut self, what: Option<What>) {
        let event = self.event.take();
        if let (Some(mut event), Some(what)) = (event, what) {
            event.returned = now();
            event.what = what;
            self.recorder.push(event);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(mut event) = self.event.take() {
            event.returned = now();
            self.recorder.push(event);
        }
    }
}
