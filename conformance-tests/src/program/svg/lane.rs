//! One lane: bars, marks on a line below them, and the labels below that.

use super::labels::{self, Spot, Wish};
use super::scale::Scale;
use super::{MARGIN, NAMES_MOST, number, shapes, text};
use crate::program::markup::{escaped, push};
use crate::program::story;
use crate::timeline::{Mark, MarkKind, Span, SpanKind, Timeline};

const BAR: f64 = 18.0;
const BAR_STEP: f64 = 23.0;
const MARKS: f64 = 24.0;
const LABEL_STEP: f64 = 17.0;
const SIZE: f64 = 12.0;

/// One lane with everything on it.
pub(super) struct Lane<'a> {
    name: &'a str,
    pub(super) top: f64,
    pub(super) height: f64,
    /// Spans with their rows.
    bars: Vec<(usize, &'a Span)>,
    marks: Vec<&'a Mark>,
    /// Of marks, and of spans that are too short for theirs.
    labels: Vec<(Label, Spot)>,
    /// Where its marks are.
    line: f64,
}

struct Label {
    x: f64,
    words: String,
    /// What it was before it was cut.
    whole: String,
    class: &'static str,
}

impl<'a> Lane<'a> {
    pub(super) fn new(
        timeline: &'a Timeline,
        name: &'a str,
        scale: &Scale,
        (left, right): (f64, f64),
        top: f64,
    ) -> Self {
        let mut spans: Vec<&Span> = timeline.spans.iter().filter(|span| span.lane == name).collect();
        spans.sort_by(|one, other| one.from_ms.total_cmp(&other.from_ms));
        let bars = in_rows(spans);
        let mut marks: Vec<&Mark> = timeline.marks.iter().filter(|mark| mark.lane == name).collect();
        marks.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
        let rows = bars.iter().map(|(row, _)| row.saturating_add(1)).max().unwrap_or(0);
        let line = top + 8.0 + BAR_STEP * number(rows) + MARKS / 2.0;

        let mut found: Vec<Label> = Vec::new();
        let most = (right - left) * 0.72;
        for (_, span) in bars.iter().filter(|(_, span)| !span.label.is_empty() && !fits(span, scale)) {
            found.push(Label::new(scale.x(span.from_ms), &span.label, "label", most));
        }
        for mark in marks.iter().filter(|mark| !mark.label.is_empty()) {
            let class = match mark.kind {
                MarkKind::StaleCommitted => "label bad",
                MarkKind::Fault => "label strong",
                _ => "label",
            };
            found.push(Label::new(scale.x(mark.at_ms), &mark.label, class, most));
        }
        let wishes: Vec<Wish> = found.iter().map(Label::wish).collect();
        let labels: Vec<(Label, Spot)> = found.into_iter().zip(labels::place(&wishes, left - 6.0, right)).collect();
        let label_rows = labels.iter().map(|(_, spot)| spot.row.saturating_add(1)).max().unwrap_or(0);
        let marks_room = if marks.is_empty() && labels.is_empty() { 0.0 } else { MARKS };
        let height = 8.0 + BAR_STEP * number(rows) + marks_room + LABEL_STEP * number(label_rows) + 8.0;
        Self { name, top, height: height.max(34.0), bars, marks, labels, line }
    }

    /// The ground of every second lane.
    pub(super) fn shade(&self, width: f64) -> String {
        let (top, height) = (self.top, self.height);
        format!("<path class=\"even\" d=\"M1 {top:.1}H{:.1}V{:.1}H1Z\"/>", width - 1.0, top + height)
    }

    pub(super) fn name(&self) -> String {
        let words = labels::cut(self.name, 13.5, NAMES_MOST);
        let whole = if words == self.name { String::new() } else { format!("<title>{}</title>", escaped(self.name)) };
        format!("<g>{whole}{}</g>", text((MARGIN, self.top + 21.0), "lane", &words))
    }

