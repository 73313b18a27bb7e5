//! A [`Timeline`] as one self-contained SVG: lanes from top to bottom, time from left to right.

mod labels;
mod lane;
mod scale;
mod shapes;
mod style;

use super::markup::{escaped, push};
use super::story;
use crate::timeline::{MarkKind, Timeline};
use lane::Lane;
use scale::Scale;
pub(crate) use style::STYLE;

/// The width of every picture; its height is what its lanes need.
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 16.0;
/// Lane names are not wider than this.
const NAMES_MOST: f64 = 190.0;
/// Where the first lane begins, below the title.
const TOP: f64 = 42.0;

/// Where the style comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Styled {
    /// The picture has its own: a file.
    Own,
    /// The document around it has [`STYLE`].
    Around,
}

/// The picture. `id` tells it from others in the same document: letters, digits, `-` and `_`.
pub(crate) fn render(timeline: &Timeline, id: &str, styled: Styled) -> String {
    let picture = Picture::new(timeline, id);
    let height = picture.height();
    let title = escaped(&timeline.title);
    let story = escaped(&story::lines(timeline).join("\n"));
    let namespace = if styled == Styled::Own { " xmlns=\"http://www.w3.org/2000/svg\"" } else { "" };
    let style = if styled == Styled::Own { format!("<style>{STYLE}</style>\n") } else { String::new() };
    format!(
        "<svg{namespace} class=\"tl\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-desc\">\n<title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-desc\">{story}</desc>\n\
         {style}{}</svg>\n",
        picture.body(height)
    )
}

struct Picture<'a> {
    timeline: &'a Timeline,
    id: &'a str,
    scale: Scale,
    /// Where the time begins.
    left: f64,
    lanes: Vec<Lane<'a>>,
}

impl<'a> Picture<'a> {
    fn new(timeline: &'a Timeline, id: &'a str) -> Self {
        let names = timeline.all_lanes();
        let widest = names.iter().map(|name| labels::width(name, 13.5)).fold(60.0, f64::max).min(NAMES_MOST);
        let left = MARGIN + widest + 20.0;
        let instants = timeline.marks.iter().map(|mark| mark.at_ms);
        let ends = timeline.spans.iter().flat_map(|span| [span.from_ms, span.until_ms]);
        let scale = Scale::new(instants.chain(ends).collect(), left, WIDTH - MARGIN - 14.0);
        let mut top = TOP + if timeline.two_holders().is_empty() { 0.0 } else { 18.0 };
        let mut lanes = Vec::new();
        for name in names {
            let lane = Lane::new(timeline, name, &scale, (left, WIDTH - MARGIN - 2.0), top);
            top += lane.height;
            lanes.push(lane);
        }
        Self { timeline, id, scale, left, lanes }
    }

    fn lanes_begin(&self) -> f64 {
        self.lanes.first().map_or(TOP, |lane| lane.top)
    }

    fn lanes_end(&self) -> f64 {
        self.lanes.last().map_or(TOP, |lane| lane.top + lane.height)
    }

    fn height(&self) -> f64 {
        self.legend_begin() + 18.0 * number(self.legend().1) + 12.0
    }

    fn legend_begin(&self) -> f64 {
        self.lanes_end() + 48.0
    }

    fn body(&self, height: f64) -> String {
        let id = self.id;
        let mut out = format!(
            "<defs><pattern id=\"{id}-hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><path class=\"hatched\" d=\"M0 0H7V7H0Z\"/><path class=\"hatch\" d=\"M0 0V7\"/></pattern></defs>\n\
             <rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" rx=\"8\"/>\n",
            WIDTH - 1.0,
            height - 1.0
        );
        let title = labels::cut(&self.timeline.title, 16.5, WIDTH - 2.0 * MARGIN);
        out.push_str(&text((MARGIN, 26.0), "title", &title));
        for (at, lane) in self.lanes.iter().enumerate() {
            let shade = if at % 2 == 0 { lane.shade(WIDTH) } else { String::new() };
            push!(out, "<g>{shade}{}</g>\n", lane.name());
        }
        out.push_str(&self.across());
        for (at, lane) in self.lanes.iter().enumerate() {
            // The halo of a label has the colour of its lane.
            let class = if at % 2 == 0 { " class=\"shaded\"" } else { "" };
            push!(out, "<g{class}>{}</g>\n", lane.content(&self.scale, id));
        }
        out.push_str(&self.axis());
        let (legend, _) = self.legend();
        out.push_str(&legend);
        out
    }

