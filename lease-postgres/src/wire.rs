//! The statements on the lease tables, and what their rows mean.
//!
//! Each operation is one statement, so one transaction and one round trip. All of them run at READ COMMITTED, where the parts of a
//! statement read its snapshot, but `UPDATE` and `FOR …` decide on the latest version of the row that they lock. So:
//!
//! * `seen` is the snapshot. It answers what needs no lock: that the row is held, or that this attempt is over.
//! * Whatever changes the row checks again on the locked row. A change between the two shows as the outcome `raced`: nothing
//!   was done, and the caller runs the statement once more.
//! * Time is `clock_timestamp()`; `now()` would be the time before a wait for a lock. `UPDATE` and `FOR …` look at a row's time before
//!   they wait, and not again if the row is unchanged after. So what depends on the time asks again after the wait; a change that came too
//!   late by then raises, and the caller runs the statement once more.
//! * No statement locks a row in order to update it, unless nobody else can have it locked in any way: an update goes by the snapshot's version of
//!   the row first, and one who holds the latest version and wants the older one can wait in a circle with those who follow in line.
//! * A row is inserted only under a share lock on `meta`, which clean-up holds exclusively while it removes rows: an inserted row
//!   always begins above the floor that clean-up left, and from then on the row itself has the name's last value.

use crate::{keys, set_up};
use lease_core::{LeaseError, Namespace};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

/// One grant, or why there is none. `$1` name, `$2` owner, `$3` grant id, `$4` holder, `$5` TTL in ms, `$6` floor.
///
/// The fencing value is computed under the row's lock (or, for a new name, by the one insert that wins), so a later grant has a
/// larger one. The lock is `FOR UPDATE`, the one that conflicts with the `FOR KEY SHARE` of a fenced transaction, and it must be this
/// statement's first lock on the row: a fenced transaction with an old snapshot is stopped by a row that was updated under it, not by one that
/// was locked in a weaker mode before.
///
/// An owner whose grant has expired is remembered as spent, as by `FORCE`: the row itself says of the newer one from here on that its attempt is over,
/// and a request of the older one may still be on its way.
///
/// Where somebody has the row locked, there is no grant. `busy` waits for whoever is just changing it, which is short; and if a fenced
/// transaction, which can be long, keeps it after that, then that is an answer and not a wait: `fenced`. Otherwise the caller runs
/// `acquire_in_turn` next.
const ACQUIRE: &str = "
WITH seen AS MATERIALIZED (
    SELECT l.owner, l.value, l.incarnation, l.spent, l.expires_at,
           NOT l.released AND l.expires_at > clock_timestamp() AS live
      FROM {s}.lease l WHERE l.name = $1
), floor AS MATERIALIZED (
    SELECT m.incarnation, m.floor FROM {s}.meta m WHERE NOT EXISTS (SELECT FROM seen) FOR SHARE
), fresh AS (
    INSERT INTO {s}.lease (name, owner, grant_id, holder, value, incarnation, granted_at, renewed_at, expires_at)
    SELECT $1, $2, $3, $4, greatest(floor.floor + 1, $6 + 1, {now_us}), floor.incarnation,
           clock_timestamp(), clock_timestamp(), clock_timestamp() + $5 * interval '1 millisecond'
      FROM floor
    ON CONFLICT (name) DO NOTHING
    RETURNING value, incarnation
), ended AS MATERIALIZED (
    SELECT l.name FROM {s}.lease l WHERE {over} FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE {s}.lease l
       SET owner = $2, grant_id = $3, holder = $4, value = greatest(l.value + 1, $6 + 1, {now_us}),
           granted_at = clock_timestamp(), renewed_at = clock_timestamp(),
           expires_at = clock_timestamp() + $5 * interval '1 millisecond', released = false, forced = false,
           spent = {pruned} || CASE WHEN l.released THEN '{}' ELSE jsonb_build_object(l.owner, {now_us} + greatest(
               2 * (extract(epoch FROM l.expires_at - l.renewed_at) * 1000000)::bigint, 10000000)) END
      FROM ended WHERE l.name = ended.name
    RETURNING l.value, l.incarnation
), granted AS (
    SELECT value, incarnation FROM fresh UNION ALL SELECT value, incarnation FROM again
), busy AS MATERIALIZED (
    SELECT l.name FROM {s}.lease l WHERE {over} AND NOT EXISTS (SELECT FROM ended) FOR NO KEY UPDATE
), unfenced AS MATERIALIZED (
    SELECT FROM {s}.lease l JOIN busy ON l.name = busy.name FOR UPDATE OF l SKIP LOCKED
)
SELECT CASE WHEN granted.value IS NOT NULL OR (seen.live AND seen.owner = $2) THEN 'granted'
            WHEN seen.owner = $2 OR seen.spent ? $2 THEN 'over'
            WHEN seen.live THEN 'held'
            WHEN EXISTS (SELECT FROM busy) THEN CASE WHEN EXISTS (SELECT FROM unfenced) THEN 'busy' ELSE 'fenced' END
            WHEN seen.owner IS NULL AND NOT EXISTS (SELECT FROM floor) THEN 'no meta'
            ELSE 'raced' END,
       coalesce(granted.value, seen.value),
       coalesce(granted.incarnation, seen.incarnation),
       (extract(epoch FROM seen.expires_at - clock_timestamp()) * 1000000)::bigint
  FROM (SELECT) one LEFT JOIN seen ON true LEFT JOIN granted ON true";

