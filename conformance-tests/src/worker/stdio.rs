//! The worker's end of the pipe, in a process of its own.

use super::handler::Handler;
use super::protocol::Request;
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
    let mut handler = Handler::new(opener);
    while let Some(line) = lines.recv().await {
        let request: Request = serde_json::from_str(&line).map_err(|e| format!("not a command: {e}"))?;
        let reply = handler.handle(request).await;
        let mut line = serde_json::to_vec(&reply).map_err(|e| e.to_string())?;
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        out.write_all(&line).and_then(|()| out.flush()).map_err(|e| e.to_string())?;
    }
    Ok(())
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
