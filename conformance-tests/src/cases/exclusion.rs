//! One holder at a time, whoever asks.

use super::{Case, case};
use crate::context::{CaseResult, Stage, Stop, acquire, acquire_with, ensure, evidence, is_held, now, release, renew};
use crate::judge::Rule;
use crate::worker::{Answer, Command, Worker};
use lease_core::{Acquisition, Attempt, Claim, FenceError, HolderLabel, Lease, LeaseBackend, Release, Renewal};
use tokio::task::JoinSet;

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        second_client,
        Rule::Core,
        "exclusion/second-client",
        "A second client does not get a lease that is held.",
        "One client acquires; another tries the same resource and must be told `Held`. After the release it gets it."
    ),
    case!(
        Together,
        same_client,
        Rule::Core,
        "exclusion/same-client",
        "A lease is not re-entrant: the same client does not get it twice.",
        "One client acquires twice, with two attempts. The second answer must be `Held`."
    ),
    case!(
        Together,
        same_label,
        Rule::Core,
        "exclusion/same-label",
        "The holder's label is no identity.",
        "Two clients and two attempts with one label; the second one must be told `Held`."
    ),
    case!(
        Together,
        refused_can_do_nothing,
        Rule::Core,
        "exclusion/refused-attempt-can-do-nothing",
        "An attempt that was told `Held` has no right to anything, whatever its caller makes of it.",
        "One client holds; another one, with the same label, is told `Held` and goes on as if it had been granted the lease, with the holder's own value. Its renewal must be `Lost`, its release `NotHeld`, the store's own fence must refuse its write, and the holder must still hold and renew."
    ),
    case!(
        Together,
        racing,
        Rule::Core,
        "exclusion/racing",
        "Of attempts that race, exactly one is granted.",
        "Several clients send attempts at the same moment, round after round. Each round must have one grant, and no two grants may overlap."
    ),
    case!(
        Together,
        across_processes,
        Rule::Claim(Claim::CrossProcess),
        "exclusion/across-processes",
        "Separate processes exclude each other.",
        "A worker process holds a lease; this process and a second worker process must be told `Held`, and get it after the release."
    ),
];

async fn second_client(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let held = acquire(&a, &resource, stage.run.long()).await?;
    ensure!(is_held(&b, &resource, stage.run.long()).await?, "a second client was granted a lease that is held");
    release(&a, &held).await?;
    release(&b, &acquire(&b, &resource, stage.run.long()).await?).await?;
    Ok(evidence! {})
}

async fn same_client(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let resource = stage.resource("r")?;
    let held = acquire(&client, &resource, stage.run.long()).await?;
    for _ in 0..2 {
        ensure!(is_held(&client, &resource, stage.run.long()).await?, "the same client was granted the lease twice");
    }
    release(&client, &held).await?;
    Ok(evidence! {})
}

async fn same_label(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let labelled = || -> Result<Attempt, Stop> {
        Ok(Attempt::new(resource.clone(), stage.run.long())?.held_by(HolderLabel::parse("one label")?))
    };
    let Acquisition::Acquired(held) = a.acquire(&labelled()?).await? else {
        return Err(Stop::Refuted("a new resource was not free".into()));
    };
    for client in [&a, &b] {
        ensure!(
            matches!(client.acquire(&labelled()?).await?, Acquisition::Held(_)),
            "an attempt with the holder's label was granted a lease that is held"
        );
    }
    release(&a, &held).await?;
    Ok(evidence! {})
}

