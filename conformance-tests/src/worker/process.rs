//! A worker in a process of its own, really stopped by a signal.

use super::protocol::{Reply, Request, Said};
use super::wall_clock::WallClock;
use crate::soak::Note;
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

/// The program that is started as a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerProgram {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    pid: Pid,
    /// `None` once it was closed.
    stdin: Option<ChildStdin>,
    answers: mpsc::UnboundedReceiver<Result<Reply, String>>,
    pub(super) notes: Option<mpsc::UnboundedReceiver<Note>>,
}

impl Process {
    /// Starts it, on a wall clock of its own where one is given.
    pub(super) fn start(program: &WorkerProgram, clock: Option<&WallClock>) -> Result<Self, String> {
        let mut child = Command::new(&program.path)
            .args(&program.args)
            .envs(clock.into_iter().flat_map(WallClock::environment))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("cannot start the worker {}: {e}", program.path.display()))?;
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let (Some(pid), Some(stdin), Some(stdout)) = (pid, child.stdin.take(), child.stdout.take()) else {
            return Err("the worker has no process id or no pipes".into());
        };
        let (answered, answers) = mpsc::unbounded_channel();
        let (noted, receive) = mpsc::unbounded_channel();
        tokio::spawn(read(stdout, answered, noted));
        Ok(Self { child, pid, stdin: Some(stdin), answers, notes: Some(receive) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Writes one line. A paused worker's pipe takes it too: it holds thousands of commands.
    pub(super) async fn send(&mut self, request: &Request) -> Result<(), String> {
        let mut line = serde_json::to_vec(request).map_err(|e| e.to_string())?;
        line.push(b'\n');
        let stdin = self.stdin.as_mut().ok_or("the worker's pipe is closed")?;
        stdin.write_all(&line).await.map_err(|e| broken(&e))?;
        stdin.flush().await.map_err(|e| broken(&e))
    }

    pub(super) async fn answer(&mut self) -> Result<Reply, String> {
        self.answers.recv().await.ok_or("the worker ended by itself")?
    }

    /// Stops the process and waits until the system says that it is stopped.
    pub(super) async fn pause(&mut self) -> Result<String, String> {
        self.signal(Signal::STOP)?;
        loop {
            if let Ok(state) = self.stopped_state() {
                return Ok(state);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The state as the system gives it: `T` when every thread of the process stands still.
    pub(super) fn stopped_state(&self) -> Result<String, String> {
        let pid = self.pid.as_raw_nonzero();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| e.to_string())?;
        for task in tasks {
            let path = task.map_err(|e| e.to_string())?.path().join("stat");
            let stat = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
            // The name before it may hold spaces and brackets, so count from the last bracket.
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if state != Some('T') {
                return Err(format!("the worker is in state {state:?}, not stopped"));
            }
        }
        Ok("T".into())
    }

    pub(super) fn resume(&self) -> Result<(), String> {
        self.signal(Signal::CONT)
    }

    /// Closes its input, which ends it; kills it when it does not end.
    pub(super) async fn end(mut self) -> Result<(), String> {
        self.resume()?;
        drop(self.stdin.take());
        let ended = tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("the worker ended with {status}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                self.child.kill().await.map_err(|e| e.to_string())?;
                Err("the worker did not end when its input was closed, and was killed".into())
            }
        }
    }

    /// Kills it (`SIGKILL`) and reaps it.
    pub(super) async fn kill(mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|e| e.to_string())
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        // The process id is this child's own: it was not reaped yet.
        kill_process(self.pid, signal).map_err(|e| format!("cannot signal the worker: {e}"))
    }
}

/// Reads all the time, so that a worker finds room in the pipe whatever the driver is doing.
async fn read(
    stdout: ChildStdout,
    answered: mpsc::UnboundedSender<Result<Reply, String>>,
    noted: mpsc::UnboundedSender<Note>,
) {
    let mut lines = BufReader::new(stdout).lines();
    loop {
        let said = match lines.next_line().await {
            Ok(None) => return,
            Ok(Some(line)) => {
                serde_json::from_str(&line).map_err(|e| format!("the worker's answer cannot be read: {e}"))
            }
            Err(error) => Err(broken(&error)),
        };
        // The driver may have stopped listening to one of them.
        match said {
            Ok(Said::Noted(note)) => drop(noted.send(note)),
            Ok(Said::Answer(reply)) => drop(answered.send(Ok(reply))),
            Err(error) => return drop(answered.send(Err(error))),
        }
    }
}

fn broken(error: &std::io::Error) -> String {
    format!("the pipe to the worker broke: {error}")
}