    /// What goes across the lanes: two holders at once, stale writes, faults.
    fn across(&self) -> String {
        let (top, bottom) = (self.lanes_begin(), self.lanes_end());
        let mut out = String::new();
        for (from_ms, until_ms) in self.timeline.two_holders() {
            let (from, until) = (self.scale.x(from_ms), self.scale.x(until_ms));
            let words = format!("two holders for {}", story::length(until_ms - from_ms));
            let width = labels::width(&words, 12.0);
            let at = (f64::midpoint(from, until) - width / 2.0).clamp(self.left, WIDTH - MARGIN - width);
            push!(
                out,
                "<rect class=\"two dash\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\n",
                (until - from).max(2.0),
                bottom - top
            );
            out.push_str(&text((at, top - 5.0), "bad", &words));
        }
        for mark in &self.timeline.marks {
            if matches!(mark.kind, MarkKind::StaleCommitted | MarkKind::Fault) {
                let x = self.scale.x(mark.at_ms);
                let class = shapes::mark_class(mark.kind);
                push!(out, "<path class=\"{class} loud dash\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>\n");
            }
        }
        out
    }

    /// The axis: a dotted line where time is stretched, and as many instants as there is room for, the first and the last among them.
    fn axis(&self) -> String {
        let y = self.lanes_end() + 6.0;
        let points = self.scale.points();
        let mut out = String::new();
        for pair in points.windows(2) {
            if let [(_, from), (_, until)] = pair {
                let stretched = self.scale.stretched.iter().any(|(x, _)| (x - from).abs() < 0.01);
                let dots = if stretched { " dots" } else { "" };
                push!(out, "<path class=\"line{dots}\" d=\"M{from:.1} {y:.1}H{until:.1}\"/>");
            }
        }
        let mut taken: Vec<(f64, f64)> = Vec::new();
        let last = points.len().saturating_sub(1);
        let order = [0, last].into_iter().chain(1..last);
        for (ms, x) in order.filter_map(|at| points.get(at)) {
            let words = story::time(*ms);
            let width = labels::width(&words, 11.0);
            let from = (x - width / 2.0).min(WIDTH - MARGIN - width + 8.0);
            if taken.iter().all(|(begin, end)| from > end + 8.0 || from + width < begin - 8.0) {
                taken.push((from, from + width));
                push!(out, "<path class=\"line\" d=\"M{x:.1} {:.1}V{:.1}\"/>", y - 3.0, y + 4.0);
                out.push_str(&text((from, y + 16.0), "small", &words));
            }
        }
        let stretched = if self.scale.stretched.is_empty() { "" } else { "(dotted: stretched)" };
        out.push_str(&text((MARGIN, y + 4.0), "small", "time in ms"));
        out.push_str(&text((MARGIN, y + 17.0), "small", stretched));
        out.push('\n');
        out
    }

    /// What the forms that occur mean, and in how many rows that is.
    fn legend(&self) -> (String, usize) {
        let (mut out, mut x, mut row) = (String::new(), MARGIN, 1_usize);
        let mut entry = |picture: &dyn Fn(f64, f64) -> String, room: f64, words: &str| {
            let width = room + labels::width(words, 11.0);
            if x + width > WIDTH - MARGIN {
                x = MARGIN;
                row = row.saturating_add(1);
            }
            let y = self.legend_begin() + 18.0 * number(row.saturating_sub(1));
            out.push_str(&picture(x, y));
            out.push_str(&text((x + room, y + 4.0), "small", words));
            x += width + 18.0;
        };
        for kind in shapes::SPANS.iter().filter(|kind| self.timeline.spans.iter().any(|span| span.kind == **kind)) {
            let sample = |x: f64, y: f64| lane::bar(*kind, (x, y - 6.0), (24.0, 12.0), self.id);
            entry(&sample, 30.0, shapes::span_words(*kind));
        }
        for kind in shapes::MARKS.iter().filter(|kind| self.timeline.marks.iter().any(|mark| mark.kind == **kind)) {
            entry(&|x, y| shapes::form(*kind, x + 9.0, y), 22.0, shapes::mark_words(*kind));
        }
        out.push('\n');
        (out, row)
    }
}

fn text((x, y): (f64, f64), class: &str, words: &str) -> String {
    if words.is_empty() {
        return String::new();
    }
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words))
}

/// A count as a number to draw with.
fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
