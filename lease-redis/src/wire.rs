//! The scripts, one for each operation, and what their answers mean.
//!
//! A lease record is one text under one key: `L1 VALUE INCARNATION OWNER GRANT EXPIRES GRANTED RENEWED STATE HOLDER`, times in microseconds of
//! the server's clock, state `h` (held until `EXPIRES`), `r` (released) or `f` (ended by force). The grant ends by `EXPIRES`; the key itself lives longer, so
//! that the last value and the last owner are remembered. One text means one read and one write, and a write that fails changes nothing.
//!
//! Lua numbers are doubles: all arithmetic here stays below 2^53, and numbers are printed with `%.0f`, since `tostring` would round.

use crate::link::Script;
use lease_core::{Authority, LeaseError};

/// What each script on a lease record begins with. Straight-line code: a function or a table here would cost more than a Redis command.
const LOOK: &str = r"
local raw = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local t = time[1] * 1000000 + time[2]
local head, value, incarnation, owner, expires, granted, renewed, state, holder
if raw then
  head, value, incarnation, owner, expires, granted, renewed, state, holder =
    string.match(raw, '^(L1 (%d+) (%x+) (%x+) %x+ )(%d+) (%d+) (%d+) ([hrf]) (.*)$')
  if not head then return { 'foreign' } end
  expires = tonumber(expires)
end
local live = state == 'h' and t < expires
";

/// What each script that changes a record ends with. The key outlives its grant, and its own value should that be ahead of the clock, by
/// what is to be kept: `ARGV[2]`, in ms.
const SAVE: &str = r"
local last = math.max(tonumber(value), t)
if state == 'h' then last = math.max(last, expires) end
redis.call('SET', KEYS[1], head .. string.format('%.0f', expires) .. ' ' .. granted .. ' ' .. renewed .. ' ' .. state .. ' ' .. holder,
  'PX', string.format('%.0f', math.ceil((last - t) / 1000) + ARGV[2]))
";

/// KEYS lease, incarnation, spent. ARGV owner, keep in ms, grant, TTL in ms, holder, floor, whether replicas are waited for. A grant that has expired and is followed by another one leaves a tombstone,
/// as `FORCE` does: the record, which said that its attempt is over, says that of the newer one from here on, and a request of the older one
/// may still be on its way.
const ACQUIRE: &str = r"
local others = redis.call('MGET', KEYS[2], KEYS[3])
if others[2] then return { 'over' } end
if owner == ARGV[1] then
  if live and ARGV[7] == '1' then redis.call('SET', KEYS[1], raw, 'KEEPTTL') end
  if live then return { 'granted', value, incarnation } end
  return { 'over' }