    pub(super) fn content(&self, scale: &Scale, id: &str) -> String {
        let mut out = String::new();
        for (row, span) in &self.bars {
            out.push_str(&self.span(*row, span, scale, id));
        }
        if let Some((from, until)) = scale.points().first().zip(scale.points().last())
            && !self.marks.is_empty()
        {
            push!(out, "<path class=\"lead\" d=\"M{:.1} {:.1}H{:.1}\"/>", from.1, self.line, until.1);
        }
        for (label, spot) in &self.labels {
            let y = self.line + MARKS / 2.0 + LABEL_STEP * number(spot.row);
            push!(out, "<path class=\"lead\" d=\"M{:.1} {:.1}V{:.1}\"/>", label.x, self.line, y + 2.0);
        }
        for (label, spot) in &self.labels {
            let y = self.line + MARKS / 2.0 + LABEL_STEP * number(spot.row) + 12.0;
            let words = text((spot.from, y), label.class, &label.words);
            let is_cut = label.words != label.whole;
            out.push_str(&if is_cut { titled(&words, &label.whole) } else { words });
        }
        for mark in &self.marks {
            let form = shapes::form(mark.kind, scale.x(mark.at_ms), self.line);
            out.push_str(&titled(&form, &format!("{} ms: {}", story::time(mark.at_ms), mark.label)));
        }
        out
    }

    fn span(&self, row: usize, span: &Span, scale: &Scale, id: &str) -> String {
        let (from, until) = (scale.x(span.from_ms), scale.x(span.until_ms));
        let y = self.top + 8.0 + BAR_STEP * number(row);
        let mut bar = bar(span.kind, (from, y), ((until - from).max(1.5), BAR), id);
        if fits(span, scale) {
            let class = if span.kind == SpanKind::Stopped { "onstopped" } else { "onbar" };
            bar.push_str(&text((from + 6.0, y + 13.0), class, &span.label));
        }
        let (from, until) = (story::time(span.from_ms), story::time(span.until_ms));
        titled(&bar, &format!("{} to {} ms: {}", from, until, span.label))
    }
}

impl Label {
    fn new(x: f64, whole: &str, class: &'static str, most: f64) -> Self {
        Self { x, words: labels::cut(whole, SIZE * weight(class), most), whole: whole.to_owned(), class }
    }

    fn wish(&self) -> Wish {
        Wish { x: self.x, width: labels::width(&self.words, SIZE * weight(self.class)) }
    }
}

/// Bold letters are wider.
fn weight(class: &str) -> f64 {
    if class == "label" { 1.0 } else { 1.1 }
}

fn titled(what: &str, words: &str) -> String {
    format!("<g><title>{}</title>{what}</g>", escaped(words))
}

/// A bar of this kind.
pub(super) fn bar(kind: SpanKind, (x, y): (f64, f64), (width, height): (f64, f64), id: &str) -> String {
    let class = shapes::span_class(kind);
    let fill = if kind == SpanKind::Stopped { format!(" fill=\"url(#{id}-hatch)\"") } else { String::new() };
    format!(
        "<rect class=\"{class}\"{fill} x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"3\"/>"
    )
}

/// Whether a span's label has room on its bar.
fn fits(span: &Span, scale: &Scale) -> bool {
    labels::width(&span.label, SIZE) + 12.0 <= scale.x(span.until_ms) - scale.x(span.from_ms)
}

/// Each span in the first row in which it overlaps no other.
fn in_rows(spans: Vec<&Span>) -> Vec<(usize, &Span)> {
    let mut ends: Vec<f64> = Vec::new();
    let mut rows = Vec::new();
    for span in spans {
        let free = ends.iter().position(|end| *end <= span.from_ms);
        let row = free.unwrap_or(ends.len());
        match ends.get_mut(row) {
            Some(end) => *end = span.until_ms,
            None => ends.push(span.until_ms),
        }
        rows.push((row, span));
    }
    rows
}
