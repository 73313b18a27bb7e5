//! Progress while the suite runs, on standard error.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a plain line is written where the last one cannot be overwritten.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Shows where the run is: one line that changes on a terminal, a plain line now and then elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    begun: Instant,
    on_terminal: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    what: String,
    last_plain: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { begun: Instant::now(), on_terminal: std::io::stderr().is_terminal() && !dumb, state: Mutex::default() }
    }

    /// The run is at `what` now.
    pub(crate) fn at(&self, what: &str) {
        what.clone_into(&mut self.lock().what);
        self.show();
    }

    /// Shows it again every second, so that a long step does not look like a hang. Never ends.
    pub(crate) async fn keep_showing(&self) -> Infallible {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.show();
        }
    }

    fn show(&self) {
        let mut state = self.lock();
        if self.on_terminal {
            // Back to the beginning of the line, and clear it; cut so that it never wraps.
            let line: String = format!("{} {}", self.elapsed(), state.what).chars().take(78).collect();
            write(&format!("\r\u{1b}[2K{line}"));
        } else if state.last_plain.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            state.last_plain = Some(Instant::now());
            write(&format!("{} {}\n", self.elapsed(), state.what));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere left at worst an old line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line that stays.
    pub(crate) fn note(&self, text: &str) {
        let clear = if self.on_terminal { "\r\u{1b}[2K" } else { "" };
        write(&format!("{clear}{text}\n"));
    }

    /// The run is over: clears the line that changes.
    pub(crate) fn end(&self) {
        if self.on_terminal {
            write("\r\u{1b}[2K");
        }
    }

    /// Minutes and seconds since the beginning.
    pub(crate) fn elapsed(&self) -> String {
        let seconds = self.begun.elapsed().as_secs();
        format!("{:>2}:{:02}", seconds.checked_div(60).unwrap_or_default(), seconds.checked_rem(60).unwrap_or_default())
    }
}

fn write(text: &str) {
    let mut stderr = std::io::stderr();
    // Progress that nobody can see is no failure.
    drop(stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()));
}
