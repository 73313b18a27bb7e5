//! One etcd whose space quota is used up: it refuses what takes space until somebody makes room.

use super::one::{One, SINGLE, TTL, start};
use super::wire::{call, delete, put};
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing, until};
use lease_servers::{Server, etcd_status};
use serde_json::json;

/// Small, so that it is soon used up.
const QUOTA: &str = "--quota-backend-bytes=8388608";
const FILLER: &str = "filler";

pub(super) static FAULTS: &[Fault<One>] = &[Fault {
    id: "out-of-space",
    means: "the space quota is used up (NOSPACE), until somebody makes room and disarms the alarm",
    on: &[SINGLE],
    ttl: TTL,
    outlasts: false,
    prepare: |one| {
        *one = start(&[QUOTA])?;
        Ok(())
    },
    before: nothing,
    make: out_of_space,
}];

fn out_of_space(one: &mut One, _: &Moment) -> Result<Witness, Trouble> {
    let server = &one.server;
    let much = vec![b'x'; 1 << 20];
    let refused = until("a write is refused for lack of space", || match put(server, FILLER, &much) {
        Err(error) if error.to_string().contains("space exceeded") => Ok(error.to_string()),
        other => Err(format!("{other:?}")),
    })?;
    let alarms = call(server, "/v3/maintenance/alarm", &json!({ "action": "GET" }))?.to_string();
    if !alarms.contains("NOSPACE") {
        return Err(Trouble::NotShown(format!("the alarms are {alarms}")));
    }
    make_room(server)?;
    until("writes are taken again", || put(server, FILLER, b"").map_err(|error| error.to_string()))?;
    Ok(Witness::of("a_write_meanwhile", refused).and("alarms_meanwhile", alarms))
}

/// What an operator does: away with the data, with their history, with the room that they had; then the alarm.
fn make_room(server: &Server) -> Result<(), Trouble> {
    delete(server, FILLER, false)?;
    let status = etcd_status(server)?;
    call(server, "/v3/kv/compaction", &json!({ "revision": status.revision, "physical": true }))?;
    call(server, "/v3/maintenance/defragment", &json!({}))?;
    let disarm = json!({ "action": "DEACTIVATE", "memberID": status.member.to_string(), "alarm": "NOSPACE" });
    call(server, "/v3/maintenance/alarm", &disarm).map(drop)
}
