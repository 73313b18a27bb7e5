//! Plays a scene: starts the workers, stops A, lets B work meanwhile, resumes A, and reads back what came of it.

use crate::books::Books;
use crate::payments::Payments;
use crate::said::Said;
use crate::scenes::{Count, OTHER_CENTS, Payment, Scene, Seen};
use crate::timeline::{Life, Paint, Timeline, Tone, Who, thousands};
use crate::worker::{Assignment, PAYMENTS, POSTGRES, REDIS};
use crate::{Failure, client, euros};
use lease_servers::{process_state, resume_process, stop_process};
use leasehold::ResourceName;
use leasehold::plain::IdempotencyKey;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Something that the director hears.
#[derive(Debug)]
pub(crate) enum Event {
    Said(Who, Said),
    /// A line that is none of those.
    Strange(Who, String),
    Ended(Who),
}

/// Why a scene has not come to its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A lease was lost before it was to be.
    TooBusy,
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// How long a worker may be silent. It is for one that hangs; a slow machine is faster than that.
const SILENCE: Duration = Duration::from_mins(2);

/// What all scenes are played with.
#[derive(Debug)]
pub(crate) struct Director {
    pub(crate) runtime: Runtime,
    pub(crate) books: Books,
    pub(crate) payments: Payments,
    redis: String,
    heard: Receiver<Event>,
    said: Sender<Event>,
    paint: Paint,
    invoices: u32,
}

impl Director {
    pub(crate) fn new(redis: &str, postgres: &str, paint: Paint) -> Result<Self, Failure> {
        // For the questions of the director; the API has a thread and a runtime of its own.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let books = runtime.block_on(Books::open(postgres))?;
        let (said, heard) = channel();
        let payments = Payments::start(books.payments_url()?, said.clone())?;
        Ok(Self { runtime, books, payments, redis: redis.to_owned(), heard, said, paint, invoices: 0 })
    }

    /// Plays a scene on a new invoice.
    pub(crate) fn play(&mut self, scene: &'static Scene, ttl: Duration) -> Result<Seen, Stop> {
        self.invoices = self.invoices.saturating_add(1);
        let invoice = format!("2026-12-{:04}", self.invoices);
        self.runtime.block_on(self.books.issue(&invoice))?;
        // Of a scene that was broken off.
        while self.heard.try_recv().is_ok() {}
        let (mut seen, mut line) = (Seen::default(), Timeline::begin(self.paint));
        let assignment =
            |name: &str| Assignment { name: name.into(), scene: scene.number, invoice: invoice.clone(), ttl };

        let mut a = self.start(&mut line, Who::A, &assignment("A"))?;
        self.hear(&mut line, Who::A, &mut seen, &Said::is_ready)?;
        let stopped = Instant::now();
        if !stop_process(a.child.id()) {
            return Err("A was gone before it could be stopped".into());
        }
        line.a = Life::Stopped;
        let state = process_state(a.child.id());
        line.tell(Who::Director, Tone::Plain, &format!("SIGSTOP to A: {}", witness(a.child.id(), state)));
        // From here on it is the signal alone that keeps A from going on.
        a.go_on()?;

        let b = self.start(&mut line, Who::B, &assignment("B"))?;
        self.hear(&mut line, Who::B, &mut seen, &Said::is_done)?;
        b.end()?;
        line.b = Life::Absent;

        let still = process_state(a.child.id());
        seen.states = [state, still];
        let for_ms = thousands(stopped.elapsed().as_millis());
        let what = format!("SIGCONT to A, after {for_ms} ms: {}", witness(a.child.id(), still));
        line.a = Life::Runs;
        line.tell(Who::Director, Tone::Plain, &what);
        if !resume_process(a.child.id()) {
            return Err("A was gone before it could be resumed".into());
        }
        self.hear(&mut line, Who::A, &mut seen, &Said::is_done)?;
        a.end()?;
        line.a = Life::Absent;

        if scene.payment == Payment::WithKey && seen.a.receipt == seen.b.receipt {
            let what = "the charge is the one that A made: first one wins, the stale one too, which is not fencing";
            line.tell(Who::Director, Tone::Plain, what);
        }
        if scene.payment == Payment::WithKey {
            seen.conflict = Some(self.ask_otherwise(&mut line, &invoice)?);
        }
        seen.books = self.read_back(&mut line, &invoice)?;
        Ok(seen)
    }

