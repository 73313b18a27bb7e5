//! The driver's end: sends commands, takes answers, pauses and resumes.

use super::process::{Process, WorkerProgram};
use super::protocol::{Answer, Command, Reply, Request};
use super::thread::Thread;
use super::wall_clock::WallClock;
use crate::soak::Note;
use crate::subject::Opener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The longest that the driver waits for one answer: more than a worker gives itself.
const PATIENCE: Duration = Duration::from_secs(45);

/// A worker under the driver's hand.
#[derive(Debug)]
pub(crate) struct Worker {
    link: Link,
    next_id: u64,
    /// How many answers are still to come.
    open: u64,
}

#[derive(Debug)]
enum Link {
    Process(Box<Process>),
    Thread(Thread),
}

impl Worker {
    /// Starts a worker in a process of its own.
    pub(crate) fn process(program: &WorkerProgram) -> Result<Self, String> {
        Process::start(program, None).map(|process| Self::on(Link::Process(Box::new(process))))
    }

    /// Starts a worker in a process of its own, on a wall clock that can be moved.
    pub(crate) fn on_clock(program: &WorkerProgram, clock: &WallClock) -> Result<Self, String> {
        Process::start(program, Some(clock)).map(|process| Self::on(Link::Process(Box::new(process))))
    }

    /// Starts a worker on a thread of this process, with a runtime of its own.
    pub(crate) fn thread(opener: Arc<dyn Opener>) -> Result<Self, String> {
        Thread::start(opener).map(|thread| Self::on(Link::Thread(thread)))
    }

    fn on(link: Link) -> Self {
        Self { link, next_id: 0, open: 0 }
    }

    /// `process` or `blocked runtime`: how a pause is made.
    pub(crate) fn mode(&self) -> &'static str {
        match self.link {
            Link::Process(_) => "process",
            Link::Thread(_) => "blocked runtime",
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        match &self.link {
            Link::Process(process) => process.pid(),
            Link::Thread(_) => std::process::id(),
        }
    }

    /// What the worker notes by itself, until it has ended. Only once.
    pub(crate) fn notes(&mut self) -> Option<mpsc::UnboundedReceiver<Note>> {
        match &mut self.link {
            Link::Process(process) => process.notes.take(),
            Link::Thread(thread) => thread.notes.take(),
        }
    }

    /// Puts a command into the worker's queue without waiting; works while it is paused.
    pub(crate) async fn send(&mut self, command: Command) -> Result<(), String> {
        self.next_id = self.next_id.saturating_add(1);
        let request = Request { id: self.next_id, command };
        match &mut self.link {
            Link::Process(process) => bounded(process.send(&request)).await?,
            Link::Thread(thread) => thread.send(request)?,
        }
        self.open = self.open.saturating_add(1);
        Ok(())
    }

    /// The next answer, in the order of the commands.
    pub(crate) async fn answer(&mut self) -> Result<Reply, String> {
        let reply = match &mut self.link {
            Link::Process(process) => bounded(process.answer()).await?,
            Link::Thread(thread) => bounded(thread.answer()).await?,
        };
        self.open = self.open.saturating_sub(1);
        let expected = self.next_id.saturating_sub(self.open);
        if reply.id == expected { Ok(reply) } else { Err(format!("answer {} came where {expected} was due", reply.id)) }
    }

    /// Sends a command and takes its answer; a failure of the command is an error.
    pub(crate) async fn call(&mut self, command: Command) -> Result<Reply, String> {
        self.send(command).await?;
        let reply = self.answer().await?;
        match reply.answer {
            Answer::Failed { error } => Err(error),
            _ => Ok(reply),
        }
    }

    /// Sends commands back to back, then takes all answers.
    pub(crate) async fn all(&mut self, commands: Vec<Command>) -> Result<Vec<Reply>, String> {
        let count = commands.len();
        for command in commands {
            self.send(command).await?;
        }
        self.answers(count).await
    }

    /// The next `count` answers.
    pub(crate) async fn answers(&mut self, count: usize) -> Result<Vec<Reply>, String> {
        let mut replies = Vec::with_capacity(count);
        for _ in 0..count {
            replies.push(self.answer().await?);
        }
        Ok(replies)
    }

    /// Stops the worker; returns when it stands still, with what was seen of it.
    pub(crate) async fn pause(&mut self) -> Result<String, String> {
        match &mut self.link {
            Link::Process(process) => bounded(process.pause()).await,
            Link::Thread(_) => {
                // The answer comes right before the thread blocks.
                self.call(Command::Block).await?;
                self.stopped_state().await
            }
        }
    }

    /// What is seen of a stopped worker now; an error when it does not stand still.
    pub(crate) async fn stopped_state(&mut self) -> Result<String, String> {
        match &mut self.link {
            Link::Process(process) => process.stopped_state(),
            Link::Thread(thread) => bounded(thread.stopped_state()).await,
        }
    }

    pub(crate) fn resume(&mut self) -> Result<(), String> {
        match &mut self.link {
            Link::Process(process) => process.resume(),
            Link::Thread(thread) => thread.resume(),
        }
    }

    /// Kills the worker's process.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) async fn kill(self) -> Result<(), String> {
        match self.link {
            Link::Process(process) => bounded(process.kill()).await,
            Link::Thread(_) => Err("a thread cannot be killed".into()),
        }
    }

    /// Ends the worker and reaps it.
    pub(crate) async fn end(self) -> Result<(), String> {
        match self.link {
            Link::Process(process) => bounded(process.end()).await,
            Link::Thread(thread) => bounded(thread.end()).await,
        }
    }
}

async fn bounded<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| Err(format!("the worker gave no sign within {PATIENCE:?}")))
}
