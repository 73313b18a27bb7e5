//! What the contract says about a schedule of transactions, judged from the answers and from what the store holds at the end.

use crate::explorer::{Actor, Event};
use lease_core::{Authority, FencingToken, GrantId, Refusal};
use std::collections::BTreeMap;

/// A step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    /// The caller's own read, which at the higher isolation levels fixes what the transaction sees.
    Read,
    /// Begin, with the own read.
    BeginRead,
    /// Begin, with the admission as the first statement.
    BeginAdmit,
    Admit,
    /// The caller's own mutation.
    Write,
    /// Admission and mutation once more in the same transaction: the holder's second write.
    Again,
    Commit,
    RollBack,
    /// What a broken guard does after the commit; nothing for an honest one.
    After,
    /// Seals in one call.
    Seal,
    /// Trusts [`SECOND`] instead of [`FIRST`].
    Adopt,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Refused(Refusal),
    /// The store gave the transaction up, definitely without effect, and advises to run it again.
    TryAgain,
    /// The transaction had failed before.
    Over,
    /// None of these: always a finding.
    Wrong(String),
}

/// The authorities of these tests.
pub(crate) const FIRST: &str = "redis:1:0";
pub(crate) const SECOND: &str = "etcd:2:0";

pub(crate) fn token(of: &str, value: u64, grant: u64) -> FencingToken {
    FencingToken::new(Authority::parse(of).unwrap(), value, grant_id(grant)).unwrap()
}

pub(crate) fn grant_id(grant: u64) -> GrantId {
    GrantId::from_hex(&format!("{grant:016x}")).unwrap()
}

/// A rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A token was admitted that is below the committed mark, of another grant with its value, or of an authority that is not trusted.
    AdmittedAgainstMark,
    /// A token was refused that is admissible, or for another reason than the true one.
    RefusedWrongly,
    /// A write is there whose transaction was refused or failed.
    LandedThoughRefused,
    /// A write that was committed is not there.
    LostCommit,
    /// A write landed though a newer grant's mark was committed, or its authority was not trusted any more.
    StaleLanded,
    /// A write of another grant landed between a transaction's admission and its commit.
    Overtaken,
    /// The mark is not that of the last transaction that landed.
    WrongMark,
    /// The content is not that of the last transaction that landed.
    WrongContent,
    /// The transaction failed where nothing else was in its way.
    FailedAlone,
    /// An answer that no rule allows.
    WrongAnswer,
}

/// What the store held at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Whose writes are there: actor and how many.
    pub(crate) landed: BTreeMap<usize, u64>,
    /// Who wrote the one row last that all of them write, or [`NOBODY`]; `None` where they write rows of their own.
    pub(crate) content: Option<usize>,
    /// The mark under [`FIRST`].
    pub(crate) mark: Option<(u64, GrantId)>,
}

pub(crate) const NOBODY: usize = 99;

/// How a store was set up for a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) tokens: Vec<FencingToken>,
    /// The mark that is there before, under [`FIRST`].
    pub(crate) base: Option<(u64, GrantId)>,
    /// Whether a transaction may fail because another one was committed meanwhile.
    pub(crate) may_fail: bool,
}

/// What happened over many schedules, so that a test can tell that none of it was left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) schedules: u64,
    pub(crate) waited: u64,
    pub(crate) refused: u64,
    pub(crate) try_again: u64,
    pub(crate) committed: u64,
    pub(crate) rolled_back: u64,
    /// By rule: how often, and the first schedule that shows it.
    pub(crate) broken: BTreeMap<Rule, (u64, String)>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.waited += other.waited;
        self.refused += other.refused;
        self.try_again += other.try_again;
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        for (rule, (count, first)) in other.broken {
            self.broken.entry(rule).or_insert((0, first)).0 += count;
        }
    }

    fn finding(&mut self, rule: Rule, what: impl FnOnce() -> String) {
        self.broken.entry(rule).or_insert_with(|| (0, what())).0 += 1;
    }
}

/// The reference: the committed state as the answers tell it, and each open transaction.
#[derive(Debug)]
struct Reference {
    trusted: String,
    marks: BTreeMap<String, (u64, GrantId)>,
    transactions: Vec<Transaction>,
}

