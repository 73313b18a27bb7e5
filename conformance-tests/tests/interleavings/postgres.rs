//! PostgreSQL: the guard in two sessions' transactions, at each isolation level.

use crate::explorer::{Actor, Watch, merges, run};
use crate::model::{Answer, FIRST, Found, NOBODY, Rule, SECOND, Step, Tally, judge};
use crate::scenes::{self, Scene};
use lease_core::{Advice, Authority, Effect, FencingToken, GuardError, GuardedDestination as _, ResourceName};
use lease_postgres::{PostgresDestination, PostgresGuard};
use lease_servers::{PostgresSetup, Server};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, Postgres, Row as _, Transaction};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// How a writer guards its transaction: by the crate's guard, or by one that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Crate,
    /// Looks at the mark without a lock, and raises it with the mutation.
    LooksFirst,
    /// Raises the mark in a transaction of its own after the commit.
    MarksLater,
}

/// Replacements in the text of the crate's statements.
type Edits = &'static [(&'static str, &'static str)];

/// One session with its program's state.
struct Session {
    number: usize,
    pool: PgPool,
    guard: PostgresGuard,
    how: Guard,
    destination: PostgresDestination,
    namespace: String,
    level: &'static str,
    token: FencingToken,
    resource: ResourceName,
    one_row: bool,
    transaction: Option<Transaction<'static, Postgres>>,
}

impl Session {
    async fn begin(&mut self) -> Result<(), Answer> {
        let begin = format!("BEGIN ISOLATION LEVEL {}", self.level);
        self.transaction = Some(self.pool.begin_with(AssertSqlSafe(begin)).await.map_err(|e| answer_of(&e))?);
        Ok(())
    }

    /// Runs SQL of the caller's own, with the namespace for `{s}`, the resource for `$1` and so on.
    async fn own(&mut self, sql: &str) -> Result<Option<i64>, Answer> {
        let sql = sql.replace("{s}", &self.namespace);
        let query = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(self.resource.as_str())
            .bind(i64::try_from(self.number).unwrap())
            .bind(self.token.value_i64())
            .bind(self.token.grant().to_hex());
        let transaction = self.transaction.as_mut().unwrap();
        query.fetch_optional(&mut **transaction).await.map_err(|e| answer_of(&e))
    }

    async fn read(&mut self) -> Result<(), Answer> {
        self.own("SELECT actor FROM {s}.content WHERE name = $1 AND $2 + $3 > 0 AND $4 <> ''").await.map(drop)
    }

    async fn write(&mut self) -> Result<(), Answer> {
        if self.how == Guard::LooksFirst {
            self.own(RAISE).await?;
        }
        if self.one_row {
            self.own("UPDATE {s}.content SET actor = $2 WHERE name = $1 AND $3 > 0 AND $4 <> ''").await?;
        }
        self.own("INSERT INTO {s}.landed (name, actor) SELECT $1, $2 WHERE $3 > 0 AND $4 <> ''").await.map(drop)
    }

    async fn admit(&mut self) -> Result<(), Answer> {
        if self.how == Guard::Crate {
            let transaction = self.transaction.as_mut().unwrap();
            return self.guard.admit(transaction, &self.resource, &self.token).await.map_err(|e| answer_of_guard(&e));
        }
        let newer = "SELECT m.value FROM {s}.mark m WHERE m.name = $1 AND m.value > $3 AND $2 >= 0 AND $4 <> ''";
        match self.own(newer).await? {
            None => Ok(()),
            Some(mark) => {
                let refusal =
                    lease_core::Refusal::Stale { presented: self.token.value(), mark: u64::try_from(mark).unwrap() };
                // As the broken guards of this kind do: the transaction has failed.
                self.transaction.take().unwrap().rollback().await.unwrap();
                self.begin().await?;
                drop(self.own("SELECT 1 / 0 + $2 + $3 WHERE $1 <> $4").await);
                Err(Answer::Refused(refusal))
            }
        }
    }

    async fn after(&mut self) -> Result<(), Answer> {
        if self.how != Guard::MarksLater {
            return Ok(());
        }
        self.begin().await?;
        self.own(RAISE).await?;
        self.commit().await
    }

    async fn commit(&mut self) -> Result<(), Answer> {
        self.transaction.take().unwrap().commit().await.map_err(|e| answer_of(&e))
    }

