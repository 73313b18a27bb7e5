//! What marks and spans look like: each kind has a form of its own and a colour, so that no picture depends on colours.

use crate::timeline::{MarkKind, SpanKind};

/// Every kind of mark, in the order of the legend.
pub(super) const MARKS: [MarkKind; 9] = [
    MarkKind::Granted,
    MarkKind::Released,
    MarkKind::Lost,
    MarkKind::Sealed,
    MarkKind::Committed,
    MarkKind::Refused,
    MarkKind::StaleCommitted,
    MarkKind::Fault,
    MarkKind::Note,
];

/// Every kind of span, in the order of the legend.
pub(super) const SPANS: [SpanKind; 3] = [SpanKind::Held, SpanKind::Stopped, SpanKind::Down];

/// The class of a mark, for its colour.
pub(super) fn mark_class(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Granted => "granted",
        MarkKind::Released => "released",
        MarkKind::Lost => "lost",
        MarkKind::Sealed => "sealed",
        MarkKind::Committed => "committed",
        MarkKind::Refused => "refused",
        MarkKind::StaleCommitted => "stale",
        MarkKind::Fault => "fault",
        MarkKind::Note => "note",
    }
}

/// The class of a span.
pub(super) fn span_class(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Held => "held",
        SpanKind::Stopped => "stopped",
        SpanKind::Down => "down",
    }
}

/// What a mark's form means.
pub(super) fn mark_words(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Granted => "granted",
        MarkKind::Released => "released",
        MarkKind::Lost => "lost",
        MarkKind::Sealed => "sealed",
        MarkKind::Committed => "holder's write landed",
        MarkKind::Refused => "refused",
        MarkKind::StaleCommitted => "STALE WRITE LANDED",
        MarkKind::Fault => "fault",
        MarkKind::Note => "other",
    }
}

/// What a span means.
pub(super) fn span_words(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Held => "may act as the holder",
        SpanKind::Stopped => "process stopped",
        SpanKind::Down => "server down",
    }
}

/// A mark's form around (`x`, `y`).
pub(super) fn form(kind: MarkKind, x: f64, y: f64) -> String {
    let class = mark_class(kind);
    let path = |of: &[(f64, f64)], end: &str| {
        let points: Vec<String> = of.iter().map(|(dx, dy)| format!("{:.1} {:.1}", x + dx, y + dy)).collect();
        format!("<path class=\"{class}\" d=\"M{}{end}\"/>", points.join("L"))
    };
    let circle = |radius: f64| format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>");
    match kind {
        MarkKind::Granted => circle(6.0),
        MarkKind::Released => circle(5.2),
        MarkKind::Lost => {
            let stroke = |d: f64| path(&[(-5.0, -5.0 * d), (5.0, 5.0 * d)], "");
            stroke(1.0) + &stroke(-1.0)
        }
        MarkKind::Sealed => path(&[(0.0, -7.0), (7.0, 0.0), (0.0, 7.0), (-7.0, 0.0)], "Z"),
        MarkKind::Committed => path(&[(-5.5, -5.5), (5.5, -5.5), (5.5, 5.5), (-5.5, 5.5)], "Z"),
        MarkKind::Refused => circle(6.0) + &path(&[(-4.0, 4.0), (4.0, -4.0)], ""),
        MarkKind::StaleCommitted => path(&star(), "Z"),
        MarkKind::Fault => path(&[(2.5, -9.0), (-5.5, 1.5), (-0.5, 1.5), (-2.5, 9.0), (5.5, -2.5), (0.5, -2.5)], "Z"),
        MarkKind::Note => circle(3.0),
    }
}

/// A star with eight points.
fn star() -> Vec<(f64, f64)> {
    (0_u32..16)
        .map(|n| {
            let radius = if n % 2 == 0 { 9.5 } else { 5.0 };
            let angle = f64::from(n) * std::f64::consts::TAU / 16.0;
            (radius * angle.sin(), -radius * angle.cos())
        })
        .collect()
}