#[derive(Clone, Debug, Default)]
struct Transaction {
    admitted_at: Option<usize>,
    failed: bool,
    writes: u64,
    landed: Option<usize>,
}

/// Judges one schedule. Two that waited for the same answer may have had their turns in either order, so either will do.
pub(crate) fn judge<A: Actor<Step = Step, Answer = Answer>>(
    ground: &Ground,
    mut events: Vec<Event<A>>,
    found: &Found,
    tally: &mut Tally,
) {
    let mut judged = judge_in_order(ground, &events, found);
    for place in 1..events.len() {
        let unordered = events[place - 1..=place].iter().all(|event| event.waited && event.turn == events[place].turn);
        if unordered && !judged.broken.is_empty() {
            events.swap(place - 1, place);
            let swapped = judge_in_order(ground, &events, found);
            if swapped.broken.is_empty() {
                judged = swapped;
            } else {
                events.swap(place - 1, place);
            }
        }
    }
    tally.add(judged);
}

fn judge_in_order<A: Actor<Step = Step, Answer = Answer>>(
    ground: &Ground,
    events: &[Event<A>],
    found: &Found,
) -> Tally {
    let mut tally = Tally { schedules: 1, ..Tally::default() };
    let mut reference = Reference {
        trusted: FIRST.into(),
        marks: ground.base.map(|mark| (FIRST.into(), mark)).into_iter().collect(),
        transactions: vec![Transaction::default(); ground.tokens.len()],
    };
    tally.waited = u64::from(events.iter().any(|event| event.waited));
    let shown = || {
        let steps = events.iter().map(|e| format!("{}:{:?}={:?}", e.actor, e.step, e.answer));
        format!("{:?}, base {:?}, {} -> {found:?}", ground.tokens, ground.base, steps.collect::<Vec<_>>().join(" "))
    };
    for (place, event) in events.iter().enumerate() {
        for rule in reference.take(ground, place, event, events, &mut tally) {
            tally.finding(rule, shown);
        }
    }
    for rule in reference.compare(found) {
        tally.finding(rule, shown);
    }
    tally
}

impl Reference {
    fn verdict(&self, token: &FencingToken) -> Result<(), Refusal> {
        let trusted = Authority::parse(&self.trusted).unwrap();
        Refusal::judge(Some(&trusted), self.marks.get(&self.trusted).copied(), token)
    }

    fn take<A: Actor<Step = Step, Answer = Answer>>(
        &mut self,
        ground: &Ground,
        place: usize,
        event: &Event<A>,
        events: &[Event<A>],
        tally: &mut Tally,
    ) -> Vec<Rule> {
        let mut broken = Vec::new();
        let admits = matches!(event.step, Step::Admit | Step::BeginAdmit | Step::Again | Step::Seal);
        let writes = matches!(event.step, Step::Write | Step::Again);
        match &event.answer {
            Answer::Wrong(_) => broken.push(Rule::WrongAnswer),
            Answer::TryAgain => {
                tally.try_again += 1;
                let begun = events.iter().find(|e| e.actor == event.actor).map_or(place, |e| e.sent);
                let commits = [Step::Commit, Step::Seal, Step::Adopt];
                let overtaken = events[begun..place]
                    .iter()
                    .any(|e| e.actor != event.actor && commits.contains(&e.step) && e.answer == Answer::Done);
                if !(ground.may_fail && overtaken) {
                    broken.push(Rule::FailedAlone);
                }
                self.transactions[event.actor].failed = true;
            }
            Answer::Over => {
                if !self.transactions[event.actor].failed {
                    broken.push(Rule::FailedAlone);
                }
            }
            Answer::Refused(refusal) => {
                tally.refused += 1;
                let verdict = self.verdict(&ground.tokens[event.actor]);
                // With an older snapshot the new authority is not seen yet. That is the safe side: nothing lands.
                let begun = events.iter().find(|e| e.actor == event.actor).map_or(place, |e| e.sent);
                let adopted = events[begun..place].iter().any(|e| e.step == Step::Adopt && e.answer == Answer::Done);
                let of_snapshot = ground.may_fail && adopted && matches!(refusal, Refusal::UnknownAuthority { .. });
                if !admits || (verdict != Err(refusal.clone()) && !of_snapshot) {
                    broken.push(Rule::RefusedWrongly);
                }
                self.transactions[event.actor].failed = true;
            }
            Answer::Done => {
                if admits {
                    if self.verdict(&ground.tokens[event.actor]).is_err() {
                        broken.push(Rule::AdmittedAgainstMark);
                    }
                    self.transactions[event.actor].admitted_at.get_or_insert(place);
                }
                if writes {
                    self.transactions[event.actor].writes += 1;
                }
                match event.step {
                    Step::Commit | Step::Seal => broken.extend(self.commit(ground, place, event.actor, tally)),
                    Step::RollBack => {
                        tally.rolled_back += 1;
                        self.transactions[event.actor].failed = true;
                    }
                    // Whoever was admitted before has to be through.
                    Step::Adopt => self.trusted = SECOND.into(),
                    _ => {}
                }
            }
        }
        broken
    }