    async fn take(&mut self, step: Step) -> Result<(), Answer> {
        match step {
            Step::Begin => self.begin().await,
            Step::Read => self.read().await,
            Step::BeginRead => {
                self.begin().await?;
                self.read().await
            }
            Step::BeginAdmit => {
                self.begin().await?;
                self.admit().await
            }
            Step::Admit => self.admit().await,
            Step::Write => self.write().await,
            Step::Again => {
                self.admit().await?;
                self.write().await
            }
            Step::Commit => self.commit().await,
            Step::RollBack => self.transaction.take().unwrap().rollback().await.map_err(|e| answer_of(&e)),
            Step::After => self.after().await,
            Step::Seal => self.destination.seal(&self.resource, &self.token).await.map_err(|e| answer_of_guard(&e)),
            Step::Adopt => {
                let [old, new] = [FIRST, SECOND].map(|text| Authority::parse(text).unwrap());
                self.destination.adopt(Some(&old), &new).await.map_err(|e| answer_of_guard(&e))
            }
        }
    }
}

const RAISE: &str = "INSERT INTO {s}.mark AS m (name, authority, value, grant_id) SELECT $1, 'redis:1:0', $3, $4 WHERE $2 >= 0 \
     ON CONFLICT (name, authority) DO UPDATE SET value = greatest(m.value, EXCLUDED.value), \
     grant_id = CASE WHEN m.value > EXCLUDED.value THEN m.grant_id ELSE EXCLUDED.grant_id END";

fn answer_of(error: &sqlx::Error) -> Answer {
    match error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() {
        Some("40001" | "40P01") => Answer::TryAgain,
        Some("25P02") => Answer::Over,
        _ => Answer::Wrong(error.to_string()),
    }
}

fn answer_of_guard(error: &GuardError) -> Answer {
    match error {
        GuardError::Refused { refusal, .. } => Answer::Refused(refusal.clone()),
        GuardError::Store(store) if (store.effect(), store.advice()) == (Effect::None, Advice::TryAgain) => {
            Answer::TryAgain
        }
        GuardError::Store(store) if store.to_string().contains("25P02") || is_over(store) => Answer::Over,
        other => Answer::Wrong(other.to_string()),
    }
}

/// Whether the server said that the transaction had failed before.
fn is_over(error: &lease_core::LeaseError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
    source.is_some_and(|error| answer_of(error) == Answer::Over)
}

#[async_trait::async_trait]
impl Actor for Session {
    type Step = Step;
    type Answer = Answer;

    async fn step(&mut self, step: Step) -> Answer {
        self.take(step).await.err().unwrap_or(Answer::Done)
    }
}

/// Asks the server itself who waits for whom.
struct Blocked {
    admin: PgPool,
    /// The server's process for each actor.
    processes: Vec<i32>,
}

#[async_trait::async_trait]
impl Watch for Blocked {
    async fn is_blocked(&mut self, actor: usize) -> bool {
        sqlx::query_scalar("SELECT pg_blocking_pids($1) && $2::int[]")
            .bind(self.processes[actor])
            .bind(&self.processes)
            .fetch_one(&self.admin)
            .await
            .unwrap()
    }
}

/// What one series of schedules uses alone: a namespace, a session for each actor, and one that looks on.
struct Lane {
    namespace: String,
    admin: PgPool,
    pools: Vec<PgPool>,
    destination: PostgresDestination,
    processes: Vec<i32>,
    count: u64,
}

/// Longer than any machine is slow.
const PATIENCE: Duration = Duration::from_mins(5);

async fn one_session(server: &Server) -> PgPool {
    // Nothing may be sent on the session that the schedule does not send.
    PgPoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .acquire_timeout(PATIENCE)
        .connect(server.url())
        .await
        .unwrap()
}

