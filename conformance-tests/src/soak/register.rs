//! Whether a register of read-modify-write is linearizable and lost nothing. Each write has a tag of its own and names the tag
//! that it was computed from, so the order of writes is read off what is there at the end, and nobody has to search for one.

use lease_core::FencingToken;
use std::collections::{HashMap, HashSet};

/// One operation on the register.
#[derive(Clone, Debug)]
pub(super) struct Op {
    /// Nanoseconds on the boot clock: it took effect, if at all, between these two; at any time from the first one on, when
    /// nobody knows.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) does: OpKind,
}

#[derive(Clone, Debug)]
pub(super) enum OpKind {
    Write {
        tag: String,
        on: Option<String>,
        token: FencingToken,
        outcome: Outcome,
    },
    /// It found this.
    Read(Option<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Admitted,
    Refused,
    Unknown,
}

/// What is wrong with the history of one register, which held `last` after all of it.
pub(super) fn violations(name: &str, ops: &[Op], last: Option<&str>) -> Vec<String> {
    let mut writes: HashMap<&str, &Op> = HashMap::new();
    let mut found = Vec::new();
    for op in ops {
        if let OpKind::Write { tag, .. } = &op.does
            && writes.insert(tag, op).is_some()
        {
            found.push(format!("{name}: two writes have the tag {tag}"));
        }
    }
    if !found.is_empty() {
        return found;
    }
    let chain = match chain(&writes, last) {
        Ok(chain) => chain,
        Err(wrong) => return vec![format!("{name}: {wrong}")],
    };
    let places: HashMap<&str, u64> = chain.iter().zip(1..).map(|(tag, place)| (*tag, place)).collect();
    found.extend(lost(ops, &places).map(|wrong| format!("{name}: {wrong}")));
    found.extend(tokens_fall(&writes, &chain).map(|wrong| format!("{name}: {wrong}")));
    found.extend(out_of_order(ops, &places).map(|wrong| format!("{name}: {wrong}")));
    found
}

/// The writes that built what is there at the end, the first one first.
fn chain<'a>(writes: &HashMap<&'a str, &'a Op>, last: Option<&'a str>) -> Result<Vec<&'a str>, String> {
    let (mut chain, mut seen) = (Vec::new(), HashSet::new());
    let mut next = last;
    while let Some(tag) = next {
        let op = writes.get(tag).ok_or_else(|| format!("the register holds {tag}, which nobody wrote"))?;
        let OpKind::Write { on, outcome, .. } = &op.does else { break };
        if *outcome == Outcome::Refused {
            return Err(format!("the write {tag} was refused, and is there"));
        }
        if !seen.insert(tag) {
            return Err(format!("the write {tag} was computed from itself"));
        }
        chain.push(tag);
        next = on.as_deref();
    }
    chain.reverse();
    Ok(chain)
}

/// The first write or read that is not on the way to what is there.
fn lost(ops: &[Op], places: &HashMap<&str, u64>) -> Option<String> {
    ops.iter().find_map(|op| match &op.does {
        OpKind::Write { tag, outcome: Outcome::Admitted, .. } if !places.contains_key(tag.as_str()) => {
            Some(format!("lost update: the admitted write {tag} was overwritten by one that had not seen it"))
        }
        OpKind::Read(Some(tag)) if !places.contains_key(tag.as_str()) => {
            Some(format!("lost update: a reader saw {tag}, which was overwritten by a write that had not seen it"))
        }
        _ => None,
    })
}

/// The first write whose token is below that of the write before it.
fn tokens_fall(writes: &HashMap<&str, &Op>, chain: &[&str]) -> Option<String> {
    let token = |tag: &&str| match &writes.get(*tag)?.does {
        OpKind::Write { token, .. } => Some(token),
        OpKind::Read(_) => None,
    };
    chain.iter().zip(chain.iter().skip(1)).find_map(|(before, after)| {
        let (low, high) = (token(after)?, token(before)?);
        (low < high).then(|| format!("the write {after} with {low} landed after {before} with {high}"))
    })
}

/// The first operation that was over before one began that has to come earlier.
fn out_of_order(ops: &[Op], places: &HashMap<&str, u64>) -> Option<String> {
    let mut in_order: Vec<(u64, &Op)> = ops.iter().filter_map(|op| Some((place(op, places)?, op))).collect();
    in_order.sort_by_key(|(place, op)| (*place, op.from));
    let mut latest: Option<&Op> = None;
    let (mut earlier, mut at) = (Vec::new(), 0);
    for (place, op) in in_order {
        if place != at {
            // What stands at one place has no order.
            latest = earlier.drain(..).chain(latest).max_by_key(|op: &&Op| op.from);
            at = place;
        }
        if let Some(latest) = latest.filter(|latest| op.to < latest.from) {
            return Some(format!("not linearizable: {} was over before {} began", text(op), text(latest)));
        }
        earlier.push(op);
    }
    None
}

