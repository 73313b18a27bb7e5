//! What happened in one scene, for a picture: who held what for how long, which writes landed, when the fault was.

use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lanes from top to bottom; spans and marks lie on them, at milliseconds from the scene's begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// What the scene is, in a few words.
    pub title: String,
    /// The lanes' names, such as `A`, `B`, `store`, `accounts (guarded)`.
    pub lanes: Vec<String>,
    /// What lasts.
    pub spans: Vec<Span>,
    /// What happens at an instant.
    pub marks: Vec<Mark>,
}

/// Something that lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The lane's name.
    pub lane: String,
    /// Its begin.
    pub from_ms: f64,
    /// Its end.
    pub until_ms: f64,
    /// What it is.
    pub kind: SpanKind,
    /// A few words for a reader.
    pub label: String,
}

/// What lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A worker may act as the holder: from its grant to its deadline, its release or its loss.
    Held,
    /// A process is stopped.
    Stopped,
    /// A server is down, cut off, or answers nothing.
    Down,
}

/// Something at an instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The lane's name.
    pub lane: String,
    /// When.
    pub at_ms: f64,
    /// What it is.
    pub kind: MarkKind,
    /// A few words for a reader.
    pub label: String,
}

/// What happens at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A lease was granted.
    Granted,
    /// A lease was found to be lost, or refused.
    Lost,
    /// A lease was released.
    Released,
    /// A destination's mark was raised without a write.
    Sealed,
    /// The holder's write landed.
    Committed,
    /// A stale write landed: what fencing is there to prevent.
    StaleCommitted,
    /// A write was refused.
    Refused,
    /// The fault: a kill, a power cut, a promotion.
    Fault,
    /// Anything else worth seeing.
    Note,
}

/// Writes a timeline while a scene runs. Shared by reference.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    timeline: Mutex<Timeline>,
}

impl Recorder {
    /// Begins now.
    #[must_use]
    pub fn begin(title: impl Into<String>, lanes: &[&str]) -> Self {
        let lanes = lanes.iter().map(|lane| (*lane).to_owned()).collect();
        let timeline = Timeline { title: title.into(), lanes, ..Timeline::default() };
        Self { begun: Instant::now(), timeline: Mutex::new(timeline) }
    }

    /// Milliseconds since the begin.
    #[must_use]
    pub fn now_ms(&self) -> f64 {
        self.begun.elapsed().as_secs_f64() * 1_000.0
    }

    /// Marks this instant.
    pub fn mark(&self, lane: &str, kind: MarkKind, label: impl Into<String>) {
        let mark = Mark { lane: lane.to_owned(), at_ms: self.now_ms(), kind, label: label.into() };
        self.with(|timeline| timeline.marks.push(mark));
    }

    /// Adds a span from `from_ms`, as [`now_ms`](Self::now_ms) counts, to this instant.
    pub fn span_since(&self, lane: &str, from_ms: f64, kind: SpanKind, label: impl Into<String>) {
        let until_ms = self.now_ms();
        self.push_span(Span { lane: lane.to_owned(), from_ms, until_ms, kind, label: label.into() });
    }

    /// Adds a span from this instant that lasts `length`, such as a grant until its deadline.
    pub fn span_for(&self, lane: &str, length: Duration, kind: SpanKind, label: impl Into<String>) {
        let from_ms = self.now_ms();
        let until_ms = from_ms + length.as_secs_f64() * 1_000.0;
        self.push_span(Span { lane: lane.to_owned(), from_ms, until_ms, kind, label: label.into() });
    }

    /// Adds a span.
    pub fn push_span(&self, span: Span) {
        self.with(|timeline| timeline.spans.push(span));
    }

    /// The timeline so far.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn with(&self, change: impl FnOnce(&mut Timeline)) {
        change(&mut self.timeline.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Timeline {
    /// From when until when two lanes had a [`Held`](SpanKind::Held) span at once, which a lease is there to prevent: in order, those that
    /// touch as one.
    #[must_use]
    pub fn two_holders(&self) -> Vec<(f64, f64)> {
        let held: Vec<&Span> = self.spans.iter().filter(|span| span.kind == SpanKind::Held).collect();
        let mut found: Vec<(f64, f64)> = Vec::new();
        for (at, one) in held.iter().enumerate() {
            for other in held.iter().skip(at).filter(|other| other.lane != one.lane) {
                let (from, until) = (one.from_ms.max(other.from_ms), one.until_ms.min(other.until_ms));
                if until > from {
                    found.push((from, until));
                }
            }
        }
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut joined: Vec<(f64, f64)> = Vec::new();
        for (from, until) in found {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(until),
                _ => joined.push((from, until)),
            }
        }
        joined
    }

    /// The lanes: those that are named, then any others that something lies on.
    #[must_use]
    pub fn all_lanes(&self) -> Vec<&str> {
        let mut lanes: Vec<&str> = Vec::new();
        let used = self.spans.iter().map(|span| &span.lane).chain(self.marks.iter().map(|mark| &mark.lane));
        for lane in self.lanes.iter().chain(used) {
            if !lanes.contains(&lane.as_str()) {
                lanes.push(lane);
            }
        }
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lane: &str, from_ms: f64, until_ms: f64) -> Span {
        Span { lane: lane.to_owned(), from_ms, until_ms, kind: SpanKind::Held, label: String::new() }
    }

    fn with(spans: Vec<Span>) -> Timeline {
        Timeline { lanes: vec!["A".to_owned()], spans, ..Timeline::default() }
    }

    #[test]
    fn two_holders_are_two_lanes_at_once() {
        assert_eq!(with(vec![held("A", 0.0, 10.0), held("B", 10.0, 20.0)]).two_holders(), []);
        assert_eq!(with(vec![held("A", 0.0, 10.0), held("A", 5.0, 20.0)]).two_holders(), [], "one that has renewed");
        let stopped = Span { kind: SpanKind::Stopped, ..held("B", 5.0, 20.0) };
        assert_eq!(with(vec![held("A", 0.0, 10.0), stopped]).two_holders(), []);
        let all = vec![held("C", 18.0, 30.0), held("B", 5.0, 20.0), held("A", 0.0, 19.0), held("D", 40.0, 41.0)];
        assert_eq!(with(all).two_holders(), [(5.0, 20.0)]);
    }

    #[test]
    fn a_lane_without_a_name_in_the_list_is_shown_all_the_same() {
        assert_eq!(with(vec![held("A", 0.0, 1.0), held("B", 0.0, 1.0)]).all_lanes(), ["A", "B"]);
    }
}