/// Extends the owner's live grant. `$1` name, `$2` owner, `$3` TTL in ms, `$4` fencing value.
const RENEW: &str = "
WITH seen AS MATERIALIZED (
    {look}
), renewed AS (
    UPDATE {s}.lease l
       SET expires_at = greatest(l.expires_at, clock_timestamp() + $3 * interval '1 millisecond'),
           renewed_at = clock_timestamp()
      FROM seen WHERE {own_value}
    RETURNING CASE WHEN seen.expires_at <= clock_timestamp() THEN {too_late} END
)
SELECT CASE WHEN EXISTS (SELECT FROM renewed) THEN 'renewed'
            WHEN seen.owner IS NULL THEN 'gone'
            WHEN seen.owner <> $2 OR seen.value <> $4 THEN 'superseded'
            WHEN seen.forced THEN 'forced'
            WHEN seen.released THEN 'released'
            WHEN NOT seen.in_time THEN 'expired'
            ELSE 'raced' END
  FROM (SELECT) one LEFT JOIN seen ON true";

/// Ends the owner's live grant. `$1` name, `$2` owner.
const RELEASE: &str = "
WITH seen AS MATERIALIZED (
    {look}
), ended AS (
    UPDATE {s}.lease l
       SET released = true, expires_at = least(l.expires_at, clock_timestamp())
      FROM seen WHERE {own}
    RETURNING CASE WHEN seen.expires_at <= clock_timestamp() THEN {too_late} END
)
SELECT CASE WHEN EXISTS (SELECT FROM ended) THEN 'ended'
            WHEN seen.forced THEN 'not held'
            WHEN seen.owner = $2 AND seen.released THEN 'ended'
            WHEN seen.owner = $2 AND seen.in_time THEN 'raced'
            ELSE 'not held' END
  FROM (SELECT) one LEFT JOIN seen ON true";

