//! One etcd on a wall clock of its own, which jumps.

use super::one::{One, SINGLE, TTL};
use crate::survival::scene::{Fault, Moment, Trouble, Witness, nothing};
use std::time::SystemTime;

const HOUR_S: i64 = 3_600;

pub(super) static FAULTS: &[Fault<One>] = &[
    Fault {
        id: "clock-forward",
        means: "the server's wall clock jumps an hour ahead",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: nothing,
        make: |one, moment| jump(one, moment, HOUR_S),
    },
    Fault {
        id: "clock-back",
        means: "the server's wall clock jumps an hour back",
        on: &[SINGLE],
        ttl: TTL,
        outlasts: false,
        prepare: |one| Ok(one.server.put_on_clock()?),
        before: nothing,
        make: |one, moment| jump(one, moment, -HOUR_S),
    },
];

/// Moves the clock, and reads the server's time against ours.
fn jump(one: &mut One, _: &Moment, ahead_s: i64) -> Result<Witness, Trouble> {
    one.server.set_clock(ahead_s)?;
    let there = i64::try_from(one.server.time()?.as_secs()).unwrap_or_default();
    let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let here = i64::try_from(here.as_secs()).unwrap_or_default();
    let seen_s = there.saturating_sub(here);
    if seen_s.saturating_sub(ahead_s).abs() > 5 {
        return Err(Trouble::NotShown(format!("the server's clock is {seen_s} s ahead of ours, not {ahead_s} s")));
    }
    Ok(Witness::of("server_time_s", there).and("our_time_s", here).and("ahead_s", seen_s))
}