    fn start(&self, line: &mut Timeline, who: Who, assignment: &Assignment) -> Result<Worker, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(assignment.arguments())
            .env(REDIS, &self.redis)
            .env(POSTGRES, self.books.url())
            .env(PAYMENTS, self.payments.address().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let said = self.said.clone();
        let reader = std::thread::spawn(move || {
            // The director hears it as long as it lives.
            for text in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
                let event = Said::parse(&text).map_or(Event::Strange(who, text), |said| Event::Said(who, said));
                drop(said.send(event));
            }
            drop(said.send(Event::Ended(who)));
        });
        let state = if who == Who::A { &mut line.a } else { &mut line.b };
        *state = Life::Runs;
        line.tell(who, Tone::Faint, &format!("starts, as process {}", child.id()));
        Ok(Worker { child, stdin, reader: Some(reader) })
    }

    /// Writes what is heard into the timeline, until the worker has said what is waited for.
    fn hear(&self, line: &mut Timeline, who: Who, seen: &mut Seen, enough: &dyn Fn(&Said) -> bool) -> Result<(), Stop> {
        loop {
            let event = self.heard.recv_timeout(SILENCE).map_err(|_| format!("{who:?} says nothing any more"))?;
            let (from, said) = match event {
                Event::Said(from, said) => (from, said),
                Event::Strange(from, text) => return Err(format!("{from:?} says `{text}`").into()),
                Event::Ended(from) if from == who => {
                    return Err(format!("{from:?} has ended before it was done").into());
                }
                // B, which was done.
                Event::Ended(_) => continue,
            };
            let deeds = if from == Who::A { &mut seen.a } else { &mut seen.b };
            match &said {
                Said::Tell(tone, text) => line.tell(from, *tone, text),
                Said::Token(value) => deeds.token = Some(*value),
                Said::Receipt(number) => deeds.receipt = Some(*number),
                Said::Late => deeds.late = true,
                Said::Done(outcome) => deeds.outcome = Some(*outcome),
                Said::Lost => return Err(Stop::TooBusy),
                Said::Ready => {}
            }
            if from == who && enough(&said) {
                return Ok(());
            }
        }
    }

    /// Asks for another amount under the key that the workers had.
    fn ask_otherwise(&self, line: &mut Timeline, invoice: &str) -> Result<u16, Failure> {
        let key = IdempotencyKey::new(&ResourceName::parse(format!("invoices/{invoice}"))?, "charge")?;
        line.tell(Who::Director, Tone::Plain, &format!("asks for {} under the same key", euros(OTHER_CENTS)));
        let answer =
            self.runtime.block_on(client::charge(self.payments.address(), invoice, OTHER_CENTS, Some(&key)))?;
        while let Ok(event) = self.heard.try_recv() {
            if let Event::Said(Who::Payments, Said::Tell(tone, text)) = event {
                line.tell(Who::Payments, tone, &text);
            }
        }
        Ok(answer.status)
    }

    fn read_back(&mut self, line: &mut Timeline, invoice: &str) -> Result<Count, Failure> {
        let (bills, billed) = self.runtime.block_on(self.books.bills(invoice))?;
        let (charges, taken) = self.runtime.block_on(client::charges(self.payments.address(), invoice))?;
        let tone = |number| if number > 1 { Tone::Bad } else { Tone::Good };
        let text =
            format!("PostgreSQL has {bills} bill{}, {} in all", if bills == 1 { "" } else { "s" }, euros(billed));
        line.tell(Who::Director, tone(bills), &text);
        if charges > 0 {
            let times = if charges == 1 { "once" } else { "twice" };
            let text = format!("the payment API has charged the customer {times}, {} in all", euros(taken));
            line.tell(Who::Director, tone(charges), &text);
        }
        Ok(Count { bills, billed, charges, charged: taken })
    }
}

/// What `/proc` says of a process.
fn witness(pid: u32, state: Option<char>) -> String {
    let state = state.map_or_else(|| "nothing".into(), String::from);
    format!("/proc/{pid}/stat says {state}{}", if state == "T" { ", stopped" } else { "" })
}

/// A worker's process. Dropping it kills it, stopped or not.
#[derive(Debug)]
struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

impl Worker {
    fn go_on(&mut self) -> Result<(), Failure> {
        Ok(writeln!(self.stdin.as_mut().ok_or("A has no pipe")?, "go on")?)
    }

    fn end(mut self) -> Result<(), Failure> {
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a worker ended with {status}").into()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error means that it has ended by itself.
        drop(self.child.kill().and_then(|()| self.child.wait()));
        drop(self.reader.take().map(JoinHandle::join));
    }
}