/// Ends the owner's live grant and remembers the owner as spent. `$1` name, `$2` owner, `$3` how long in ms. A grant that has expired
/// does not become a released one, so that a later release is told that the lease was lost.
///
/// The memory is in the row, since only the row's own columns are read in their latest version; a name without a row gets one.
const END: &str = "
WITH seen AS MATERIALIZED (
    {look}
), floor AS MATERIALIZED (
    SELECT m.incarnation, m.floor FROM {s}.meta m WHERE NOT EXISTS (SELECT FROM seen) FOR SHARE
), fresh AS (
    INSERT INTO {s}.lease (name, owner, grant_id, holder, value, incarnation, granted_at, renewed_at, expires_at,
                           released, spent)
    SELECT $1, $2, '', '', floor.floor, floor.incarnation, clock_timestamp(), clock_timestamp(), clock_timestamp(),
           true, jsonb_build_object($2::text, {now_us} + $3 * 1000)
      FROM floor
    ON CONFLICT (name) DO NOTHING
    RETURNING false AS ended
), again AS (
    UPDATE {s}.lease l
       SET spent = {pruned} || jsonb_build_object($2::text, {now_us} + $3 * 1000),
           released = l.released OR (l.owner = $2 AND l.expires_at > clock_timestamp()),
           expires_at = CASE WHEN l.owner = $2 THEN least(l.expires_at, clock_timestamp()) ELSE l.expires_at END
      FROM seen WHERE l.name = $1
    RETURNING CASE WHEN l.released AND seen.owner = $2 AND NOT seen.released AND seen.expires_at <= clock_timestamp() THEN {too_late}
                   ELSE l.owner = $2 AND l.released AND NOT l.forced END AS ended
), done AS (
    SELECT ended FROM fresh UNION ALL SELECT ended FROM again
)
SELECT CASE WHEN done.ended THEN 'ended'
            WHEN NOT done.ended THEN 'not held'
            WHEN NOT EXISTS (SELECT FROM seen) AND NOT EXISTS (SELECT FROM floor) THEN 'no meta'
            ELSE 'raced' END
  FROM (SELECT) one LEFT JOIN done ON true";

/// Ends the live grant with a value, whoever owns it, and remembers its owner as spent. `$1` name, `$2` value, `$3` for how long at least, in ms; for
/// two granted TTLs if that is longer, which the row knows as the time from the latest renewal to the expiry.
const FORCE: &str = "
WITH seen AS MATERIALIZED (
    SELECT l.value, l.expires_at, NOT l.released AND l.expires_at > clock_timestamp() AS live
      FROM {s}.lease l WHERE l.name = $1
), ended AS (
    UPDATE {s}.lease l
       SET released = true, forced = true, expires_at = least(l.expires_at, clock_timestamp()),
           spent = {pruned} || jsonb_build_object(l.owner, {now_us} + greatest(
               2 * (extract(epoch FROM l.expires_at - l.renewed_at) * 1000000)::bigint, $3 * 1000))
      FROM seen WHERE l.name = $1 AND l.value = $2 AND NOT l.released AND l.expires_at > clock_timestamp()
    RETURNING CASE WHEN seen.expires_at <= clock_timestamp() THEN {too_late} END
)
SELECT CASE WHEN EXISTS (SELECT FROM ended) THEN 'ended'
            WHEN seen.live AND seen.value <> $2 THEN 'other'
            WHEN seen.live THEN 'raced'
            ELSE 'not held' END,
       seen.value
  FROM (SELECT) one LEFT JOIN seen ON true";

/// Begins this store's history, if nobody has. `$1` a fresh incarnation; the first one wins.
const BEGIN_HISTORY: &str = "INSERT INTO {s}.meta (incarnation) VALUES ($1) ON CONFLICT (id) DO NOTHING";

/// What others may see of a name. `$1` name.
const INSPECT: &str = "
SELECT NOT l.released AND l.expires_at > l.now, l.name, l.holder, l.value, l.grant_id <> '',
       (extract(epoch FROM l.expires_at - l.now) * 1000000)::bigint,
       (extract(epoch FROM l.now - l.granted_at) * 1000000)::bigint,
       (extract(epoch FROM l.now - l.renewed_at) * 1000000)::bigint
  FROM (SELECT *, clock_timestamp() AS now FROM {s}.lease WHERE name = $1) l";

/// The held names in a range. `$1` from, `$2` after, `$3` below, `$4` how many. None of them is null: each has to be a bound of the index
/// scan, also in a plan that the server makes without knowing them.
const LIST: &str = "
SELECT true, l.name, l.holder, l.value, true,
       (extract(epoch FROM l.expires_at - l.now) * 1000000)::bigint,
       (extract(epoch FROM l.now - l.granted_at) * 1000000)::bigint,
       (extract(epoch FROM l.now - l.renewed_at) * 1000000)::bigint
  FROM (SELECT *, clock_timestamp() AS now FROM {s}.lease
         WHERE name >= $1 AND name > $2 AND name < $3 AND NOT released AND expires_at > clock_timestamp()
         ORDER BY name LIMIT $4) l
 ORDER BY l.name";