async fn refused_can_do_nothing(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let resource = stage.resource("r")?;
    let labelled = || -> Result<Attempt, Stop> {
        Ok(Attempt::new(resource.clone(), stage.run.long())?.held_by(HolderLabel::parse("one label")?))
    };
    let held = acquire_with(&a, &labelled()?).await?;
    let refused = labelled()?;
    let answer = b.acquire(&refused).await?;
    ensure!(matches!(answer, Acquisition::Held(_)), "a second client was granted a lease that is held");
    let token = held.token().map(|token| refused.token(token.authority().clone(), token.value())).transpose()?;
    let forged = Lease::granted(&refused, token, held.granted_ttl(), now(), b.clock());
    let renewal = b.renew(&forged).await?;
    ensure!(matches!(renewal, Renewal::Lost(_)), "an attempt that was refused was renewed: {renewal:?}");
    let fence = b.fence().name();
    if let Some(register) = b.fence().register() {
        let answer = register.write(&forged, "forged").await;
        ensure!(
            matches!(answer, Err(FenceError::Refused { .. })),
            "a write of an attempt that was refused was answered by {answer:?}"
        );
    }
    let answer = b.release(&forged).await?;
    ensure!(answer == Release::NotHeld, "the release of an attempt that was refused was answered by {answer:?}");
    let held = renew(&a, &held).await?;
    ensure!(is_held(&b, &resource, stage.run.long()).await?, "an attempt that was refused freed the holder's resource");
    release(&a, &held).await?;
    Ok(evidence! { "fence": fence })
}

/// How many rounds of racing attempts, and how many attempts in each.
const ROUNDS: u32 = 10;
const RACERS: usize = 6;

async fn racing(stage: Stage) -> CaseResult {
    let clients = [stage.client().await?, stage.client().await?, stage.client().await?];
    let resource = stage.resource("r")?;
    for round in 0..ROUNDS {
        let mut racers = JoinSet::new();
        for client in clients.iter().cycle().take(RACERS) {
            let (client, attempt) = (client.clone(), Attempt::new(resource.clone(), stage.run.long())?);
            racers.spawn(async move { (client.acquire(&attempt).await, client) });
        }
        let mut granted = Vec::new();
        while let Some(joined) = racers.join_next().await {
            let (answer, client) = joined.map_err(|e| Stop::Refuted(format!("a racer panicked: {e}")))?;
            if let Acquisition::Acquired(lease) = answer? {
                granted.push((client, lease));
            }
        }
        ensure!(granted.len() == 1, "round {round}: {} of {RACERS} racing attempts were granted", granted.len());
        for (client, lease) in granted {
            release(&client, &lease).await?;
        }
    }
    Ok(evidence! { "rounds": ROUNDS, "racers_at_once": RACERS })
}

async fn across_processes(stage: Stage) -> CaseResult {
    let run = &stage.run;
    let (Some(program), Some(url)) = (&run.program, run.subject.worker_url()) else {
        if run.subject.lives_in_process() {
            return Err(Stop::Refuted("the store lives in one process; no other can reach it".into()));
        }
        return Err(Stop::NotTried(
            "it takes a worker program (`Suite::worker_program`) and a URL (`Subject::worker_url`)".into(),
        ));
    };
    let hindered = Stop::NotTried;
    let mut holder = Worker::process(program).map_err(hindered)?;
    let mut other = Worker::process(program).map_err(hindered)?;
    for worker in [&mut holder, &mut other] {
        worker.call(Command::Connect { url: url.clone() }).await.map_err(hindered)?;
    }
    let here = stage.client().await?;
    let resource = stage.resource("r")?;
    let command = || Command::Acquire {
        lease: "lease".into(),
        resource: resource.as_str().into(),
        ttl_ms: run.long().as_millis(),
    };
    let granted = |answer: &Answer| matches!(answer, Answer::Acquired { .. });
    let first = holder.call(command()).await.map_err(hindered)?;
    ensure!(granted(&first.answer), "a new resource was not free: {:?}", first.answer);
    let second = other.call(command()).await.map_err(hindered)?;
    ensure!(second.answer == Answer::Held, "another process was not told `Held`: {:?}", second.answer);
    ensure!(
        is_held(&here, &resource, run.long()).await?,
        "this process was granted a lease that another process holds"
    );
    let release = || Command::Release { lease: "lease".into() };
    holder.call(release()).await.map_err(hindered)?;
    let second = other.call(command()).await.map_err(hindered)?;
    ensure!(granted(&second.answer), "after the release another process got {:?}", second.answer);
    other.call(release()).await.map_err(hindered)?;
    let pids = (holder.pid(), other.pid());
    holder.end().await.map_err(hindered)?;
    other.end().await.map_err(hindered)?;
    Ok(evidence! { "pid_holder": pids.0, "pid_other": pids.1, "pid_here": std::process::id() })
}
