//! The picture of one pause at one destination: drawn from the instants that the workers themselves took while it ran.

use super::seen::{AtRegister, AtTarget, Seen};
use super::target::Mode;
use crate::timeline::{Mark, MarkKind, Span, SpanKind, Timeline};
use crate::worker::{Answer, Reply, Told};
use lease_core::FencingToken;
use std::time::Duration;

/// The lanes of the two workers.
const WORKERS: [&str; 2] = ["worker A", "worker B"];

/// What a step was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The lease.
    Lease,
    /// The destination with this key.
    At(String),
    /// The register behind the native fence.
    Register,
    /// The same register, written without the fence.
    Unchecked,
}

/// Something that a worker did, and when.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// 0 is A, 1 is B.
    pub(super) who: usize,
    pub(super) about: About,
    pub(super) reply: Reply,
}

/// The picture of the pause at one destination.
pub(super) fn at_target(seen: &Seen, at: &AtTarget) -> Timeline {
    let landed = at.after.value.as_ref() == Some(&at.stale);
    let check = if at.target.mode == Mode::Plain { "no check" } else { "guarded" };
    let destination = match at.target.destination.as_str() {
        crate::Cell::SAME_STORE => "own store",
        other => other,
    };
    let lane = format!("{destination} ({check})");
    let about = About::At(at.target.key.clone());
    Scene { seen, lane, about: &about, landed }.draw()
}

/// The picture of the pause at the register behind the native fence, or beside it.
pub(super) fn at_register(seen: &Seen, at: &AtRegister, unchecked: bool) -> Timeline {
    let (about, content) = match &at.unchecked {
        Some((_, content)) if unchecked => (About::Unchecked, content),
        _ => (About::Register, &at.after),
    };
    let landed = content.as_ref() == Some(&at.stale);
    let check = if unchecked { "no check" } else { "native fence" };
    Scene { seen, lane: format!("own store ({check})"), about: &about, landed }.draw()
}

struct Scene<'a> {
    seen: &'a Seen,
    lane: String,
    about: &'a About,
    /// What the store itself held after A's write.
    landed: bool,
}