/// First of clean-up's three: from here to the end of the transaction no new row appears.
const LOCK_FLOOR: &str = "SELECT floor FROM {s}.meta FOR UPDATE";

/// Second: looks at the next rows by name and removes the idle ones. `$1` after which name, `$2` how many to look at, `$3` retention in
/// ms. A row that somebody has locked is in use, so it is left alone.
const SWEEP: &str = "
WITH page AS MATERIALIZED (
    SELECT name FROM {s}.lease WHERE name > $1 ORDER BY name LIMIT $2
), idle AS MATERIALIZED (
    SELECT l.name FROM {s}.lease l WHERE l.name IN (SELECT name FROM page) AND {idle} FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {s}.lease l USING idle WHERE l.name = idle.name AND {idle} RETURNING l.value
)
SELECT (SELECT count(*) FROM gone), (SELECT max(value) FROM gone), (SELECT count(*) FROM page), (SELECT max(name) FROM page)";

/// Third: the floor stays at or above every value that was forgotten. `$1` the highest of them.
const RAISE_FLOOR: &str = "UPDATE {s}.meta SET floor = greatest(floor, $1)";

/// The native fence for the caller's transaction. `$1` name, `$2` owner, `$3` limit in ms of an idle transaction, `$4` fencing value.
///
/// One statement, so that there is no moment in which the check has failed and the transaction could still be committed.
const FENCE_CHECK: &str = "
WITH held AS MATERIALIZED (
    SELECT l.expires_at FROM {s}.lease l WHERE {own_value} FOR KEY SHARE
)
SELECT CASE WHEN EXISTS (SELECT FROM held WHERE held.expires_at > clock_timestamp()) THEN {limit_idle} ELSE {s}.refuse_fence() END";

/// A write to the fenced register. `$1` name, `$2` owner, `$3` value, `$4` fencing value.
const FENCED_WRITE: &str = "
WITH held AS MATERIALIZED (
    SELECT l.expires_at FROM {s}.lease l WHERE {own_value} FOR KEY SHARE
), written AS (
    INSERT INTO {s}.register (name, value) SELECT $1, $3 FROM held WHERE held.expires_at > clock_timestamp()
    ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value
    RETURNING true
)
SELECT EXISTS (SELECT FROM written)";

const FENCED_READ: &str = "SELECT value FROM {s}.register WHERE name = $1";

