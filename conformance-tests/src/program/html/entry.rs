//! One cell's evidence, as something that opens.

use crate::program::expected::Mismatch;
use crate::program::markup::{escaped, push};
use crate::program::survive::is_mismatch;
use crate::program::{evidence, itself, story, svg, terminal};
use crate::report::{Cell, Report, Verdict};
use crate::survival::SurvivalCell;
use crate::timeline::Timeline;

/// How a word is coloured. The word itself says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    /// As it should be, and no promise: a control, an honest no.
    Plain,
    Note,
    Bad,
    None,
}

impl Tone {
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Plain => "plain",
            Self::Note => "note",
            Self::Bad => "bad",
            Self::None => "none",
        }
    }

    pub(super) fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Kept => Self::Good,
            Verdict::ControlLanded | Verdict::HonestNo => Self::Plain,
            Verdict::Untested => Self::None,
            Verdict::Unproven | Verdict::Unclaimed => Self::Note,
            Verdict::ControlFailed | Verdict::Broken => Self::Bad,
        }
    }
}

/// What the page says of one cell.
pub(super) struct Entry<'a> {
    /// The anchor of its evidence.
    pub(super) id: String,
    pub(super) tone: Tone,
    /// The verdict in words.
    pub(super) word: String,
    /// What was tried, and where.
    pub(super) title: String,
    /// Whether somebody has to look at it.
    pub(super) is_red: bool,
    facts: Vec<(&'static str, String)>,
    finding: Option<&'a str>,
    evidence: Vec<(String, String)>,
    timeline: Option<&'a Timeline>,
    repeat: String,
}

impl<'a> Entry<'a> {
    pub(super) fn of_cell(report: &Report, cell: &'a Cell, id: String, mismatch: Option<&Mismatch>) -> Self {
        let place = cell.destination.as_ref().map_or_else(String::new, |destination| format!(" at {destination}"));
        let mut facts = Vec::new();
        if let Some(info) = crate::cases().iter().find(|info| info.id == cell.case) {
            facts.push(("case", format!("{} {}", info.title, info.explain)));
        }
        if let Some(mismatch) = mismatch {
            facts.push(("expected", mismatch.expected.map_or("nothing", Verdict::name).replace('_', " ")));
        }
        facts.extend(cell.claim.clone().map(|claim| ("claim", claim)));
        facts.push(("trials", cell.trials.to_string()));
        let tone = if mismatch.is_some() { Tone::Bad } else { Tone::of(cell.verdict) };
        Self {
            id,
            tone,
            word: cell.verdict.name().replace('_', " "),
            title: format!("{} on {}{place}", cell.case, cell.backend),
            is_red: mismatch.is_some() || terminal::needs_a_look(cell.verdict),
            facts,
            finding: cell.finding.as_deref(),
            evidence: evidence::entries(&cell.evidence),
            timeline: cell.timeline.as_ref(),
            repeat: terminal::repeat(report, cell),
        }
    }

    pub(super) fn of_survival(cell: &'a SurvivalCell, id: String) -> Self {
        let words = |name: &str| name.replace('_', " ");
        let mut facts = vec![("trials", cell.trials.to_string())];
        if is_mismatch(cell) {
            let expected = cell.expected.map_or_else(|| "nothing".to_owned(), |expected| words(expected.name()));
            facts.push(("expected", expected));
        }
        let of_fault =
            evidence::entries(&cell.witness).into_iter().map(|(name, value)| (format!("fault: {name}"), value));
        Self {
            id,
            tone: super::survival::tone(cell),
            // As in the table of the terminal: not by the colour alone.
            word: format!("{}{}", words(cell.outcome.name()), if is_mismatch(cell) { " ≠" } else { "" }),
            title: format!("{} under {} in {} on {}", cell.guarantee, cell.fault, cell.setup, cell.backend),
            is_red: is_mismatch(cell),
            facts,
            finding: Some(&cell.finding),
            evidence: of_fault.chain(evidence::entries(&cell.evidence)).collect(),
            timeline: cell.timeline.as_ref(),
            repeat: repeat_survival(cell),
        }
    }

    /// A link to the evidence.
    pub(super) fn link(&self, word: &str) -> String {
        let (class, id, title) = (self.tone.class(), &self.id, escaped(&self.title));
        format!("<a class=\"w {class}\" href=\"#{id}\" title=\"{title}\">{}</a>", escaped(word))
    }

    /// The evidence.
    pub(super) fn details(&self) -> String {
        let (class, word, title, id) = (self.tone.class(), escaped(&self.word), escaped(&self.title), &self.id);
        let open = if self.is_red { " open=\"open\"" } else { "" };
        let picture = if self.timeline.is_some() { " <span class=\"faint\">with a picture</span>" } else { "" };
        // A link opens what its target is inside of, so the target is the body.
        let mut out = format!(
            "<details class=\"cell\"{open}><summary><span class=\"w {class}\">{word}</span> {title}{picture}</summary>\n<div class=\"body\" id=\"{id}\">\n"
        );
        if let Some(finding) = self.finding.filter(|finding| !finding.is_empty()) {
            push!(out, "<p class=\"finding\">{}</p>\n", escaped(finding));
        }
        if let Some(timeline) = self.timeline {
            let picture = svg::render(timeline, id, svg::Styled::Around);
            let story = escaped(&story::lines(timeline).join("\n"));
            push!(
                out,
                "<div class=\"wide\">{picture}</div>\n<details><summary class=\"faint\">the same in words</summary><pre>{story}</pre></details>\n"
            );
        }
        out.push_str("<dl class=\"facts\">");
        for (name, value) in &self.facts {
            push!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(value));
        }
        push!(out, "<dt>repeat</dt><dd><code>{}</code></dd></dl>\n", escaped(&self.repeat));
        if !self.evidence.is_empty() {
            out.push_str("<div class=\"wide\"><table class=\"evidence\"><tbody>\n");
            for (name, value) in &self.evidence {
                let (name, value) = (escaped(name), escaped(value));
                push!(out, "<tr><th scope=\"row\">{name}</th><td class=\"mono\">{value}</td></tr>\n");
            }
            out.push_str("</tbody></table></div>\n");
        }
        out + "</div></details>\n"
    }
}

/// The command that plays this scene again.
fn repeat_survival(cell: &SurvivalCell) -> String {
    format!("{} survive --setup {} --fault {}", itself::command(), cell.setup, cell.fault)
}