end
if live then return { 'held', string.format('%.0f', expires - t) } end
incarnation = others[1]
if not incarnation then return { 'no incarnation' } end
if not string.match(incarnation, '^%x+$') then return { 'bad incarnation' } end
local before = math.max(tonumber(value or 0), tonumber(ARGV[6]))
if before >= 9007199254740992 then return { 'exhausted' } end
if state == 'h' then
  local kept = math.max(math.ceil((expires - renewed) / 1000) * 2, 10000)
  redis.call('SET', string.sub(KEYS[3], 1, -#ARGV[1] - 1) .. owner, '1', 'PX', string.format('%.0f', kept))
end
value = string.format('%.0f', math.max(before + 1, t))
granted = string.format('%.0f', t)
head = 'L1 ' .. value .. ' ' .. incarnation .. ' ' .. ARGV[1] .. ' ' .. ARGV[3] .. ' '
expires, renewed, state, holder = t + ARGV[4] * 1000, granted, 'h', ARGV[5]
";

/// How replicas are waited for, after a grant. A repeat that finds its grant writes it once more, so that there is a write to wait for.
const WAIT: &str = "WAIT {replicas} {ms}";

/// What an acquire answers after its write.
const GRANTED: &str = r"
return { 'granted', value, incarnation }
";

/// KEYS incarnation. ARGV candidate. The first one wins.
const INCARNATION: &str = r"
local have = redis.call('GET', KEYS[1])
if have then return { have } end
redis.call('SET', KEYS[1], ARGV[1])
return { ARGV[1] }
";

/// Why the owner `ARGV[1]` does not hold the lease, if it does not.
const LOSS: &str = r"
local lost
if not raw then lost = 'gone'
elseif owner ~= ARGV[1] then lost = 'superseded'
elseif state == 'r' then lost = 'released'
elseif state == 'f' then lost = 'forced'
elseif not live then lost = 'expired' end
";

/// KEYS lease. ARGV owner, keep in ms, TTL in ms, value. The value is a second line: an owner token is of one grant only.
const RENEW: &str = r"
if not lost and value ~= ARGV[4] then lost = 'superseded' end
if lost then return { lost } end
expires = math.max(expires, t + ARGV[3] * 1000)
renewed = string.format('%.0f', t)
";

/// KEYS lease, spent. ARGV owner, keep in ms, tombstone in ms (0 for none).
const RELEASE: &str = r"
if ARGV[3] ~= '0' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[3]) end
if lost then return { lost } end
state = 'r'
";

/// KEYS lease, spent. ARGV owner, keep in ms, tombstone in ms.
const ABANDON: &str = r"
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
if owner ~= ARGV[1] or not live then return { 'done' } end
state = 'r'
";

/// KEYS lease. ARGV value, keep in ms, the tombstone's key without its owner, least tombstone in ms. The owner is known here only, and so is the
/// TTL: a renewal sets the expiry that far ahead, or leaves a later one.
const FORCE: &str = r"
if not live then return { 'not held' } end
if value ~= ARGV[1] then return { 'other', value } end
local spent_ms = math.max(math.ceil((expires - renewed) / 1000) * 2, ARGV[4])
redis.call('SET', ARGV[3] .. owner, '1', 'PX', string.format('%.0f', spent_ms))
state = 'f'
";

const DONE: &str = r"
return { 'done' }
";

/// KEYS lease. Who holds it, without the owner token.
const INSPECT: &str = r"
if not live then return { 'free', value } end
return { 'held', value, string.format('%.0f', expires - t),
  string.format('%.0f', math.max(t - granted, 0)), string.format('%.0f', math.max(t - renewed, 0)), holder }
";

/// What a fenced script begins with. KEYS lease, then the caller's. ARGV owner, value, then the caller's. It takes its own away, so that the
/// caller's part finds its keys and arguments where it expects them.
const FENCE: &str = r"do
  local value, owner, expires, state = string.match(redis.call('GET', KEYS[1]) or '',
    '^L1 (%d+) %x+ (%x+) %x+ (%d+) %d+ %d+ ([hrf]) ')
  local t = redis.call('TIME')
  if owner ~= ARGV[1] or value ~= ARGV[2] or state ~= 'h' or t[1] * 1000000 + t[2] >= tonumber(expires) then
    return redis.error_reply('LEASEHOLD_FENCED this grant has ended')
  end
  table.remove(KEYS, 1)
  for _ = 1, 2 do table.remove(ARGV, 1) end
end
";

/// The caller's part that writes a register.
const PUT: &str = r"
redis.call('SET', KEYS[1], ARGV[1])
return 'done'
";

/// KEYS trusted. ARGV expected (empty for none), new.
const ADOPT: &str = r"
local have = redis.call('GET', KEYS[1]) or ''
if have ~= ARGV[1] then return { 'conflict', have } end
redis.call('SET', KEYS[1], ARGV[2])
return { 'done' }
";

/// What a guarded script begins with. KEYS trusted, marks, then the caller's. ARGV authority, value in 19 digits, grant, then the
/// caller's. Values up to 2^63 - 1 do not fit a double, so they are compared in two parts.
const GUARD: &str = r"do
  local trusted = redis.call('GET', KEYS[1])
  if trusted ~= ARGV[1] then
    return redis.error_reply('LEASEHOLD_GUARD authority ' .. (trusted or ''))
  end
  local mark = redis.call('HGET', KEYS[2], ARGV[1])
  local order = 1
  if mark then
    local value, grant = string.match(mark, '^(%d+) (%x+)$')
    if not value or #value ~= 19 then return redis.error_reply('LEASEHOLD_GUARD foreign') end
    order = string.sub(ARGV[2], 1, 10) - string.sub(value, 1, 10)
    if order == 0 then order = string.sub(ARGV[2], 11) - string.sub(value, 11) end
    if order < 0 then return redis.error_reply('LEASEHOLD_GUARD stale ' .. value) end
    if order == 0 and grant ~= ARGV[3] then return redis.error_reply('LEASEHOLD_GUARD conflict') end
  end
  if order > 0 then redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. ARGV[3]) end
  for _ = 1, 2 do table.remove(KEYS, 1) end
  for _ = 1, 3 do table.remove(ARGV, 1) end
end
";

/// The caller's part that only raises the mark.
const SEAL: &str = r"
return 'done'
";

/// KEYS trusted, marks, register.
const READ: &str = r"
local trusted = redis.call('GET', KEYS[1])
local mark = trusted and redis.call('HGET', KEYS[2], trusted)
local value = redis.call('GET', KEYS[3])
if value then return { 'value', mark or '', value } end
return { 'none', mark or '' }
";

/// The scripts of the lease backend.
#[derive(Debug)]
pub(crate) struct LeaseScripts {
    pub(crate) acquire: Script,
    pub(crate) incarnation: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) abandon: Script,
    pub(crate) force: Script,
    pub(crate) inspect: Script,
    pub(crate) fence: String,
    pub(crate) wait: String,
    pub(crate) fenced_write: Script,
}

impl LeaseScripts {
    pub(crate) fn new(edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let mut edits = Edits::new(edits);
        let mut script = |parts: &[&str]| Script::new(edits.apply(&parts.concat()));
        let scripts = Self {
            acquire: script(&[LOOK, ACQUIRE, SAVE, GRANTED]),
            incarnation: script(&[INCARNATION]),
            renew: script(&[LOOK, LOSS, RENEW, SAVE, DONE]),
            release: script(&[LOOK, LOSS, RELEASE, SAVE, DONE]),
            abandon: script(&[LOOK, ABANDON, SAVE, DONE]),
            force: script(&[LOOK, FORCE, SAVE, DONE]),
            inspect: script(&[LOOK, INSPECT]),
            fenced_write: script(&[FENCE, PUT]),
            fence: edits.apply(FENCE),
            wait: edits.apply(WAIT),
        };
        edits.check().map(|()| scripts)
    }
}

