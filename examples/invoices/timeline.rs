//! The timeline: one line an event, in columns, coloured on a terminal.

use std::io::IsTerminal as _;
use std::time::Instant;

/// Whose line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    A,
    B,
    Payments,
    Director,
}

/// How an event is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Faint,
}

/// What a worker's process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Absent,
    Runs,
    Stopped,
}

impl Life {
    fn mark(self) -> &'static str {
        match self {
            Self::Absent => " ",
            Self::Runs => "┃",
            Self::Stopped => "┊",
        }
    }
}

/// Colour on a terminal, unless `NO_COLOR` is set or the terminal is `dumb`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    colour: bool,
}

impl Paint {
    pub(crate) fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { colour: std::io::stdout().is_terminal() && !refused }
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.code("1", text)
    }

    pub(crate) fn tone(self, tone: Tone, text: &str) -> String {
        match tone {
            Tone::Plain => text.to_owned(),
            Tone::Good => self.code("32", text),
            Tone::Bad => self.code("1;31", text),
            Tone::Faint => self.code("2", text),
        }
    }

    fn who(self, who: Who, text: &str) -> String {
        match who {
            Who::A => self.code("33", text),
            Who::B => self.code("36", text),
            Who::Payments => self.code("35", text),
            Who::Director => self.code("2", text),
        }
    }

    fn code(self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Of one scene.
#[derive(Debug)]
pub(crate) struct Timeline {
    begun: Instant,
    paint: Paint,
    pub(crate) a: Life,
    pub(crate) b: Life,
}

impl Timeline {
    pub(crate) fn begin(paint: Paint) -> Self {
        Self { begun: Instant::now(), paint, a: Life::Absent, b: Life::Absent }
    }

    pub(crate) fn tell(&self, who: Who, tone: Tone, what: &str) {
        let name = match who {
            Who::A => "A",
            Who::B => "B",
            Who::Payments => "payments",
            Who::Director => "·",
        };
        println!(
            "{:>8} ms  {} {}  {}  {}",
            thousands(self.begun.elapsed().as_millis()),
            self.paint.who(Who::A, self.a.mark()),
            self.paint.who(Who::B, self.b.mark()),
            self.paint.who(who, &format!("{name:<8}")),
            self.paint.tone(tone, what),
        );
    }
}

/// A number with a comma after every three digits.
pub(crate) fn thousands(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digits.len().saturating_sub(at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
