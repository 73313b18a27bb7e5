//! Where a worker's lines go: to a pipe, or to the driver in the same process.

use super::protocol::{Reply, Said};
use crate::soak::Note;
use tokio::sync::{mpsc, oneshot};

/// The way out for answers and notes. Saying something never waits: a pipe that nobody reads stops nothing but its own thread.
#[derive(Clone, Debug)]
pub(crate) enum Outlet {
    /// A thread writes them to a pipe.
    Pipe(mpsc::UnboundedSender<Line>),
    /// The driver is in this process.
    Here {
        /// The answers.
        replies: mpsc::UnboundedSender<Reply>,
        /// The notes.
        notes: mpsc::UnboundedSender<Note>,
    },
}

/// What is to be written, and whom to tell when it and everything before it was.
pub(crate) type Line = (Option<Said>, Option<oneshot::Sender<()>>);

impl Outlet {
    /// Says it. False when nobody listens any more.
    pub(crate) fn say(&self, said: Said) -> bool {
        match (self, said) {
            (Self::Pipe(pipe), said) => pipe.send((Some(said), None)).is_ok(),
            (Self::Here { replies, .. }, Said::Answer(reply)) => replies.send(reply).is_ok(),
            (Self::Here { notes, .. }, Said::Noted(note)) => notes.send(note).is_ok(),
        }
    }

    /// Says it, and returns when it is out of this process. Other tasks go on meanwhile.
    pub(crate) async fn say_and_wait(&self, said: Said) {
        // A broken pipe ends the worker soon.
        let _listened = self.say(said);
        self.flush().await;
    }

    /// Returns when everything that was said so far is out of this process.
    pub(crate) async fn flush(&self) {
        if let Self::Pipe(pipe) = self {
            let (written, wait) = oneshot::channel();
            if pipe.send((None, Some(written))).is_ok() {
                // An error says that the pipe is broken.
                let _written = wait.await;
            }
        }
    }
}
