//! The schedule explorer: every merge of the steps of a few actors, forced one by one, also where a step has to wait for another actor.

use std::fmt::Debug;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Who takes part: it carries out one step at a time.
#[async_trait::async_trait]
pub(crate) trait Actor: Send + Sized + 'static {
    type Step: Copy + Debug + Send + 'static;
    type Answer: Debug + Send + 'static;
    async fn step(&mut self, step: Self::Step) -> Self::Answer;
}

/// Who can tell whether an actor's step waits for another actor. It asks the store; time proves nothing.
#[async_trait::async_trait]
pub(crate) trait Watch: Send {
    async fn is_blocked(&mut self, actor: usize) -> bool;
}

/// An answer, in the order in which the answers came.
pub(crate) struct Event<A: Actor> {
    pub(crate) actor: usize,
    pub(crate) step: A::Step,
    pub(crate) answer: A::Answer,
    /// How many answers there were when the step was sent.
    pub(crate) sent: usize,
    /// Whether it had to wait for another actor.
    pub(crate) waited: bool,
    /// Which turn brought it. Of two that had waited and were answered in the same turn, it is not known which the store served first.
    pub(crate) turn: usize,
}

/// All merges of sequences of these lengths, each as the order in which the sequences move.
pub(crate) fn merges(lengths: &[usize]) -> Vec<Vec<usize>> {
    fn go(left: &mut [usize], so_far: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if left.iter().all(|n| *n == 0) {
            all.push(so_far.clone());
        }
        for actor in 0..left.len() {
            if left[actor] > 0 {
                left[actor] -= 1;
                so_far.push(actor);
                go(left, so_far, all);
                so_far.pop();
                left[actor] += 1;
            }
        }
    }
    let mut all = Vec::new();
    go(&mut lengths.to_vec(), &mut Vec::new(), &mut all);
    all
}

/// An actor, its program, and how far it is.
struct Side<A: Actor> {
    program: Vec<A::Step>,
    next: usize,
    state: State<A>,
}

enum State<A: Actor> {
    Idle(A),
    Under {
        task: JoinHandle<(A, A::Answer)>,
        sent: usize,
        waited: bool,
    },
    /// Only within a transition.
    Gone,
}

impl<A: Actor> Side<A> {
    fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    fn is_over(&self) -> bool {
        self.next == self.program.len()
    }
}

/// Carries out one schedule and gives the actors back. A step that has to wait is left waiting while the others go on; the turns of an actor that
/// waits are made up for later.
pub(crate) async fn run<A: Actor>(
    actors: Vec<(A, Vec<A::Step>)>,
    schedule: &[usize],
    watch: &mut impl Watch,
) -> (Vec<A>, Vec<Event<A>>) {
    let mut sides: Vec<_> =
        actors.into_iter().map(|(actor, program)| Side { program, next: 0, state: State::Idle(actor) }).collect();
    let mut events = Vec::new();
    for &actor in schedule {
        turn(&mut sides, actor, watch, &mut events).await;
    }
    while let Some(actor) = (0..sides.len()).find(|i| sides[*i].is_idle() && !sides[*i].is_over()) {
        turn(&mut sides, actor, watch, &mut events).await;
    }
    let mut actors = Vec::new();
    for side in &mut sides {
        match std::mem::replace(&mut side.state, State::Gone) {
            State::Idle(actor) => actors.push(actor),
            State::Under { .. } | State::Gone => panic!("somebody waits when everybody else is through"),
        }
    }
    (actors, events)
}

async fn turn<A: Actor>(sides: &mut [Side<A>], actor: usize, watch: &mut impl Watch, events: &mut Vec<Event<A>>) {
    let side = &mut sides[actor];
    if side.is_idle() && !side.is_over() {
        let step = side.program[side.next];
        let State::Idle(mut owner) = std::mem::replace(&mut side.state, State::Gone) else { return };
        let task = tokio::spawn(async move {
            let answer = owner.step(step).await;
            (owner, answer)
        });
        side.state = State::Under { task, sent: events.len(), waited: false };
        let begun = events.len();
        settle(sides, actor, begun, watch, events).await;
        // What it did may have let others go on; whoever waited longest is first.
        let mut waiting: Vec<_> = (0..sides.len()).filter(|i| !sides[*i].is_idle()).collect();
        waiting.sort_by_key(|i| match &sides[*i].state {
            State::Under { sent, .. } => *sent,
            _ => 0,
        });
        for other in waiting {
            settle(sides, other, begun, watch, events).await;
        }
    }
}

/// Returns when the actor's step has been answered, or is known to wait.
async fn settle<A: Actor>(
    sides: &mut [Side<A>],
    actor: usize,
    turn: usize,
    watch: &mut impl Watch,
    events: &mut Vec<Event<A>>,
) {
    let side = &mut sides[actor];
    let State::Under { task, sent, waited } = &mut side.state else { return };
    let (owner, answer) = loop {
        // The time-out is only how often the store is asked; what decides is its answer.
        if let Ok(answered) = tokio::time::timeout(ASK_EVERY, &mut *task).await {
            break answered.unwrap();
        }
        if watch.is_blocked(actor).await {
            *waited = true;
            return;
        }
    };
    events.push(Event { actor, step: side.program[side.next], answer, sent: *sent, waited: *waited, turn });
    side.state = State::Idle(owner);
    side.next += 1;
}

const ASK_EVERY: Duration = Duration::from_millis(1);
