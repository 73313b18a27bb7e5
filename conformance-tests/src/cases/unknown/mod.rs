//! Requests and replies that get lost or come late: nobody knows what became of the operation, until the same attempt settles it.

mod abandoned;
mod acquire;
mod ground;
mod held;
mod late;
mod left;
mod outage;
mod silent;
mod usable;

pub(super) use silent::CASES as SILENT;

use super::{Case, case};
use crate::judge::Rule;

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        acquire::reply_lost,
        Rule::Core,
        "unknown/acquire-reply-lost",
        "When the reply to an acquire is lost the outcome is unknown, and the same attempt finds the grant that it made.",
        "The connection is cut, or falls silent, behind each request of an acquire in turn. The error must say that the effect is unknown (never that the lease is held). Where another client sees the grant, the same attempt must find it, by either client, with the same token and a deadline that counts from the first send."
    ),
    case!(
        Together,
        acquire::request_lost,
        Rule::Core,
        "unknown/acquire-request-lost",
        "When an acquire is lost on its way the outcome is unknown, and the same attempt makes the one grant.",
        "The connection is cut before each request of an acquire in turn. The error must say that the effect is unknown (never that the lease is held), another client must see no grant, and the same attempt must make one, and only one."
    ),
    case!(
        Together,
        held::renew_reply_lost,
        Rule::Core,
        "unknown/renew-reply-lost",
        "When the reply to a renewal is lost the outcome is unknown, the old deadline stands, and the grant is not shortened.",
        "The connection is cut before and behind each request of a renewal in turn, or falls silent. The lease keeps its deadline, the store does not let it end earlier, and the next renewal is good."
    ),
    case!(
        Together,
        held::release_reply_lost,
        Rule::Core,
        "unknown/release-reply-lost",
        "When the reply to a release is lost the outcome is unknown, and its repeat never says that the lease was lost.",
        "The connection is cut behind each request of a release in turn, or falls silent. The repeat by another client must say `Released` or `EndedCauseUnknown`, and the resource must be free."
    ),
    case!(
        Together,
        held::release_in_doubt,
        Rule::Core,
        "unknown/release-in-doubt-superseded",
        "A release in doubt is not called a loss when somebody else has acquired meanwhile, and leaves that grant alone.",
        "The reply to a release is lost, another client acquires, and the release is repeated: `EndedCauseUnknown` (or `Released`, where the store remembers), and the other grant stays."
    ),
    case!(
        Together,
        held::release_request_lost,
        Rule::Core,
        "unknown/release-request-lost",
        "When a release is lost on its way the outcome is unknown, the lease stays held, and its repeat leaves nothing behind.",
        "The connection is cut before each request of a release in turn. Until the repeat the resource is held, for the same client too; then the repeat says `Released` or `EndedCauseUnknown`, and the same client and another one acquire and release in turn."
    ),
    case!(
        Together,
        left::to_its_ttl,
        Rule::Core,
        "unknown/cut-acquire-ends-with-its-ttl",
        "An acquire that is cut off, at whichever request, leaves no grant without an end.",
        "The connection is cut before and behind each request of an acquire in turn, and nobody repeats or abandons the attempt. When its TTL has passed another client must be granted the lease."
    ),
    case!(
        Together,
        left::given_up,
        Rule::Core,
        "unknown/short-form-gives-up",
        "The short form of acquire, whose caller has no attempt to repeat, gives a grant in doubt up by itself.",
        "The reply to each request of `try_acquire` in turn is lost or swallowed, or the request is kept on its way and delivered later. The TTL is minutes; another client must be granted the lease within seconds, and keep it."
    ),
    case!(
        Together,
        left::dropped,
        Rule::Core,
        "unknown/dropped-acquire-arrives-later",
        "An acquire whose caller has gone away makes no grant that stays, also when it arrives later.",
        "Each request of a keeper's acquire in turn is kept on its way; the call is dropped, and the request delivered. The TTL is minutes; another client must be granted the lease within seconds, and keep it."
    ),
    case!(
        Together,
        abandoned::delayed,
        Rule::Core,
        "unknown/delayed-acquire-after-abandon",
        "An acquire that is still on its way when its attempt is abandoned makes no grant when it arrives.",
        "Each request of an acquire in turn is kept on its way; the attempt is abandoned by another client; then the request is delivered, and the store's answer to it is waited for. The resource must stay free."
    ),
    case!(
        Together,
        abandoned::held_up,
        Rule::Core,
        "unknown/held-up-acquire-after-abandon",
        "The store itself refuses an attempt that was abandoned, whatever its sender knows.",
        "An attempt is abandoned, before or after it made its grant; then a copy that knows nothing of it is sent by a healthy client: `AttemptOver`, also with another grant between, which stays."
    ),
    case!(
        Together,
        abandoned::held_up_after_release,
        Rule::Core,
        "unknown/held-up-acquire-after-release",
        "A request that was still on its way when its attempt's grant was released makes no other grant.",
        "An acquire is lost, the same attempt makes its grant, and that is released. Then a copy of the attempt that knows nothing of it arrives: `AttemptOver`, and the resource stays free."
    ),
    case!(
        Together,
        abandoned::held_up_after_expiry,
        Rule::Core,
        "unknown/held-up-acquire-after-expiry",
        "A request that is still on its way when its attempt's grant has expired and another one has come and gone makes no second grant.",
        "Each request of an acquire in turn is kept on its way; the same attempt makes its grant by another client, which expires; another client acquires and releases. Then the request is delivered. The resource must stay free, the old lease cannot be renewed, and the store's own fence, where it compares the live owner, refuses it."
    ),
    case!(
        Together,
        late::is_no_success,
        Rule::Core,
        "unknown/late-grant-is-no-success",
        "A grant whose reply arrives after its own deadline is no success, and the resource is free again soon.",
        "The reply to each request of an acquire in turn is kept until the TTL is over. The answer must not be a lease, unless the store still has its grant; then the resource can be acquired."
    ),
    case!(
        Together,
        late::renewal,
        Rule::Core,
        "unknown/late-renewal-counts-from-its-send",
        "A renewal whose reply comes late gives no more time than the store does.",
        "The reply to each request of a renewal in turn is kept for a part of the TTL. The renewed deadline must not lie behind the end that the store gives."
    ),
    case!(
        Together,
        outage::is_no_answer,
        Rule::Core,
        "unknown/outage-is-no-answer",
        "While the store cannot be reached every call says so, and afterwards the same client works again.",
        "Twice everything is cut and no connection is taken. Each operation must fail as trouble on the way: never as `Held`, lost or free. When connections are taken again the same client must give right answers within seconds, and what was held before is still held."
    ),
    case!(
        Together,
        usable::afterwards,
        Rule::Core,
        "unknown/connection-usable-afterwards",
        "After a lost request, a lost reply or a late one the same client gives right answers again.",
        "Each fault at each request of each operation in turn. Then the same client acquires, inspects, renews and releases other names: every answer must be about the name and the grant that was asked for, and at most a few calls may fail until the client has found its way back."
    ),
];