impl Lane {
    async fn open(server: &Server, namespace: &str, edits: &[(&str, &str)]) -> Self {
        let url = format!(
            "{}?namespace={namespace}&call_timeout_ms=300000&connect_timeout_ms=300000&max_connections=1",
            server.url()
        );
        let destination = PostgresDestination::connect_edited(&url, edits).await.unwrap();
        destination.adopt(None, &Authority::parse(FIRST).unwrap()).await.unwrap();
        let admin = one_session(server).await;
        let tables = format!(
            "CREATE TABLE {namespace}.content (name text PRIMARY KEY, actor bigint);
             CREATE TABLE {namespace}.landed (name text, actor bigint); CREATE INDEX ON {namespace}.landed (name)"
        );
        sqlx::raw_sql(AssertSqlSafe(tables)).execute(&admin).await.unwrap();
        let mut lane = Self {
            namespace: namespace.into(),
            admin,
            pools: Vec::new(),
            destination,
            processes: Vec::new(),
            count: 0,
        };
        for _ in 0..2 {
            let pool = one_session(server).await;
            lane.processes.push(sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&pool).await.unwrap());
            lane.pools.push(pool);
        }
        // The destination's own session: its last statement was the adoption above.
        let own = format!(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%\"{namespace}\".trusted%' AND pid <> pg_backend_pid()"
        );
        lane.processes.push(sqlx::query_scalar(AssertSqlSafe(own)).fetch_one(&lane.admin).await.unwrap());
        lane
    }

    async fn sql(&self, text: &str) {
        sqlx::raw_sql(AssertSqlSafe(text.replace("{s}", &self.namespace))).execute(&self.admin).await.unwrap();
    }

    async fn play(&mut self, scene: &Scene, level: &'static str, how: Guard, schedule: &[usize], tally: &mut Tally) {
        self.count += 1;
        let name = format!("r{}", self.count);
        let mut prepare = format!("INSERT INTO {{s}}.content VALUES ('{name}', {NOBODY});");
        if let Some((value, grant)) = scene.base {
            let grant = grant.to_hex();
            write!(prepare, "INSERT INTO {{s}}.mark VALUES ('{name}', '{FIRST}', {value}, '{grant}');").unwrap();
        }
        if scene.tokens.len() > 2 || scene.name.starts_with("adopt") {
            write!(prepare, "UPDATE {{s}}.trusted SET authority = '{FIRST}';").unwrap();
        }
        self.sql(&prepare).await;
        let resource = ResourceName::parse(name).unwrap();
        let mut processes = Vec::new();
        let actors = scene.programs.iter().enumerate().map(|(number, program)| {
            let calls = program.iter().any(|step| matches!(step, Step::Adopt | Step::Seal));
            processes.push(self.processes[if calls { 2 } else { number }]);
            let session = Session {
                number,
                pool: self.pools[number.min(1)].clone(),
                guard: self.destination.guard(),
                how,
                destination: self.destination.clone(),
                namespace: self.namespace.clone(),
                level,
                token: scene.tokens[number].clone(),
                resource: resource.clone(),
                one_row: scene.one_row,
                transaction: None,
            };
            (session, program.clone())
        });
        let actors = actors.collect();
        let mut watch = Blocked { admin: self.admin.clone(), processes };
        let (actors, events) = run(actors, schedule, &mut watch).await;
        drop(actors);
        let found = self.found(&resource, scene.one_row).await;
        judge(&scene.ground(level != LEVELS[0]), events, &found, tally);
    }

    async fn found(&self, resource: &ResourceName, one_row: bool) -> Found {
        let sql = format!(
            "SELECT (SELECT actor FROM {0}.content WHERE name = $1), m.value, m.grant_id, \
                    (SELECT array_agg(actor) FROM {0}.landed WHERE name = $1) \
             FROM (SELECT) one LEFT JOIN {0}.mark m ON m.name = $1 AND m.authority = '{FIRST}'",
            self.namespace
        );
        let row = sqlx::query(AssertSqlSafe(sql)).bind(resource.as_str()).fetch_one(&self.admin).await.unwrap();
        let number = |n: i64| usize::try_from(n).unwrap();
        let mut found = Found { content: one_row.then(|| number(row.get(0))), ..Found::default() };
        let value: Option<i64> = row.get(1);
        found.mark = value.map(|value| {
            let grant: String = row.get(2);
            (u64::try_from(value).unwrap(), lease_core::GrantId::from_hex(&grant).unwrap())
        });
        for actor in row.get::<Option<Vec<i64>>, _>(3).unwrap_or_default() {
            *found.landed.entry(number(actor)).or_default() += 1;
        }
        found
    }
}

/// A server that need not keep anything: what is asked here is who waits for whom.
fn server() -> Arc<Server> {
    let settings = [("fsync", "off"), ("full_page_writes", "off"), ("autovacuum", "off")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Arc::new(lease_servers::postgres(&PostgresSetup { settings }).unwrap())
}

/// Plays all schedules of the scenes, in several lanes beside one another.
async fn explore(
    server: &Arc<Server>,
    label: &str,
    edits: Edits,
    how: Guard,
    scenes: Vec<Scene>,
    levels: &'static [&'static str],
) -> Tally {
    const LANES: usize = 8;
    let scenes = Arc::new(scenes);
    let mut lanes = tokio::task::JoinSet::new();
    for number in 0..LANES {
        let (server, scenes) = (Arc::clone(server), Arc::clone(&scenes));
        let namespace = format!("{label}{number}");
        lanes.spawn(async move {
            let mut lane = Lane::open(&server, &namespace, edits).await;
            let mut tally = Tally::default();
            for scene in scenes.iter() {
                for level in levels {
                    for schedule in merges(&scene.lengths()).iter().skip(number).step_by(LANES) {
                        lane.play(scene, level, how, schedule, &mut tally).await;
                    }
                }
            }
            tally
        });
    }
    let mut all = Tally::default();
    while let Some(tally) = lanes.join_next().await {
        all.add(tally.unwrap());
    }
    all
}

