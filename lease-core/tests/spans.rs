//! The documented spans, as a subscriber sees them: how long each thing took, what was inside of it, and what came of it.
#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is wrong")]

use lease_core::hold::{HoldOptions, Keeper, RunError, StaleBehaviour};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::{Fault, Scripted};
use lease_core::{LeaseBackend as _, ManualClock, Operation, Release};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

const TTL: Duration = Duration::from_secs(9);

/// What became of one span.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    /// The fields it was declared with, whether or not they have a value.
    declared: Vec<&'static str>,
    fields: String,
    parent: Option<&'static str>,
    /// By the clock of the test, not of the machine.
    begun_at: Duration,
    ended_at: Option<Duration>,
}

#[derive(Default)]
struct State {
    spans: Vec<Seen>,
    /// Those that the one thread of the test is in.
    inside: Vec<usize>,
    /// Each event's name, with the innermost span around it.
    events: Vec<(String, Option<&'static str>)>,
}

/// Keeps every span and event, for a runtime of one thread.
#[derive(Clone)]
struct Spans {
    state: Arc<Mutex<State>>,
    clock: ManualClock,
    begin: lease_core::BootInstant,
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

fn index(id: &Id) -> usize {
    usize::try_from(id.into_u64()).unwrap().checked_sub(1).unwrap()
}

impl Spans {
    fn on(clock: &ManualClock) -> Self {
        Self { state: Arc::default(), clock: clock.clone(), begin: clock.shared().now() }
    }

    fn now(&self) -> Duration {
        self.clock.shared().now().saturating_since(self.begin)
    }