/// Parts that several statements share.
const PARTS: &[(&str, &str)] = &[
    (
        "{look}",
        "SELECT l.owner, l.value, l.released, l.forced, l.expires_at, l.expires_at > clock_timestamp() AS in_time FROM {s}.lease l WHERE l.name = $1",
    ),
    // The value is a second line: an owner token is of one grant only.
    (
        "{own_value}",
        "l.name = $1 AND l.owner = $2 AND l.value = $4 AND NOT l.released AND l.expires_at > clock_timestamp()",
    ),
    ("{own}", "l.name = $1 AND l.owner = $2 AND NOT l.released AND l.expires_at > clock_timestamp()"),
    ("{too_late}", "{s}.refuse_fence() IS NULL"),
    (
        "{over}",
        "l.name = $1 AND EXISTS (SELECT FROM seen WHERE NOT seen.live) AND (l.released OR l.expires_at <= clock_timestamp()) \
         AND l.owner <> $2 AND NOT l.spent ? $2",
    ),
    ("{now_us}", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"),
    (
        "{pruned}",
        "CASE WHEN l.spent = '{}' THEN l.spent ELSE (SELECT coalesce(jsonb_object_agg(s.key, s.value), '{}') \
         FROM jsonb_each(l.spent) s WHERE s.value::bigint > {now_us}) END",
    ),
    (
        "{idle}",
        "(l.expires_at < clock_timestamp() - $3 * interval '1 millisecond' AND NOT EXISTS \
         (SELECT FROM jsonb_each(l.spent) s WHERE s.value::bigint > {now_us}))",
    ),
    (
        "{limit_idle}",
        "(SELECT set_config('idle_in_transaction_session_timeout', \
         (CASE WHEN c.ms > 0 THEN least(c.ms, $3) ELSE $3 END)::text, true) FROM (SELECT (extract(epoch FROM \
         current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint AS ms) c)",
    ),
    (
        "{durable}",
        "CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') \
         THEN set_config('synchronous_commit', 'on', true) END",
    ),
];

macro_rules! statements {
    ($($field:ident = $text:expr,)+) => {
        /// The text of every statement, for one namespace.
        #[derive(Clone, Debug)]
        pub(crate) struct Statements { $(pub(crate) $field: SqlStr,)+ }

        impl Statements {
            /// The statements of a namespace. Each edit `(from, to)` is made in all of them; that is for tests that break one on
            /// purpose.
            ///
            /// # Errors
            /// [`LeaseError::InvalidConfig`] when the text of an edit occurs nowhere.
            pub(crate) fn new(namespace: &Namespace, edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
                let mut writer = Writer { schema: keys::quoted_schema(namespace), edits, used: vec![false; edits.len()] };
                let statements = Self { $($field: writer.text($text),)+ };
                writer.finish()?;
                Ok(statements)
            }
        }
    };
}

statements! {
    acquire = ACQUIRE,
    acquire_in_turn = &ACQUIRE.replace("FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
    renew = RENEW,
    release = RELEASE,
    end = END,
    force = FORCE,
    begin_history = BEGIN_HISTORY,
    inspect = INSPECT,
    list = LIST,
    lock_floor = LOCK_FLOOR,
    sweep = SWEEP,
    raise_floor = RAISE_FLOOR,
    fence_check = FENCE_CHECK,
    fenced_write = FENCED_WRITE,
    fenced_read = FENCED_READ,
    adopt = crate::guard::ADOPT,
    admit = crate::guard::ADMIT,
    guarded_write = crate::guard::WRITE,
    guarded_read = crate::guard::READ,
    create_lease_tables = set_up::LEASE_TABLES,
    create_guard_tables = set_up::GUARD_TABLES,
}

struct Writer<'a> {
    schema: String,
    edits: &'a [(&'a str, &'a str)],
    used: Vec<bool>,
}

impl Writer<'_> {
    fn text(&mut self, template: &str) -> SqlStr {
        let mut text = template.to_owned();
        for (name, part) in PARTS {
            text = text.replace(name, part);
        }
        // A part may use another one.
        for (name, part) in PARTS {
            text = text.replace(name, part);
        }
        for ((from, to), used) in self.edits.iter().zip(&mut self.used) {
            if text.contains(from) {
                *used = true;
                text = text.replace(from, to);
            }
        }
        // Safe: the only thing that is put in is the schema, which consists of a-z, 0-9 and _ by its type.
        let text: std::sync::Arc<str> = text.replace("{s}", &self.schema).into();
        AssertSqlSafe(text).into_sql_str()
    }

    fn finish(&self) -> Result<(), LeaseError> {
        match self.edits.iter().zip(&self.used).find(|(_, used)| !**used) {
            None => Ok(()),
            Some(((from, _), _)) => Err(LeaseError::InvalidConfig {
                reason: format!("no statement contains the text of this edit: {from}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled_and_a_stale_edit_is_loud() {
        let namespace = Namespace::parse("billing").unwrap();
        let statements = Statements::new(&namespace, &[]).unwrap();
        let text = format!("{statements:?}");
        for (left, _) in PARTS.iter().chain(&[("{s}", "")]) {
            assert!(!text.contains(left), "{left}");
        }
        assert!(statements.acquire.as_str().contains(" FOR UPDATE SKIP LOCKED\n), again"));
        assert!(statements.acquire_in_turn.as_str().contains(" FOR UPDATE\n), again"));
        assert!(statements.acquire.as_str().contains("\"billing\".lease"));
        assert!(Statements::new(&namespace, &[("no such text", "")]).is_err());
        let edited = Statements::new(&namespace, &[("FOR UPDATE OF l SKIP LOCKED", "")]).unwrap();
        assert!(!edited.acquire.as_str().contains("OF l SKIP LOCKED"));
    }
}