/// Where an operation stands: each write, and after it all that read it.
fn place(op: &Op, places: &HashMap<&str, u64>) -> Option<u64> {
    match &op.does {
        OpKind::Write { tag, .. } => places.get(tag.as_str()).map(|place| place.saturating_mul(2)),
        OpKind::Read(None) => Some(1),
        OpKind::Read(Some(tag)) => places.get(tag.as_str()).map(|place| place.saturating_mul(2).saturating_add(1)),
    }
}

fn text(op: &Op) -> String {
    let what = match &op.does {
        OpKind::Write { tag, .. } => format!("the write of {tag}"),
        OpKind::Read(None) => "a read of nothing".to_owned(),
        OpKind::Read(Some(tag)) => format!("a read of {tag}"),
    };
    format!("{what} [{}..{} µs]", op.from / 1_000, op.to / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lease_core::{Authority, GrantId};

    fn write(from: u64, to: u64, value: u64, tag: &str, on: &str, outcome: Outcome) -> Op {
        let grant = GrantId::from_hex(&format!("{value:016x}")).unwrap();
        let token = FencingToken::new(Authority::parse("a").unwrap(), value, grant).unwrap();
        let on = (!on.is_empty()).then(|| on.to_owned());
        Op { from, to, does: OpKind::Write { tag: tag.to_owned(), on, token, outcome } }
    }

    fn read(from: u64, to: u64, tag: &str) -> Op {
        Op { from, to, does: OpKind::Read((!tag.is_empty()).then(|| tag.to_owned())) }
    }

    use Outcome::{Admitted, Refused, Unknown};

    /// A history with everything that may happen.
    fn correct() -> Vec<Op> {
        vec![
            read(0, 10, ""),
            write(0, 30, 1, "a", "", Admitted),
            read(5, 40, "a"),
            write(40, 50, 1, "b", "a", Admitted),
            // Nobody knows, and it landed late; it was read all the same.
            write(60, u64::MAX, 2, "c", "b", Unknown),
            read(70, 80, "b"),
            read(75, 90, "c"),
            // Nobody knows, and it never landed.
            write(95, u64::MAX, 2, "lost on its way", "c", Unknown),
            write(100, 110, 3, "d", "c", Admitted),
            write(105, 120, 2, "stale", "c", Refused),
            // Two reads at one place may come in any order.
            read(112, 125, "d"),
            read(111, 113, "d"),
        ]
    }

    #[test]
    fn a_correct_history_passes() {
        assert_eq!(violations("r", &correct(), Some("d")), Vec::<String>::new());
        assert_eq!(violations("r", &[read(0, 1, "")], None), Vec::<String>::new());
    }

    #[test]
    fn each_wrong_history_is_found() {
        let with = |op: Op| correct().into_iter().chain([op]).collect::<Vec<_>>();
        let table = [
            ("which nobody wrote", correct(), Some("x")),
            ("two writes have the tag", with(write(200, 210, 3, "d", "d", Admitted)), Some("d")),
            ("was refused, and is there", with(write(200, 210, 9, "e", "d", Refused)), Some("e")),
            ("computed from itself", with(write(200, 210, 9, "e", "e", Admitted)), Some("e")),
            ("the admitted write e was overwritten", with(write(95, 105, 2, "e", "c", Admitted)), Some("d")),
            ("the admitted write e was overwritten", with(write(200, 210, 9, "e", "d", Admitted)), Some("d")),
            ("a reader saw lost on its way", with(read(96, 99, "lost on its way")), Some("d")),
            ("landed after d", with(write(200, 210, 2, "e", "d", Admitted)), Some("e")),
            ("a read of b", with(read(115, 120, "b")), Some("d")),
            ("a read of nothing", with(read(31, 35, "")), Some("d")),
            ("a read of d", with(read(90, 99, "d")), Some("d")),
        ];
        for (finding, history, last) in table {
            let found = violations("r", &history, last);
            assert_eq!(found.len(), 1, "{finding}: {found:#?}");
            assert!(found.iter().all(|text| text.contains(finding)), "{finding}: {found:#?}");
        }
        let twice = vec![write(40, 50, 1, "a", "", Admitted), write(10, 20, 1, "b", "a", Admitted)];
        let found = violations("r", &twice, Some("b"));
        assert!(found.len() == 1 && found[0].contains("the write of b"), "{found:#?}");
    }
}
