//! A worker on a thread of this process, with a runtime of its own. A pause blocks the whole runtime, as a long
//! garbage collection or a busy executor would.

use super::handler::{Handler, now_ns};
use super::outlet::Outlet;
use super::protocol::{Answer, Command, Reply, Request, Said};
use crate::soak::Note;
use crate::subject::Opener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::Duration;
use tokio::sync::mpsc;

#[derive(Debug)]
pub(super) struct Thread {
    requests: mpsc::UnboundedSender<Request>,
    replies: mpsc::UnboundedReceiver<Reply>,
    pub(super) notes: Option<mpsc::UnboundedReceiver<Note>>,
    gate: blocking::Sender<()>,
    /// Counts up as long as the worker's runtime runs.
    ticks: Arc<AtomicU64>,
}

impl Thread {
    pub(super) fn start(opener: Arc<dyn Opener>) -> Result<Self, String> {
        let (requests, incoming) = mpsc::unbounded_channel();
        let (outgoing, replies) = mpsc::unbounded_channel();
        let (noted, receive) = mpsc::unbounded_channel();
        let (gate, gate_opens) = blocking::channel();
        let ticks = Arc::new(AtomicU64::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| format!("cannot build a runtime: {e}"))?;
        let ticker = tick(Arc::clone(&ticks));
        std::thread::Builder::new()
            .name("lease-worker".into())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::spawn(ticker);
                    let outlet = Outlet::Here { replies: outgoing, notes: noted };
                    serve(Handler::new(opener, outlet.clone()), incoming, outlet, gate_opens).await;
                });
            })
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        Ok(Self { requests, replies, notes: Some(receive), gate, ticks })
    }

    pub(super) fn send(&self, request: Request) -> Result<(), String> {
        self.requests.send(request).map_err(|_| ended())
    }

    pub(super) async fn answer(&mut self) -> Result<Reply, String> {
        self.replies.recv().await.ok_or_else(ended)
    }

    /// Watches the ticker of a blocked runtime for a moment: it must not move.
    pub(super) async fn stopped_state(&self) -> Result<String, String> {
        let before = self.ticks.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let after = self.ticks.load(Ordering::SeqCst);
        if before == after {
            Ok(format!("runtime blocked, its ticker stands at {after}"))
        } else {
            Err(format!("the runtime runs: its ticker went from {before} to {after}"))
        }
    }

    pub(super) fn resume(&self) -> Result<(), String> {
        self.gate.send(()).map_err(|_| ended())
    }

    /// Ends the thread by closing its queue and waits until it has dropped its clients.
    pub(super) async fn end(mut self) -> Result<(), String> {
        // A thread that is still paused has to go on, to see the end of its queue.
        drop(self.gate);
        drop(self.requests);
        while self.replies.recv().await.is_some() {}
        Ok(())
    }
}

async fn serve(
    mut handler: Handler,
    mut incoming: mpsc::UnboundedReceiver<Request>,
    outlet: Outlet,
    gate_opens: blocking::Receiver<()>,
) {
    while let Some(request) = incoming.recv().await {
        let block = request.command == Command::Block;
        let reply = if block {
            let now = now_ns();
            Reply { id: request.id, began_ns: now, ended_ns: now, pid: std::process::id(), answer: Answer::Done }
        } else {
            handler.handle(request).await
        };
        if !outlet.say(Said::Answer(reply)) {
            return;
        }
        if block && gate_opens.recv().is_err() {
            return;
        }
    }
}

async fn tick(ticks: Arc<AtomicU64>) {
    loop {
        ticks.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn ended() -> String {
    "the worker's thread has ended; it may have panicked".into()
}
