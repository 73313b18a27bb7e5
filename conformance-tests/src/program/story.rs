//! A timeline as lines of text, one for each event: for a terminal, and for who cannot see the picture.

use crate::timeline::{MarkKind, SpanKind, Timeline};

/// One line for each event, in order of time, in columns: when, where, what. Without control characters: labels come from outside.
pub(crate) fn lines(timeline: &Timeline) -> Vec<String> {
    let events = events(timeline);
    let width = |of: fn(&Event) -> &str| events.iter().map(|event| of(event).chars().count()).max().unwrap_or(0);
    let (times, lanes) = (width(|event| &event.time), width(|event| &event.lane));
    let line = |event: &Event| {
        let Event { time, lane, what, .. } = event;
        let what: String = what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{time:>times$} ms  {lane:<lanes$}  {what}").trim_end().to_owned()
    };
    events.iter().map(line).collect()
}

struct Event {
    at_ms: f64,
    time: String,
    lane: String,
    what: String,
}

fn events(timeline: &Timeline) -> Vec<Event> {
    let event = |at_ms: f64, lane: &str, what: String| {
        let lane = lane.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Event { at_ms, time: time(at_ms), lane, what }
    };
    let mut events = Vec::new();
    for (from, until) in timeline.two_holders() {
        events.push(event(from, "", format!("!! two holders at once, for {}", length(until - from))));
    }
    for span in &timeline.spans {
        let (begins, ends) = match span.kind {
            SpanKind::Held => ("begins", "ends"),
            SpanKind::Stopped => ("begins", "ends: it goes on"),
            SpanKind::Down => ("begins", "ends: it is back"),
        };
        events.push(event(span.from_ms, &span.lane, format!("[ {} {begins}", span.label)));
        events.push(event(span.until_ms, &span.lane, format!("] {} {ends}", span.label)));
    }
    for mark in &timeline.marks {
        events.push(event(mark.at_ms, &mark.lane, format!("{} {}", sign(mark.kind), mark.label)));
    }
    events.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
    events
}

/// One character for each kind, so that what matters is found at a glance.
fn sign(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Granted => "+",
        MarkKind::Released => "-",
        MarkKind::Lost => "x",
        MarkKind::Sealed => "^",
        MarkKind::Committed => "=",
        MarkKind::Refused => "/",
        MarkKind::StaleCommitted => "!!",
        MarkKind::Fault => "**",
        MarkKind::Note => ".",
    }
}

/// Milliseconds with one decimal place, and a comma for each thousand.
pub(crate) fn time(ms: f64) -> String {
    let text = format!("{:.1}", ms.abs());
    let (whole, rest) = text.split_once('.').unwrap_or((&text, "0"));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && whole.len().saturating_sub(at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if ms < 0.0 { "-" } else { "" };
    format!("{sign}{grouped}.{rest}")
}

/// How long something lasted.
pub(crate) fn length(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.1} ms") } else { format!("{:.2} s", ms / 1_000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Mark, Span};

    #[test]
    fn one_line_for_each_event_with_aligned_times() {
        let span = Span {
            lane: "worker A".into(),
            from_ms: 1.0,
            until_ms: 990.0,
            kind: SpanKind::Held,
            label: "may act".into(),
        };
        let other = Span { lane: "B".into(), from_ms: 900.0, until_ms: 2_000.0, ..span.clone() };
        let mark =
            Mark { lane: "B".into(), at_ms: 1_500.25, kind: MarkKind::StaleCommitted, label: "x\u{1b}[31m\ny".into() };
        let timeline = Timeline { spans: vec![span, other], marks: vec![mark], ..Timeline::default() };
        assert_eq!(
            lines(&timeline),
            [
                "    1.0 ms  worker A  [ may act begins",
                "  900.0 ms            !! two holders at once, for 90.0 ms",
                "  900.0 ms  B         [ may act begins",
                "  990.0 ms  worker A  ] may act ends",
                "1,500.2 ms  B         !! x [31m y",
                "2,000.0 ms  B         ] may act ends",
            ]
        );
    }

    #[test]
    fn times_are_grouped() {
        assert_eq!([0.0, 999.94, 1_234_567.0, -12.3].map(time), ["0.0", "999.9", "1,234,567.0", "-12.3"]);
        assert_eq!([12.34, 12_345.0].map(length), ["12.3 ms", "12.35 s"]);
    }
}
