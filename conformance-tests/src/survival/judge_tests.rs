//! Each guarantee survives, breaks, and is not judged where nothing was seen.

use super::*;
use lease_core::{Authority, GrantId};

fn token(authority: &str, value: u64) -> FencingToken {
    FencingToken::new(Authority::parse(authority).unwrap(), value, GrantId::random().unwrap()).unwrap()
}

fn told(name: &str, authority: &str, value: u64) -> Told {
    (name.to_owned(), token(authority, value))
}

fn contest(spare_ms: Option<u64>, held_after: u32) -> Contest {
    let won = spare_ms.map(|ms| Won { token: token("a", 9), spare: Duration::from_millis(ms), waited: Duration::ZERO });
    Contest { won, tries: 5, sent_in_time: 3, held_after, last_error: None }
}

#[test]
fn exclusion_is_judged_only_when_b_was_heard() {
    let outcome = |contest, outlasts| exclusion(&contest, outlasts).map(|finding| finding.outcome);
    assert_eq!(outcome(contest(Some(1), 0), false), Ok(Outcome::Breaks));
    assert_eq!(outcome(contest(Some(0), 2), false), Ok(Outcome::Survives));
    assert_eq!(outcome(contest(None, 2), false), Ok(Outcome::Survives));
    assert!(outcome(contest(Some(0), 0), false).is_err(), "nobody was told anything");
    assert_eq!(outcome(contest(Some(0), 0), true), Ok(Outcome::Survives), "it asked in time, and that is all it can");
    assert!(outcome(Contest { sent_in_time: 0, ..contest(Some(0), 0) }, true).is_err());
}

#[test]
fn granting_needs_a_grant() {
    assert_eq!(granting(&contest(Some(0), 1), Duration::from_secs(1)).outcome, Outcome::Survives);
    assert_eq!(granting(&contest(None, 1), Duration::from_secs(1)).outcome, Outcome::Breaks);
}

#[test]
fn a_lease_is_kept_by_a_renewal_only() {
    let outcome = |seen: Kept, outlasts| kept(&seen, outlasts).map(|finding| finding.outcome);
    assert_eq!(outcome(Kept::Renewed { after: Duration::ZERO }, false), Ok(Outcome::Survives));
    assert_eq!(outcome(Kept::Lost(LossReason::Gone), false), Ok(Outcome::Breaks));
    assert_eq!(outcome(Kept::Unanswered(String::new()), false), Ok(Outcome::Breaks));
    assert_eq!(outcome(Kept::TooLate, true), Ok(Outcome::Breaks));
    assert!(outcome(Kept::TooLate, false).is_err());
}

#[test]
fn a_value_goes_back_or_comes_again_only_in_its_authority_and_for_its_resource() {
    let before = [told("r", "a", 5), told("s", "a", 50)];
    let outcome = |after: &[Told]| order(&before, after).outcome;
    assert_eq!(outcome(&[told("r", "a", 6), told("s", "a", 51)]), Outcome::Survives);
    assert_eq!(outcome(&[told("r", "a", 5)]), Outcome::Breaks, "it came again");
    assert_eq!(outcome(&[told("r", "b", 1), told("s", "a", 49)]), Outcome::Breaks, "worse than a new authority");
    assert_eq!(outcome(&[told("r", "b", 1)]), Outcome::Noticed);
    assert_eq!(outcome(&[]), Outcome::NotTried);
}

#[test]
fn a_fence_holds_when_b_wrote_and_the_stale_write_was_refused() {
    let stale = Answer::Refused(Refusal::Stale { presented: 1, mark: 2 });
    let unknown =
        Answer::Refused(Refusal::UnknownAuthority { presented: Authority::parse("b").unwrap(), trusted: None });
    let outcome = |b_first: &Answer, b_adopted: Option<Answer>, a_stale: &Answer, end: &str| {
        let (b_first, a_stale, end) = (b_first.clone(), a_stale.clone(), Some(end.to_owned()));
        fence(&Story { b_first, b_adopted, a_stale, end }).outcome
    };
    assert_eq!(outcome(&Answer::Done, None, &stale, BY_B), Outcome::Survives);
    assert_eq!(outcome(&Answer::Done, None, &Answer::Done, BY_STALE_A), Outcome::Breaks);
    assert_eq!(outcome(&Answer::Done, None, &stale, BY_STALE_A), Outcome::Breaks, "it says refused and has written");
    assert_eq!(outcome(&stale, None, &Answer::Done, BY_STALE_A), Outcome::Noticed, "the guard found the counter out");
    assert_eq!(outcome(&unknown, Some(Answer::Done), &unknown, BY_B), Outcome::Noticed);
    assert_eq!(outcome(&unknown, Some(Answer::Done), &Answer::Done, BY_STALE_A), Outcome::Breaks);
    assert_eq!(outcome(&Answer::Failed("disk".into()), None, &stale, BY_B), Outcome::NotTried);
}

#[test]
fn a_control_is_one_in_which_the_stale_write_lands() {
    let outcome = |end: &str| {
        let (b_first, a_stale, end) = (Answer::Done, Answer::Done, Some(end.to_owned()));
        control(&Story { b_first, b_adopted: None, a_stale, end }).outcome
    };
    assert_eq!([outcome(BY_STALE_A), outcome(BY_B)], [Outcome::Breaks, Outcome::Survives]);
}