/// The scripts of the guarded destination.
#[derive(Debug)]
pub(crate) struct GuardScripts {
    pub(crate) adopt: Script,
    pub(crate) guard: String,
    pub(crate) seal: Script,
    pub(crate) write: Script,
    pub(crate) read: Script,
}

impl GuardScripts {
    pub(crate) fn new(edits: &[(&str, &str)]) -> Result<Self, LeaseError> {
        let mut edits = Edits::new(edits);
        let mut script = |parts: &[&str]| Script::new(edits.apply(&parts.concat()));
        let scripts = Self {
            adopt: script(&[ADOPT]),
            seal: script(&[GUARD, SEAL]),
            write: script(&[GUARD, PUT]),
            read: script(&[READ]),
            guard: edits.apply(GUARD),
        };
        edits.check().map(|()| scripts)
    }
}

/// Replacements in the text of the scripts, for tests; one that replaces nothing is stale and must not pass unseen.
struct Edits<'a>(Vec<(&'a str, &'a str, bool)>);

impl<'a> Edits<'a> {
    fn new(edits: &[(&'a str, &'a str)]) -> Self {
        Self(edits.iter().map(|(from, to)| (*from, *to, false)).collect())
    }

    fn apply(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to, used) in &mut self.0 {
            if text.contains(&**from) {
                *used = true;
                text = text.replace(&**from, to);
            }
        }
        text
    }

    fn check(self) -> Result<(), LeaseError> {
        match self.0.into_iter().find(|(_, _, used)| !used) {
            None => Ok(()),
            Some((from, ..)) => {
                Err(LeaseError::InvalidConfig { reason: format!("an edit's text occurs in no script: {from}") })
            }
        }
    }
}

/// The answer of the acquire script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Granting {
    Granted { value: u64, incarnation: String },
    Held { remaining_us: u64 },
    Over,
    Foreign,
    NoIncarnation,
    BadIncarnation,
    Exhausted,
}

impl Granting {
    pub(crate) fn decode(texts: &[String]) -> Option<Self> {
        Some(match strs(texts).as_slice() {
            ["granted", value, incarnation] => {
                Self::Granted { value: value.parse().ok()?, incarnation: (*incarnation).to_owned() }
            }
            ["held", remaining] => Self::Held { remaining_us: remaining.parse().ok()? },
            ["over"] => Self::Over,
            ["foreign"] => Self::Foreign,
            ["no incarnation"] => Self::NoIncarnation,
            ["bad incarnation"] => Self::BadIncarnation,
            ["exhausted"] => Self::Exhausted,
            _ => return None,
        })
    }
}

/// The answer of the inspect script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Free(Option<u64>),
    Held { value: u64, remaining_us: u64, granted_ago_us: u64, renewed_ago_us: u64, holder: String },
    Foreign,
}

impl Seen {
    pub(crate) fn decode(texts: &[String]) -> Option<Self> {
        Some(match strs(texts).as_slice() {
            ["free"] => Self::Free(None),
            ["free", value] => Self::Free(Some(value.parse().ok()?)),
            ["foreign"] => Self::Foreign,
            ["held", value, remaining, granted, renewed, holder] => Self::Held {
                value: value.parse().ok()?,
                remaining_us: remaining.parse().ok()?,
                granted_ago_us: granted.parse().ok()?,
                renewed_ago_us: renewed.parse().ok()?,
                holder: (*holder).to_owned(),
            },
            _ => return None,
        })
    }
}

fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// An authority that a destination keeps; empty for none.
pub(crate) fn authority(text: &str) -> Result<Option<Authority>, LeaseError> {
    if text.is_empty() {
        return Ok(None);
    }
    Authority::parse(text).map(Some).map_err(|_| LeaseError::NotSetUp {
        reason: "the key of the trusted authority holds something else".into(),
        advice: "choose another namespace, or remove the key".into(),
        source: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_edit_is_an_error() {
        assert!(LeaseScripts::new(&[("no such text", "")]).is_err());
        assert!(GuardScripts::new(&[("order < 0", "false")]).is_ok());
        let edited = LeaseScripts::new(&[("math.max(before + 1, t)", "1")]).unwrap();
        assert!(!edited.acquire.text().contains("before + 1"));
        #[cfg(any(feature = "client-redis", feature = "client-fred"))]
        assert_ne!(edited.acquire.sha(), LeaseScripts::new(&[]).unwrap().acquire.sha());
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
        let texts = |parts: &[&str]| parts.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>();
        assert_eq!(Granting::decode(&texts(&["granted", "x", "aa"])), None);
        assert_eq!(Granting::decode(&[]), None);
        assert_eq!(Seen::decode(&texts(&["held", "1"])), None);
        assert_eq!(Seen::decode(&texts(&["free", "7"])), Some(Seen::Free(Some(7))));
    }
}
