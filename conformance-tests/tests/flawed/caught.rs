//! What is wrong, and the cases that must catch it.

use super::Flaw;

/// The flaws, each with the cases that must catch it.
#[rustfmt::skip]
pub const FLAWS: &[(Flaw, &[&str])] = {
    use Flaw::*;
    &[
        (DeadlineFromTheAnswer, &["unknown/acquire-reply-lost", "unknown/late-grant-is-no-success"]),
        (DoubtIsForgotten, &["unknown/release-in-doubt-superseded"]),
        (DownIsFree, &["unknown/outage-is-no-answer"]),
        (DropSpoilsTheConnection, &["cancel/acquire-swept", "cancel/renew-swept", "cancel/release-swept", "cancel/abandon-swept", "cancel/force-release-swept", "cancel/keeper-acquire-swept"]),
        (ExpiryComesLater, &["unknown/cut-acquire-ends-with-its-ttl"]),
        (ForceNeverComesBack, &["unknown/connection-usable-afterwards"]),
        (ForceWaitsForEver, &["unknown/silent-peer-every-call-ends"]),
        (LateReplyAnswersNext, &["cancel/inspect-swept", "unknown/connection-usable-afterwards"]),
        (NeverComesBack, &["unknown/outage-is-no-answer", "unknown/connection-usable-afterwards"]),
        (RenewalFromTheAnswer, &["unknown/late-renewal-counts-from-its-send"]),
        (RenewsWhatWasDropped, &["cancel/acquire-swept"]),
        (SendsAnotherAttempt, &["unknown/acquire-reply-lost", "unknown/acquire-request-lost"]),
        (UnknownHasNoEffect, &["unknown/acquire-reply-lost", "unknown/release-reply-lost", "unknown/short-form-gives-up"]),
        (UnknownIsALoss, &["unknown/renew-reply-lost", "unknown/release-reply-lost", "unknown/release-request-lost"]),
        (UnknownIsHeld, &["unknown/acquire-reply-lost", "unknown/acquire-request-lost", "unknown/delayed-acquire-after-abandon", "unknown/late-grant-is-no-success"]),
        (WaitsForEver, &["unknown/silent-peer-every-call-ends"]),
    ]
};
