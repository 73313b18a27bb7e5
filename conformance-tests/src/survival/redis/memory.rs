//! One Redis whose memory is short.

use super::one::{ALL_KEYS, ALWAYS, One, TTL, VOLATILE};
use super::{info, record};
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing, until};
use crate::survival::{CONTESTED, KEPT};
use lease_servers::redis_command;

pub(super) static FAULTS: &[Fault<One>] = &[Fault {
    id: "out-of-memory",
    means: "the server may use less memory than it does, until it has evicted what it may, and then as much as before",
    on: &[ALWAYS, ALL_KEYS, VOLATILE],
    ttl: TTL,
    outlasts: false,
    prepare: nothing,
    before: nothing,
    make: out_of_memory,
}];

/// The server evicts by itself; the limit is what makes it.
fn out_of_memory(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let server = &one.server;
    let (policy, before) = (info(server, "memory", "maxmemory_policy")?, evicted(one)?);
    let records = [record(CONTESTED), record(KEPT)];
    redis_command(server, &["CONFIG", "SET", "maxmemory", "1"])?;
    let refused =
        until("a write is refused for lack of memory", || match redis_command(server, &["SET", "filler", "x"]) {
            Err(error) if error.to_string().contains("OOM") => Ok(error.to_string()),
            other => Err(format!("{other:?}")),
        })?;
    if policy != "noeviction" {
        until("the records of the leases are evicted", || {
            let left = redis_command(server, &["EXISTS", &records[0], &records[1]]).map_err(|e| e.to_string())?;
            if left == "0" { Ok(()) } else { Err(format!("{left} of them are there")) }
        })?;
    }
    if policy.starts_with("allkeys") {
        until("every key is evicted", || {
            let left = redis_command(server, &["DBSIZE"]).map_err(|e| e.to_string())?;
            if left == "0" { Ok(()) } else { Err(format!("{left} keys are there")) }
        })?;
    }
    let after = evicted(one)?;
    redis_command(server, &["CONFIG", "SET", "maxmemory", "0"])?;
    if (policy == "noeviction") != (after == before) {
        return Err(Trouble::NotShown(format!("evicted keys: {before} before, {after} after, policy {policy}")));
    }
    Ok(Witness::of("policy", policy)
        .and("evicted_keys", after.saturating_sub(before))
        .and("a_write_meanwhile", refused))
}

fn evicted(one: &One) -> Result<u64, Trouble> {
    let text = info(&one.server, "stats", "evicted_keys")?;
    text.parse().map_err(|_| Trouble::Failed(format!("evicted_keys is {text}")))
}
