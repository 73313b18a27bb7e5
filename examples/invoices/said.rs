//! What a worker says to the director, a line each.

use crate::timeline::Tone;
use std::io::Write as _;

/// How a worker's bill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Billed,
    Refused,
}

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// For the timeline.
    Tell(Tone, String),
    /// It has the lease, with this token.
    Token(u64),
    /// It was given this receipt.
    Receipt(i64),
    /// It is where A is stopped, and waits for a line.
    Ready,
    /// Its lease was lost before it was stopped.
    Lost,
    /// Its lease was lost when its bill was written or refused.
    Late,
    Done(Outcome),
}

impl Said {
    pub(crate) fn is_ready(&self) -> bool {
        *self == Self::Ready
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "token" => Self::Token(rest.parse().ok()?),
            "receipt" => Self::Receipt(rest.parse().ok()?),
            "ready" => Self::Ready,
            "lost" => Self::Lost,
            "late" => Self::Late,
            "billed" => Self::Done(Outcome::Billed),
            "refused" => Self::Done(Outcome::Refused),
            "good" => Self::Tell(Tone::Good, rest.into()),
            "bad" => Self::Tell(Tone::Bad, rest.into()),
            "faint" => Self::Tell(Tone::Faint, rest.into()),
            "plain" => Self::Tell(Tone::Plain, rest.into()),
            _ => return None,
        })
    }

    fn line(&self) -> String {
        match self {
            Self::Token(value) => format!("token {value}"),
            Self::Receipt(number) => format!("receipt {number}"),
            Self::Ready => "ready".into(),
            Self::Lost => "lost".into(),
            Self::Late => "late".into(),
            Self::Done(Outcome::Billed) => "billed".into(),
            Self::Done(Outcome::Refused) => "refused".into(),
            Self::Tell(Tone::Good, text) => format!("good {text}"),
            Self::Tell(Tone::Bad, text) => format!("bad {text}"),
            Self::Tell(Tone::Faint, text) => format!("faint {text}"),
            Self::Tell(Tone::Plain, text) => format!("plain {text}"),
        }
    }

    /// Says it to the director.
    pub(crate) fn say(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", self.line())?;
        out.flush()
    }
}