    /// All of one name, in the order in which they began.
    fn of(&self, name: &str) -> Vec<Seen> {
        self.state.lock().unwrap().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// Each span that an event of this name was in; "" for none.
    fn around(&self, event: &str) -> Vec<&'static str> {
        let state = self.state.lock().unwrap();
        let of_name = state.events.iter().filter(|(name, _)| name == event);
        of_name.map(|(_, span)| span.unwrap_or_default()).collect()
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "leasehold"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = String::new();
        attributes.record(&mut Text(&mut fields));
        let mut state = self.state.lock().unwrap();
        let around = attributes.is_contextual().then(|| state.inside.last()).flatten();
        let parent = around.map(|&at| state.spans[at].name);
        let metadata = attributes.metadata();
        let declared = metadata.fields().iter().map(|field| field.name()).collect();
        state.spans.push(Seen {
            name: metadata.name(),
            declared,
            fields,
            parent,
            begun_at: self.now(),
            ended_at: None,
        });
        Id::from_u64(u64::try_from(state.spans.len()).unwrap())
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut Text(&mut self.state.lock().unwrap().spans[index(id)].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        let name = text.split("event=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
        let mut state = self.state.lock().unwrap();
        let around = state.inside.last().map(|&at| state.spans[at].name);
        state.events.push((name, around));
    }

    fn enter(&self, id: &Id) {
        self.state.lock().unwrap().inside.push(index(id));
    }

    fn exit(&self, id: &Id) {
        let left = self.state.lock().unwrap().inside.pop();
        assert_eq!(left, Some(index(id)), "spans are left in the reverse order in which they were entered");
    }

    fn try_close(&self, id: Id) -> bool {
        let now = self.now();
        self.state.lock().unwrap().spans[index(&id)].ended_at = Some(now);
        true
    }
}

struct Bench {
    clock: ManualClock,
    backend: Arc<Scripted>,
    keeper: Keeper,
}

impl Bench {
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        for _ in 0..30 {
            tokio::task::yield_now().await;
        }
    }
}

/// What a subscriber sees of `life`.
fn watch(life: impl AsyncFnOnce(Bench)) -> Spans {
    let clock = ManualClock::new();
    let spans = Spans::on(&clock);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tracing::subscriber::with_default(spans.clone(), || {
        runtime.block_on(async {
            let store = MemoryStore::on_clock(clock.shared()).unwrap();
            let backend = Arc::new(Scripted::new(Arc::new(MemoryBackend::on(store))));
            let keeper = Keeper::start(backend.clone()).unwrap();
            life(Bench { clock, backend, keeper }).await;
        });
    });
    spans
}

/// Held up for a second each: the attempt, a renewal, the release; work of a second.
async fn slow_life(bench: Bench) {
    let second = Duration::from_secs(1);
    let held_up = || Fault::Late(second);
    bench.backend.next(Operation::Acquire, held_up());
    let acquiring = async { bench.keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap() };
    let (guard, ()) = tokio::join!(acquiring, bench.pass(second));
    bench.backend.next(Operation::Renew, held_up());
    bench.pass(Duration::from_secs(3)).await;
    bench.pass(second).await;
    let work = guard.run(async |guard| {
        guard.permit(StaleBehaviour::Fenced).unwrap().committed();
        bench.pass(second).await;
        Ok::<_, std::io::Error>(())
    });
    work.await.unwrap();
    bench.backend.next(Operation::Release, held_up());
    let (released, ()) = tokio::join!(guard.release(), bench.pass(second));
    assert_eq!(released.unwrap(), Release::Released);
}

#[test]
fn each_span_lasts_as_long_as_what_it_stands_for_and_says_what_came_of_it() {
    let spans = watch(slow_life);
    for (name, parent, outcome, fields) in [
        ("acquire", None, "granted", &["resource", "token", "outcome"][..]),
        ("attempt", Some("acquire"), "granted", &["resource", "token", "outcome"]),
        ("renewal", None, "renewed", &["resource", "token", "outcome"]),
        ("work", None, "done", &["resource", "token", "outcome"]),
        ("release", None, "released", &["resource", "token", "outcome"]),
    ] {
        let all = spans.of(name);
        let [span] = all.as_slice() else { panic!("{name}: {all:#?}") };
        assert_eq!(span.ended_at, Some(span.begun_at + Duration::from_secs(1)), "{span:?}");
        assert_eq!((span.parent, span.declared.as_slice()), (parent, fields), "{span:?}");
        assert!(span.fields.contains("resource=r "), "{span:?}");
        assert!(span.fields.contains(&format!("outcome=\"{outcome}\"")), "{span:?}");
        assert!(span.fields.contains("token=\""), "{span:?}");
        assert!(!span.fields.contains("owner"), "{span:?}");
    }
    // What happens meanwhile is inside: the events, and what the store does for it.
    assert_eq!((spans.around("attempt"), spans.around("granted")), (vec!["attempt"], vec!["acquire"]));
    assert_eq!(spans.around("effect_committed"), ["work"]);
    assert_eq!(spans.around("released"), ["release"]);
    assert_eq!(spans.around("scripted_call"), ["attempt", "renewal", "release"]);
}

/// The other outcomes of each.
async fn bad_life(bench: Bench) {
    let acquire = async || bench.keeper.acquire("r", TTL, HoldOptions::default()).await;
    let guard = acquire().await.unwrap().unwrap();
    assert!(acquire().await.unwrap().is_none(), "it is held");
    bench.backend.next(Operation::Acquire, Fault::Refused);
    acquire().await.unwrap_err();
    bench.backend.next(Operation::Renew, Fault::Refused);
    bench.pass(Duration::from_secs(3)).await;
    assert!(matches!(guard.run(async |_| Err::<(), _>("broke")).await, Err(RunError::Work("broke"))));
    bench.backend.next(Operation::Release, Fault::Refused);
    guard.release().await.unwrap_err();
    bench.pass(TTL).await;

    let guard = acquire().await.unwrap().unwrap();
    let lost = guard.run(async |_| {
        bench.clock.advance(TTL);
        std::future::pending::<Result<(), &str>>().await
    });
    assert!(matches!(lost.await, Err(RunError::Lost(_))));
    drop(guard);
    bench.pass(Duration::ZERO).await;

    // The answer to its release is lost; the next try finds that it is done.
    let guard = acquire().await.unwrap().unwrap();
    bench.backend.next(Operation::Release, Fault::ReplyLost);
    drop(guard);
    bench.pass(Duration::ZERO).await;
    bench.pass(Duration::from_secs(1)).await;

    // Ended at the store, without the holder's knowing.
    let guard = acquire().await.unwrap().unwrap();
    bench.pass(Duration::ZERO).await;
    let _ended = bench.backend.release(&guard.lease()).await.unwrap();
    bench.pass(Duration::from_secs(3)).await;
    assert!(guard.loss().is_some());

    // Given up while the answer is missing: abandoned in the background.
    bench.backend.next(Operation::Acquire, Fault::SilentAfter);
    tokio::select! {
        biased;
        _ = acquire() => unreachable!("its answer never comes"),
        () = bench.pass(Duration::ZERO) => {}
    }
    bench.pass(Duration::ZERO).await;
}

#[test]
fn every_documented_outcome_is_seen() {
    let spans = watch(bad_life);
    let outcomes = |name: &str| -> BTreeSet<String> {
        let of = |span: &Seen| {
            span.fields.split("outcome=\"").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned)
        };
        spans.of(name).iter().map(|span| of(span).unwrap_or_default()).collect()
    };
    let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
    // One that was dropped has none.
    assert_eq!(outcomes("acquire"), set(&["", "failed", "granted", "held"]));
    assert_eq!(outcomes("attempt"), set(&["", "failed", "granted", "held"]));
    assert_eq!(outcomes("renewal"), set(&["failed", "lost"]));
    assert_eq!(outcomes("release"), set(&["failed", "not_held", "released"]));
    assert_eq!(outcomes("work"), set(&["failed", "lost"]));
    assert_eq!(outcomes("abandon"), set(&["done"]));
    let open = |name: &str| spans.of(name).iter().filter(|span| span.ended_at.is_none()).count();
    for name in ["acquire", "attempt", "renewal", "release", "work", "abandon"] {
        assert_eq!(open(name), 0, "{name}");
    }
}

/// While work, and a release, wait, another task of the same thread has its say.
async fn neighbours(bench: Bench) {
    let guard = bench.keeper.acquire("r", TTL, HoldOptions::default()).await.unwrap().unwrap();
    let neighbour = async || {
        for _ in 0..10 {
            tracing::info!(target: "leasehold", event = "elsewhere");
            tokio::task::yield_now().await;
        }
    };
    let work = guard.run(async |_| {
        bench.pass(Duration::ZERO).await;
        Ok::<_, std::io::Error>(())
    });
    let (done, ()) = tokio::join!(work, neighbour());
    done.unwrap();
    bench.backend.next(Operation::Release, Fault::Late(Duration::from_secs(1)));
    let (released, (), ()) = tokio::join!(guard.release(), neighbour(), bench.pass(Duration::from_secs(1)));
    assert_eq!(released.unwrap(), Release::Released);
}

#[test]
fn no_span_reaches_into_what_runs_meanwhile() {
    let spans = watch(neighbours);
    assert_eq!(spans.around("elsewhere"), vec![""; 20]);
}

#[test]
fn the_table_in_the_docs_has_each_span_with_its_outcomes() {
    let docs = include_str!("../src/hold/mod.rs");
    for row in [
        "| `acquire` | info | `granted`, `held`, `failed` |",
        "| `attempt` | debug | `granted`, `held`, `failed` |",
        "| `renewal` | debug | `renewed`, `lost`, `failed` |",
        "| `release` | info | `released`, `not_held`, `ended_cause_unknown`, `failed` |",
        "| `work` | info | `done`, `failed`, `lost` |",
        "| `abandon` | debug | `done`, `failed` |",
    ] {
        assert_eq!(docs.matches(row).count(), 1, "{row}");
    }
}
