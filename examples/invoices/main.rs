//! Two workers bill the same invoice under a lease in Redis, one of them stopped past its TTL: what becomes of the bill in PostgreSQL, and
//! of the payment at an API that no guard reaches.
//!
//! ```text
//! cargo run -p leasehold --example invoices --features redis,postgres
//! ```
//!
//! Nothing is played: the servers are private ones that it starts and ends itself, each worker is a process (this program, started as
//! `invoices worker …`), A is stopped by SIGSTOP, and the payments are asked for over HTTP. Each scene is judged by what PostgreSQL and the API have at
//! the end; when one does not show what it says, the exit status is 1.
//!
//! | file | what it has |
//! |---|---|
//! | `worker` | the part to copy: lease, seal, payment with its key, guarded transaction |
//! | `payments` | the API, with idempotency keys |
//! | `scenes` | the four scenes, and what has to be seen in each |
//! | `director` | starts, stops and resumes the workers |

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the timeline is what this program is for")]

mod books;
mod client;
mod director;
mod payments;
mod said;
mod scenes;
mod table;
mod timeline;
mod worker;

use director::{Director, Stop};
use lease_servers::{Kind, PostgresSetup, RedisSetup, Server, missing_package};
use scenes::{SCENES, Scene, Seen};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use timeline::Paint;

type Failure = Box<dyn Error + Send + Sync>;

/// Of the first try of a scene.
const TTL: Duration = Duration::from_secs(2);
/// Of a scene, each with twice the TTL of the one before.
const TRIES: u8 = 3;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let outcome = match arguments.next().as_deref() {
        None => all_scenes(),
        Some("worker") => worker::main(arguments),
        Some(other) => Err(format!("what is `{other}`? This example takes no arguments").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all_scenes() -> Result<(), Failure> {
    let paint = Paint::for_stdout();
    println!("starting a private Redis and a private PostgreSQL …\n");
    let (redis, postgres) = servers()?;
    let mut director = Director::new(redis.url(), postgres.url(), paint)?;
    println!("Leases in Redis {}, with a TTL of {} ms", redis.version(), TTL.as_millis());
    println!("Bills in PostgreSQL {}, in the workers' own transactions", postgres.version());
    println!("Payments by HTTP at {}, where idempotency keys are kept for 24 hours", director.payments.address());
    println!("┃ the worker runs   ┊ it is stopped   · the director, who starts, stops and resumes them");

    let mut shown = Vec::new();
    for scene in &SCENES {
        println!("\n{}", paint.strong(&format!("{}  {}", scene.number, scene.title)));
        println!("   {}\n", scene.subtitle);
        let seen = play(&mut director, scene)?;
        scene.judge(&seen).map_err(|why| format!("scene {} does not show what it says: {why}", scene.number))?;
        shown.push((scene, seen.books));
    }
    table::print(&shown, paint);
    Ok(())
}

/// Plays a scene, again with a longer TTL where this machine was too busy for the one before: a lease that is lost before A is stopped shows nothing.
fn play(director: &mut Director, scene: &'static Scene) -> Result<Seen, Failure> {
    let mut ttl = TTL;
    for _ in 0..TRIES {
        match director.play(scene, ttl) {
            Ok(seen) => return Ok(seen),
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::TooBusy) => ttl = ttl.saturating_mul(2),
        }
        println!("   a lease was lost before its time: this machine stands still; again with {} ms\n", ttl.as_millis());
    }
    Err("this machine stands still for longer than the longest TTL that was tried".into())
}

/// Private servers, which end with their handles.
fn servers() -> Result<(Server, Server), Failure> {
    let missing: Vec<_> = [Kind::Redis, Kind::Postgres].into_iter().filter_map(missing_package).collect();
    if !missing.is_empty() {
        return Err(format!("a server is not installed; Debian has it: apt-get install {}", missing.join(" ")).into());
    }
    let redis = std::thread::spawn(|| lease_servers::redis(&RedisSetup::default()));
    let postgres = lease_servers::postgres(&PostgresSetup::default())?;
    let redis = redis.join().map_err(|_| "the thread that starts Redis has panicked")??;
    Ok((redis, postgres))
}

/// An amount in words.
fn euros(cents: i64) -> String {
    format!("{}.{:02} EUR", cents.checked_div(100).unwrap_or_default(), cents.checked_rem(100).unwrap_or_default())
}
