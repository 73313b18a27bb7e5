//! Running a program to its end, with a limit.

use crate::ServerError;
use crate::wait::LIMIT;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a program wrote to its standard output, without the end of the last line.
///
/// # Errors
/// When it cannot be started, fails, or is not done within a minute; then it is killed. `what` is what it was for.
pub(crate) fn run(command: &mut Command, what: &str) -> Result<String, ServerError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(ServerError::io(what))?;
    let (said, complained) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(ServerError::io(what))? {
            break status;
        }
        if begin.elapsed() > LIMIT {
            // A failure means that it has ended just now.
            drop(child.kill().and_then(|()| child.wait()));
            return Err(ServerError::NotReached {
                what: what.into(),
                limit: LIMIT,
                seen: "it is still running".into(),
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |thread: JoinHandle<String>| thread.join().unwrap_or_default().trim_end().to_owned();
    let (said, complained) = (text(said), text(complained));
    if status.success() { Ok(said) } else { Err(ServerError::Refused { what: what.into(), answer: complained }) }
}

/// Reads all of a pipe, so that the program never waits for a reader.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before a failure is all that there is.
            drop(pipe.read_to_end(&mut all));
        }
        String::from_utf8_lossy(&all).into_owned()
    })
}