async fn is_right_at(levels: &'static [&'static str]) -> Tally {
    let begun = std::time::Instant::now();
    let tally = explore(&server(), "honest", &[], Guard::Crate, scenes::all(), levels).await;
    println!("postgres, {levels:?}: {tally} in {:?}", begun.elapsed());
    tally.assert_honest();
    tally
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_right_in_every_interleaving_at_read_committed() {
    let tally = is_right_at(&LEVELS[..1]).await;
    assert_eq!(tally.try_again, 0, "{tally}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_right_in_every_interleaving_at_repeatable_read() {
    let tally = is_right_at(&LEVELS[1..2]).await;
    assert!(tally.try_again > 0, "no transaction met a newer one: {tally}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_right_in_every_interleaving_at_serializable() {
    let tally = is_right_at(&LEVELS[2..]).await;
    assert!(tally.try_again > 0, "no transaction met a newer one: {tally}");
}

const STALE: &[Rule] = &[Rule::StaleLanded];
/// Some say that the transaction cannot go on, without a reason that the token gives.
const REFUSED: &[Rule] = &[Rule::RefusedWrongly, Rule::WrongAnswer, Rule::FailedAlone];

/// Without the lock on the trusted authority, `adopt` and a writer pass each other.
const UNLOCKED_ADOPT: Edits = &[(" FOR KEY SHARE", ""), ("FROM {s}.trusted t FOR UPDATE", "FROM {s}.trusted t")];
/// The mark is compared with what the statement saw when it began, not with the row that it has locked.
const SNAPSHOT: Edits = &[(
    "WHERE m.value < EXCLUDED.value OR",
    "WHERE NOT EXISTS (SELECT FROM {s}.mark x WHERE x.name = $1 AND x.value > $4) OR",
)];

const EQUAL: Edits = &[(" AND m.grant_id = EXCLUDED.grant_id)", ")")];
const SECOND_WRITE: Edits = &[(" OR (m.value = EXCLUDED.value AND m.grant_id = EXCLUDED.grant_id)", "")];
const SWALLOWED: Edits = &[("ELSE {s}.refuse_guard($1) END", "ELSE '' END")];
const FORGETS: Edits = &[("WHERE m.value < EXCLUDED.value OR", "WHERE true OR")];

/// One sabotage: its name, the edits of the statements, the guard, where it is looked for, and what has to be found.
type Saboteur = (&'static str, Edits, Guard, Vec<Scene>, &'static [Rule]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_saboteurs_are_found() {
    let server = server();
    let rc = &LEVELS[..1];
    let stale = || vec![scenes::both_commit(), scenes::both_commit().with_base()];
    let after = || vec![scenes::both_commit().with_after()];
    let conflict = || vec![scenes::conflict()];
    let saboteurs: [Saboteur; 8] = [
        ("snapshot", SNAPSHOT, Guard::Crate, stale(), STALE),
        ("looks", &[], Guard::LooksFirst, stale(), STALE),
        ("later", &[], Guard::MarksLater, after(), STALE),
        ("equal", EQUAL, Guard::Crate, conflict(), STALE),
        ("second", SECOND_WRITE, Guard::Crate, stale(), REFUSED),
        ("swallowed", SWALLOWED, Guard::Crate, stale(), STALE),
        ("forgets", FORGETS, Guard::Crate, stale(), STALE),
        ("adopt", UNLOCKED_ADOPT, Guard::Crate, scenes::adopted(), STALE),
    ];
    for (name, edits, how, scenes, rules) in saboteurs {
        let tally = explore(&server, name, edits, how, scenes, rc).await;
        println!("postgres saboteur `{name}`: {tally}");
        tally.assert_found(rules);
    }
    // The twin of those that need the step after the commit; the others' twins are in the test above.
    let twin = explore(&server, "twin", &[], Guard::Crate, after(), &LEVELS).await;
    assert!(twin.broken.is_empty(), "{twin}");
}
