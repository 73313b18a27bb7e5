//! Futures that are dropped at every await: nothing is left behind past one TTL, and the client goes on giving right answers.

mod keeper;
mod operations;
mod sweep;

pub(super) use sweep::polled;

use super::{Case, case};
use crate::judge::Rule;

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        operations::acquire_swept,
        Rule::Core,
        "cancel/acquire-swept",
        "An acquire that is dropped, at whichever await, leaves nothing behind past one TTL, and the client stays right.",
        "An acquire is polled 0, 1, 2 … times and dropped, at once or when it would be polled again, until it ends by itself. Each time its attempt is abandoned, or nothing is done but to wait for the TTL: the resource can be acquired. The same client acquires, inspects, renews and releases other names in between, and gets right answers."
    ),
    case!(
        Together,
        operations::renew_swept,
        Rule::Core,
        "cancel/renew-swept",
        "A renewal that is dropped, at whichever await, leaves the grant as it was or extended, and the client stays right.",
        "As `cancel/acquire-swept`. After each drop the next renewal is good and keeps the token; or nothing is done, and the grant ends with its TTL: nothing renews it."
    ),
    case!(
        Together,
        operations::release_swept,
        Rule::Core,
        "cancel/release-swept",
        "A release that is dropped, at whichever await, can be repeated, is never called a loss, and the client stays right.",
        "As `cancel/acquire-swept`. After each drop the repeat says `Released` or `EndedCauseUnknown` and the resource is free; or nothing is done, and the grant ends with its TTL."
    ),
    case!(
        Together,
        operations::force_release_swept,
        Rule::Core,
        "cancel/force-release-swept",
        "A force-release that is dropped, at whichever await, can be repeated, ends no other grant, and the client stays right.",
        "As `cancel/acquire-swept`. After each drop the repeat of the order says `Ended` or `NotHeld`, the broken grant cannot be renewed and the resource is free; or nothing is done, and the grant ends with its TTL at the latest."
    ),
    case!(
        Together,
        operations::abandon_swept,
        Rule::Core,
        "cancel/abandon-swept",
        "An abandonment that is dropped, at whichever await, can be repeated, and the client stays right.",
        "As `cancel/acquire-swept`. After each drop the repeat frees the resource; or nothing is done, and the grant ends with its TTL."
    ),
    case!(
        Together,
        operations::inspect_swept,
        Rule::Core,
        "cancel/inspect-swept",
        "A look that is dropped, at whichever await, does not become the answer to the next question.",
        "A look at a held resource is polled 0, 1, 2 … times and dropped; then the same client looks at a free one, and uses others."
    ),
    case!(
        Together,
        keeper::acquire_swept,
        Rule::Core,
        "cancel/keeper-acquire-swept",
        "A keeper's acquire that is dropped, at whichever await, is renewed by nobody.",
        "A keeper's acquire is polled 0, 1, 2 … times and dropped, until it ends by itself. Each resource can be acquired within one TTL while the keeper goes on."
    ),
];