impl Scene<'_> {
    fn draw(&self) -> Timeline {
        let became = if self.landed { "the stale write lands" } else { "the stale write is refused" };
        let mut timeline = Timeline {
            title: format!("{} lease, {}: {became}", self.seen.backend, self.lane),
            lanes: WORKERS.iter().map(|lane| (*lane).to_owned()).chain([self.lane.clone()]).collect(),
            ..Timeline::default()
        };
        timeline.spans.extend(self.spans());
        for step in &self.seen.steps {
            timeline.marks.extend(self.marks(step));
        }
        timeline.marks.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
        timeline
    }

    /// Milliseconds since A sent its acquire.
    fn at_ms(&self, ns: u64) -> f64 {
        let begin = self.seen.steps.first().map_or(0, |step| step.reply.began_ns);
        let since = Duration::from_nanos(ns.saturating_sub(begin));
        // To a microsecond: more figures would only be noise.
        (since.as_secs_f64() * 1e6).round() / 1e3
    }

    fn spans(&self) -> Vec<Span> {
        let span = |who: usize, (from, until): (u64, u64), kind, label: &str| Span {
            lane: WORKERS[who & 1].to_owned(),
            from_ms: self.at_ms(from),
            until_ms: self.at_ms(until),
            kind,
            label: label.to_owned(),
        };
        let mut spans = Vec::new();
        for who in [0, 1] {
            if let Some(held) = self.held(who) {
                spans.push(span(who, held, SpanKind::Held, "may act"));
            }
        }
        let how = if self.seen.mode == "process" { "stopped by SIGSTOP" } else { "blocked" };
        let pause = u64::try_from(self.seen.pause.as_nanos()).unwrap_or(u64::MAX);
        spans.push(span(0, (self.seen.resumed_ns.saturating_sub(pause), self.seen.resumed_ns), SpanKind::Stopped, how));
        spans
    }

    /// From a worker's grant to its deadline, as its lease last told it, or to its release where that was earlier.
    fn held(&self, who: usize) -> Option<(u64, u64)> {
        let of_lease = || self.seen.steps.iter().filter(|step| step.who == who && step.about == About::Lease);
        let granted = of_lease().find(|step| matches!(step.reply.answer, Answer::Acquired { .. }))?;
        let mut deadlines = of_lease().filter_map(|step| match &step.reply.answer {
            Answer::Touched { past_deadline: false, remaining_ms } => {
                Some(step.reply.ended_ns.saturating_add(remaining_ms.saturating_mul(1_000_000)))
            }
            _ => None,
        });
        let mut released = of_lease().filter_map(|step| match &step.reply.answer {
            Answer::Released { .. } => Some(step.reply.began_ns),
            _ => None,
        });
        let until = match (deadlines.next_back(), released.next_back()) {
            (Some(deadline), Some(released)) => deadline.min(released),
            (one, other) => one.or(other)?,
        };
        Some((granted.reply.ended_ns, until))
    }

    fn marks(&self, step: &Step) -> Vec<Mark> {
        if step.about == About::Lease {
            return self.of_lease(step).into_iter().collect();
        }
        // What A prepared for the fence is also what it writes beside it, and B is there through the fence.
        let is_here = step.about == *self.about || (*self.about == About::Unchecked && step.about == About::Register);
        let is_write_of_a = step.who == 0 && matches!(step.reply.answer, Answer::Wrote { .. });
        if !is_here || (is_write_of_a && step.about != *self.about) {
            return Vec::new();
        }
        self.of_destination(step)
    }

    fn of_lease(&self, step: &Step) -> Option<Mark> {
        let (kind, label) = match &step.reply.answer {
            Answer::Acquired { token, .. } => (MarkKind::Granted, format!("granted{}", with_token(token.as_ref()))),
            Answer::Renewed { .. } => (MarkKind::Note, "renewed".to_owned()),
            Answer::Lost { reason } => (MarkKind::Lost, format!("cannot renew: {reason}")),
            Answer::Released { how } if how == "Released" => (MarkKind::Released, "released".to_owned()),
            _ => return None,
        };
        Some(self.mark(WORKERS[step.who & 1], step.reply.ended_ns, kind, label))
    }

    fn of_destination(&self, step: &Step) -> Vec<Mark> {
        let who = if step.who == 0 { "A" } else { "B" };
        let here = |kind, label: String| self.mark(&self.lane, step.reply.ended_ns, kind, label);
        match &step.reply.answer {
            Answer::Done => vec![here(MarkKind::Sealed, format!("{who} seals"))],
            Answer::Prepared { value } => vec![here(MarkKind::Note, format!("{who} reads, computes {value}"))],
            Answer::Wrote { told, sent_ns, .. } if step.who == 0 => {
                let sent = self.mark(WORKERS[0], *sent_ns, MarkKind::Note, "sends its prepared write".to_owned());
                vec![sent, here(self.stale_kind(told), self.stale_label(told))]
            }
            Answer::Wrote { told: Told::Written, .. } => vec![here(MarkKind::Committed, format!("{who} writes"))],
            Answer::Wrote { told, .. } => vec![here(MarkKind::Refused, format!("{who}'s write: {told}"))],
            _ => Vec::new(),
        }
    }

    fn stale_kind(&self, told: &Told) -> MarkKind {
        match told {
            _ if self.landed => MarkKind::StaleCommitted,
            Told::Written | Told::Failed(_) => MarkKind::Note,
            Told::Refused(_) => MarkKind::Refused,
        }
    }

    fn stale_label(&self, told: &Told) -> String {
        let tokens = match (&self.seen.token_a, &self.seen.token_b) {
            (Some(a), Some(b)) => format!(": token {} is behind {}", a.value(), b.value()),
            _ => String::new(),
        };
        match told {
            _ if self.landed => "A's stale write LANDS".to_owned(),
            Told::Refused(_) => format!("A's stale write is refused{tokens}"),
            other => format!("A's stale write: {other}"),
        }
    }

    fn mark(&self, lane: &str, at_ns: u64, kind: MarkKind, label: String) -> Mark {
        Mark { lane: lane.to_owned(), at_ms: self.at_ms(at_ns), kind, label }
    }
}

fn with_token(token: Option<&FencingToken>) -> String {
    token.map_or_else(String::new, |token| format!(", token {}", token.value()))
}
