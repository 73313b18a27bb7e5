//! What takes time in a lease's life: `tracing` spans with stable names under the target `leasehold`.
//!
//! Each has the fields `resource`, `token` and `outcome`, of which the latter two are empty until they are known. No owner token anywhere.
//! A span is only ever entered while its own future is polled, so it never reaches into what the thread does meanwhile. Where nobody
//! listens, none is made, and no text either.

use super::clean_up::CleanUp;
use super::events::text;
use super::guard::{LeaseGuard, RunError};
use crate::{Acquisition, FencingToken, Lease, LeaseError, Release, Renewal, ResourceName};
use std::future::Future;
use tracing::{Instrument as _, Span, debug_span, field::Empty, info_span};

/// Runs `work` in `span`, and has `note` say what came of it. Work that is dropped leaves no outcome.
pub(super) async fn within<T>(span: Span, note: impl FnOnce(&Span, &T), work: impl Future<Output = T>) -> T {
    let answer = work.instrument(span.clone()).await;
    if !span.is_disabled() {
        note(&span, &answer);
    }
    answer
}

pub(super) fn acquire(resource: &ResourceName) -> Span {
    info_span!(target: "leasehold", "acquire", %resource, token = Empty, outcome = Empty)
}

pub(super) fn acquired(span: &Span, answer: &Result<Option<LeaseGuard>, LeaseError>) {
    let guard = answer.as_ref().ok().and_then(Option::as_ref);
    note_token(span, guard.and_then(LeaseGuard::token));
    span.record("outcome", if guard.is_some() { "granted" } else { free_or_failed(answer.is_ok()) });
}

pub(super) fn attempt(resource: &ResourceName) -> Span {
    debug_span!(target: "leasehold", "attempt", %resource, token = Empty, outcome = Empty)
}

pub(super) fn attempted(span: &Span, answer: &Result<Acquisition, LeaseError>) {
    let lease = if let Ok(Acquisition::Acquired(lease)) = answer { Some(lease) } else { None };
    note_token(span, lease.and_then(Lease::token));
    span.record("outcome", if lease.is_some() { "granted" } else { free_or_failed(answer.is_ok()) });
}

pub(super) fn renewal(lease: &Lease) -> Span {
    debug_span!(target: "leasehold", "renewal", resource = %lease.resource(), token = text(lease.token()), outcome = Empty)
}

pub(super) fn renewed(span: &Span, answer: &Result<Renewal, LeaseError>) {
    let outcome = match answer {
        Ok(Renewal::Renewed(_)) => "renewed",
        Ok(Renewal::Lost(_)) => "lost",
        Err(_) => "failed",
    };
    span.record("outcome", outcome);
}

pub(super) fn release(lease: &Lease) -> Span {
    info_span!(target: "leasehold", "release", resource = %lease.resource(), token = text(lease.token()), outcome = Empty)
}

pub(super) fn released(span: &Span, answer: &Result<Release, LeaseError>) {
    let outcome = match answer {
        Ok(Release::Released) => "released",
        Ok(Release::NotHeld) => "not_held",
        Ok(Release::EndedCauseUnknown) => "ended_cause_unknown",
        Err(_) => "failed",
    };
    span.record("outcome", outcome);
}

pub(super) fn work(resource: &ResourceName, token: Option<&FencingToken>) -> Span {
    info_span!(target: "leasehold", "work", %resource, token = text(token), outcome = Empty)
}

pub(super) fn worked<T, E>(span: &Span, answer: &Result<T, RunError<E>>) {
    let outcome = match answer {
        Ok(_) => "done",
        Err(RunError::Work(_)) => "failed",
        Err(RunError::Lost(_)) => "lost",
    };
    span.record("outcome", outcome);
}

/// Of what is done in the background for those who are gone.
pub(super) fn clean_up(clean_up: &CleanUp) -> Span {
    match clean_up {
        CleanUp::Release(grant) => release(&grant.lease()),
        CleanUp::Abandon(attempt) => {
            let resource = attempt.resource();
            debug_span!(target: "leasehold", "abandon", %resource, token = Empty, outcome = Empty)
        }
    }
}

pub(super) fn abandoned(span: &Span, answer: &Result<(), LeaseError>) {
    span.record("outcome", if answer.is_ok() { "done" } else { "failed" });
}

fn note_token(span: &Span, token: Option<&FencingToken>) {
    if token.is_some() {
        span.record("token", text(token));
    }
}

fn free_or_failed(answered: bool) -> &'static str {
    if answered { "held" } else { "failed" }
}
