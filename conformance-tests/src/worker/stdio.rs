//! The worker's end of the pipe, in a process of its own.

use super::handler::Handler;
use super::outlet::{Line, Outlet};
use super::protocol::{Request, Said};
use crate::subject::Opener;
use std::io::{BufRead, Write};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Serves commands from standard input and answers on standard output, until standard input is closed.
///
/// Call it in the hidden subcommand that [`Suite::worker_program`](crate::Suite::worker_program) names, and end the process
/// when it returns. URLs come by standard input, so that no password is in the process table. Nothing else may be
/// printed to standard output.
///
/// # Errors
/// A line that is no command, or a pipe that broke.
///
/// # Cancel safety
/// Dropping the future ends the service; a command under way may have taken effect.
pub async fn run_stdio(opener: Arc<dyn Opener>) -> Result<(), String> {
    let mut lines = standard_input();
    let outlet = standard_output()?;
    let served = serve(Handler::new(opener, outlet.clone()), &mut lines, &outlet).await;
    outlet.flush().await;
    served
}

async fn serve(
    mut handler: Handler,
    lines: &mut mpsc::UnboundedReceiver<String>,
    outlet: &Outlet,
) -> Result<(), String> {
    while let Some(line) = lines.recv().await {
        let request: Request = serde_json::from_str(&line).map_err(|e| format!("not a command: {e}"))?;
        if !outlet.say(Said::Answer(handler.handle(request).await)) {
            return Err("standard output is closed".into());
        }
    }
    handler.rest().await.map(drop)
}

/// Reads on a thread of its own: the runtime stays free for the clients' connections.
fn standard_input() -> mpsc::UnboundedReceiver<String> {
    let (send, receive) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// Writes on a thread of its own: a full pipe holds up nothing else.
fn standard_output() -> Result<Outlet, String> {
    let (send, receive) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name("lease-notes".into()).spawn(move || write(receive));
    thread.map(|_| Outlet::Pipe(send)).map_err(|e| format!("cannot start a thread: {e}"))
}

/// Ends when the pipe breaks, which whoever says the next thing sees.
fn write(mut lines: mpsc::UnboundedReceiver<Line>) {
    let mut out = std::io::stdout().lock();
    while let Some((said, written)) = lines.blocking_recv() {
        if let Some(said) = said {
            let Ok(mut line) = serde_json::to_vec(&said) else { return };
            line.push(b'\n');
            if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                return;
            }
        }
        if let Some(written) = written {
            let _waits = written.send(());
        }
    }
}