    fn commit(&mut self, ground: &Ground, place: usize, actor: usize, tally: &mut Tally) -> Vec<Rule> {
        // A commit that a failed transaction is answered with is a rollback; whether it was one shows in what is found.
        if self.transactions[actor].failed {
            return Vec::new();
        }
        tally.committed += 1;
        let mut broken = Vec::new();
        let token = &ground.tokens[actor];
        let admitted_at = self.transactions[actor].admitted_at.unwrap_or(place);
        let overtaken = |other: &Transaction| other.landed.is_some_and(|at| at > admitted_at);
        let same = |other: usize| ground.tokens[other] == *token;
        if self.verdict(token).is_err() {
            broken.push(Rule::StaleLanded);
        }
        // The mark is the lock: nobody else may land between an admission and its commit.
        if self.transactions.iter().enumerate().any(|(i, other)| i != actor && !same(i) && overtaken(other)) {
            broken.push(Rule::Overtaken);
        }
        self.transactions[actor].landed = Some(place);
        self.marks.insert(token.authority().as_str().into(), (token.value(), token.grant()));
        broken
    }

    fn compare(&self, found: &Found) -> Vec<Rule> {
        let mut broken = Vec::new();
        for (actor, transaction) in self.transactions.iter().enumerate() {
            let there = found.landed.get(&actor).copied().unwrap_or(0);
            let wanted = if transaction.landed.is_some() { transaction.writes } else { 0 };
            match there.cmp(&wanted) {
                std::cmp::Ordering::Less => broken.push(Rule::LostCommit),
                std::cmp::Ordering::Greater => broken.push(Rule::LandedThoughRefused),
                std::cmp::Ordering::Equal => {}
            }
        }
        if found.mark != self.marks.get(FIRST).copied() {
            broken.push(Rule::WrongMark);
        }
        // Whoever only sealed leaves the content as it was.
        let wrote = (0..self.transactions.len()).filter(|i| self.transactions[*i].writes > 0);
        let last =
            wrote.filter(|i| self.transactions[*i].landed.is_some()).max_by_key(|i| self.transactions[*i].landed);
        if found.content.is_some() && found.content != Some(last.unwrap_or(NOBODY)) {
            broken.push(Rule::WrongContent);
        }
        broken
    }
}

impl Tally {
    /// Nothing was broken, and every kind of outcome did occur: a test without it would prove nothing.
    pub(crate) fn assert_honest(&self) {
        assert!(self.broken.is_empty(), "{self}");
        let occurred = [self.schedules, self.waited, self.refused, self.committed, self.rolled_back];
        assert!(occurred.iter().all(|count| *count > 0), "{self}");
    }

    /// One of these rules was found broken.
    pub(crate) fn assert_found(&self, rules: &[Rule]) {
        assert!(rules.iter().any(|rule| self.broken.contains_key(rule)), "none of {rules:?} was found: {self}");
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { schedules, waited, refused, try_again, committed, rolled_back, broken } = self;
        write!(f, "{schedules} schedules, {waited} with a wait; {refused} refusals, {try_again} to try again, ")?;
        write!(f, "{committed} commits, {rolled_back} roll-backs")?;
        for (rule, (count, first)) in broken {
            write!(f, "\n  {rule:?} {count} times, first: {first}")?;
        }
        Ok(())
    }
}
