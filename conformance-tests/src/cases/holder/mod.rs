//! Holding a lease when things go wrong: who may begin work, until when, and what is left of a guard that is gone.

mod crowd;
mod disturbed;
mod dropped;
mod ends;
mod fault;
mod group;
mod many;
mod shifted;
mod wall;

use super::{Case, case};
use crate::judge::Rule;

pub(super) const CASES: &[Case] = &[
    case!(
        Alone,
        disturbed::loss_by_deadline,
        Rule::Core,
        "holder/loss-by-deadline",
        "A holder that cannot renew begins nothing more once the next worker can have the lease, and is never revived.",
        "At least 20 holders, each in a worker of its own kind of trouble: a black hole, cut and refused connections, a frozen server, a killed server, a record deleted by hand, a worker that is stopped, a runtime that is blocked with its renewals. Each asks for permits every two milliseconds. An observer at a client of its own takes every lease over as soon as it can: the holder's last permit must lie strictly before the observer's grant, and after the trouble is over no permit is given."
    ),
    case!(
        Alone,
        disturbed::no_false_loss,
        Rule::Core,
        "holder/no-false-loss",
        "Trouble that is shorter than what remains, less one attempt and a reconnect, costs no lease.",
        "At least 20 holders in the same kinds of trouble, or with one renewal reply that never comes, for less than a second of a TTL of four, or eight where the server is killed. None may be lost, and each must have a permit from after the deadline that stood when the trouble began. A trial in which the machine made the trouble longer than that does not count; the evidence says how many."
    ),
    case!(
        Together,
        ends::release_during_renewal,
        Rule::Core,
        "holder/release-during-renewal",
        "A release while a renewal is under way is a release: never a loss, and nothing is renewed afterwards.",
        "500 rounds on a clock that is moved to where a renewal is due: the guard is released at a random moment of it. The answer must be `Released`, no renewal may begin after the release, and the next round must find the name free."
    ),
    case!(
        Together,
        ends::drop_frees,
        Rule::Core,
        "holder/drop-frees",
        "Dropping a guard frees its lease long before the TTL.",
        "A guard with a TTL of minutes is dropped; another client must soon be able to take the lease."
    ),
    case!(
        Together,
        dropped::anywhere,
        Rule::Core,
        "holder/drop-anywhere",
        "A guard can be dropped where there is no runtime, or one that ends: nobody panics or hangs, and its lease ends.",
        "Guards of runtimes of their own, with one thread and with workers, are dropped on a plain thread, there while it panics, inside a task whose runtime is shut down, and behind the runtime's end. Where the runtime runs on, another client must soon be granted the lease, else within the TTL."
    ),
    case!(
        Together,
        ends::second_is_renewed,
        Rule::Core,
        "holder/second-lease-is-renewed-after-a-loss",
        "After a loss, the same keeper renews the next lease of the same name.",
        "Renewals are swallowed until the guard is lost. Then the path is healed, the same keeper acquires the same name again, and the new guard must outlive three TTLs."
    ),
    case!(
        Together,
        ends::renewal_stops,
        Rule::Core,
        "holder/renewal-stops-with-guard",
        "Nothing renews after a guard has gone with a panic, an aborted task or a drop.",
        "Three guards with short TTLs go in these ways. No renewal may begin afterwards, and another client must be able to take each lease."
    ),
    case!(
        Alone,
        wall::renewed,
        Rule::Core,
        "holder/wall-clock-jump",
        "Wall-clock jumps of hours at the worker cost no lease: it is renewed, excludes others and is released as ever.",
        "A worker process holds a guarded lease; its wall clock jumps by three hours, ahead and behind, before the acquisition, between it and the first renewal, between renewals, and thousands of times while renewals are under way. No loss; no permit may say that more than the TTL is left; a client elsewhere and a worker whose clock is three hours ahead must be told `Held`; the release must be `Released`, and later tokens larger. The worker tells what its clock says before and after each jump. Only the wall clock that the C library tells is moved."
    ),
    case!(
        Alone,
        wall::not_renewed,
        Rule::Core,
        "holder/wall-clock-jump-without-renewal",
        "A lease that nothing renews ends at its real deadline, wherever the wall clock jumps to.",
        "A worker process holds a guarded lease whose renewals reach nobody; after the acquisition its wall clock jumps by three hours ahead, by six behind, and back. The loss must not come before the deadline, no permit after it, and nobody else may be granted the lease before it."
    ),
    case!(
        Alone,
        wall::plain_lease,
        Rule::Core,
        "holder/wall-clock-jump-by-hand",
        "A lease that is acquired and renewed by hand does not mind wall-clock jumps of hours either.",
        "A worker process acquires, renews and releases without a guard, while its wall clock jumps by three hours before, between and during the calls; the evidence says into how many renewals a jump fell. The lease must say what is left by the real deadline, others must be told `Held` until then, and renewal and release afterwards be `Lost` and `NotHeld`."
    ),
    case!(
        Alone,
        crowd::ten_thousand,
        Rule::Core,
        "holder/ten-thousand-guards",
        "Ten thousand guards share one task and one client: a guard costs neither a task nor a connection.",
        "One keeper takes 10,000 leases (fewer where 200 of them take more than 0.4 s, which the evidence says, and none where they take 8 s), on a clock that is moved through two rounds of renewals. All must be live afterwards, after about one request for each and round; the number of tasks, at rest and in a round, and of open sockets must not grow with the guards. When they are dropped each lease is released, once."
    ),
];
