//! Colour, where somebody can see it.

use std::io::IsTerminal as _;

/// Whether to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Colour,
    Plain,
}

/// What a piece of text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Note,
    Bad,
    Faint,
    Strong,
}

impl Paint {
    /// Colour on a terminal, unless `NO_COLOR` is set (to anything but nothing) or the terminal is `dumb`.
    pub(crate) fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if std::io::stdout().is_terminal() && !refused { Self::Colour } else { Self::Plain }
    }

    /// The text in its tone.
    pub(crate) fn text(self, tone: Tone, text: &str) -> String {
        let code = match (self, tone) {
            (Self::Plain, _) => return text.to_owned(),
            (Self::Colour, Tone::Good) => "32",
            (Self::Colour, Tone::Note) => "33",
            (Self::Colour, Tone::Bad) => "1;31",
            (Self::Colour, Tone::Faint) => "2",
            (Self::Colour, Tone::Strong) => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}
