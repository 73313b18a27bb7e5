//! SQLite: the guard in two connections' transactions on one file. The lock on the file makes many of them wait.

use crate::explorer::{Actor, Watch, merges, run};
use crate::model::{Answer, FIRST, Found, NOBODY, Rule, SECOND, Step, Tally, judge};
use crate::scenes::{self, Scene};
use lease_core::{
    Advice, Authority, Effect, FencingToken, GrantId, GuardError, GuardedDestination as _, Refusal, ResourceName,
};
use lease_sqlite::{GuardedTransaction, SqliteDestination};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _, SqliteConnection};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a writer guards its transaction: by the crate's guard, or by one that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Crate,
    /// Looks at the mark in one transaction, writes and marks in another.
    LooksFirst,
    /// Raises the mark in a transaction of its own after the commit.
    MarksLater,
}

/// Who has the file's write lock inside a transaction, and who asks for it.
#[derive(Debug, Default)]
struct Lock {
    holder: Option<usize>,
    asking: BTreeSet<usize>,
}

type SharedLock = Arc<Mutex<Lock>>;

/// One connection's worth of a program.
struct Session {
    number: usize,
    destination: SqliteDestination,
    plain: SqliteConnection,
    how: Guard,
    token: FencingToken,
    resource: ResourceName,
    one_row: bool,
    open: Option<GuardedTransaction>,
    /// What a broken guard has still to write; `None` after its refusal.
    pending: Option<u64>,
    lock: SharedLock,
}

const CHECK: &str = "SELECT value FROM leasehold_mark WHERE resource = ?1 AND value > ?3 AND ?2 >= 0 AND ?4 <> ''";
const RAISE: &str = "INSERT INTO leasehold_mark (resource, authority, value, grant_id) SELECT ?1, 'redis:1:0', ?3, ?4 WHERE ?2 >= 0 \
     ON CONFLICT (resource, authority) DO UPDATE SET value = excluded.value, grant_id = excluded.grant_id \
     WHERE excluded.value > leasehold_mark.value";
const LAND: &str = "INSERT INTO landed (name, actor) SELECT ?1, ?2 WHERE ?3 > 0 AND ?4 <> ''";
const OVERWRITE: &str = "UPDATE content SET actor = ?2 WHERE name = ?1 AND ?3 > 0 AND ?4 <> ''";
const LOOK: &str = "SELECT actor FROM content WHERE name = ?1 AND ?2 + ?3 > 0 AND ?4 <> ''";

impl Session {
    async fn own(&mut self, sql: &'static str) -> Result<Option<i64>, Answer> {
        let (name, actor) = (self.resource.as_str().to_owned(), i64::try_from(self.number).unwrap());
        let connection = self.open.as_deref_mut().unwrap_or(&mut self.plain);
        let query = sqlx::query_scalar(sql);
        let query = query.bind(name).bind(actor).bind(self.token.value_i64()).bind(self.token.grant().to_hex());
        query.fetch_optional(connection).await.map_err(|e| Answer::Wrong(e.to_string()))
    }

    async fn admit(&mut self) -> Result<(), Answer> {
        if self.how == Guard::Crate {
            let begun = self.destination.guard().begin(&self.resource, &self.token).await;
            self.open = Some(begun.map_err(|e| answer_of(&e))?);
            self.lock.lock().unwrap().holder = Some(self.number);
            return Ok(());
        }
        if let Some(mark) = self.own(CHECK).await? {
            let mark = u64::try_from(mark).unwrap();
            return Err(Answer::Refused(Refusal::Stale { presented: self.token.value(), mark }));
        }
        self.pending = Some(0);
        Ok(())
    }

    async fn write(&mut self) -> Result<(), Answer> {
        if self.how != Guard::Crate {
            let pending = self.pending.as_mut().ok_or(Answer::Over)?;
            *pending += 1;
            return Ok(());
        }
        if self.open.is_none() {
            return Err(Answer::Over);
        }
        if self.one_row {
            self.own(OVERWRITE).await?;
        }
        self.own(LAND).await.map(drop)
    }

    async fn commit(&mut self) -> Result<(), Answer> {
        if self.how != Guard::Crate {
            let writes = self.pending.take().ok_or(Answer::Over)?;
            self.plain_sql("BEGIN IMMEDIATE").await;
            for _ in 0..writes {
                self.own(LAND).await?;
            }
            if self.how == Guard::LooksFirst {
                self.own(RAISE).await?;
            }
            self.plain_sql("COMMIT").await;
            return Ok(());
        }
        let open = self.open.take().ok_or(Answer::Over)?;
        let answer = open.commit().await.map_err(|e| answer_of(&e));
        self.let_go();
        answer
    }

    /// Whoever waited may have the lock by now, and have said so.
    fn let_go(&self) {
        let mut lock = self.lock.lock().unwrap();
        lock.holder = lock.holder.filter(|holder| *holder != self.number);
    }

    async fn plain_sql(&mut self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.plain).await.unwrap();
    }

    async fn take(&mut self, step: Step) -> Result<(), Answer> {
        match step {
            Step::Read | Step::BeginRead => self.own(LOOK).await.map(drop),
            Step::Begin => Ok(()),
            Step::Admit | Step::BeginAdmit => self.admit().await,
            Step::Write | Step::Again => self.write().await,
            Step::Commit => self.commit().await,
            Step::RollBack => {
                self.open.take().ok_or(Answer::Over)?.rollback().await;
                self.let_go();
                Ok(())
            }
            Step::After => {
                if self.how == Guard::MarksLater {
                    self.own(RAISE).await?;
                }
                Ok(())
            }
            Step::Seal => self.destination.seal(&self.resource, &self.token).await.map_err(|e| answer_of(&e)),
            Step::Adopt => {
                let [old, new] = [FIRST, SECOND].map(|text| Authority::parse(text).unwrap());
                self.destination.adopt(Some(&old), &new).await.map_err(|e| answer_of(&e))
            }
        }
    }
}

fn answer_of(error: &GuardError) -> Answer {
    match error {
        GuardError::Refused { refusal, .. } => Answer::Refused(refusal.clone()),
        other => Answer::Wrong(other.to_string()),
    }
}

#[async_trait::async_trait]
impl Actor for Session {
    type Step = Step;
    type Answer = Answer;

    async fn step(&mut self, step: Step) -> Answer {
        if matches!(step, Step::Admit | Step::BeginAdmit | Step::Seal | Step::Adopt) {
            self.lock.lock().unwrap().asking.insert(self.number);
        }
        let answer = self.take(step).await.err().unwrap_or(Answer::Done);
        self.lock.lock().unwrap().asking.remove(&self.number);
        answer
    }
}

/// Asks SQLite for the lock, without any patience, on a connection of its own.
struct Busy {
    lock: SharedLock,
    probe: SqliteConnection,
    impatient: SqliteDestination,
    /// Whether the guard itself has said so too in this schedule.
    said: bool,
    token: FencingToken,
}

#[async_trait::async_trait]
impl Watch for Busy {
    async fn is_blocked(&mut self, actor: usize) -> bool {
        let held = {
            let lock = self.lock.lock().unwrap();
            lock.asking.contains(&actor) && lock.holder.is_some_and(|holder| holder != actor)
        };
        if !held {
            return false;
        }
        let error = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut self.probe).await.unwrap_err();
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        assert_eq!(code.as_deref(), Some("5"), "SQLITE_BUSY: {error}");
        if !self.said {
            self.said = true;
            let begun = self.impatient.guard().begin(&ResourceName::parse("other").unwrap(), &self.token).await;
            match begun {
                Err(GuardError::Store(error)) => {
                    assert_eq!((error.effect(), error.advice()), (Effect::None, Advice::TryAgain), "{error}");
                }
                other => panic!("somebody has the lock: {other:?}"),
            }
        }
        true
    }
}

/// A file, and who works on it.
struct Lane {
    destinations: Vec<SqliteDestination>,
    impatient: Option<SqliteDestination>,
    plain: Vec<SqliteConnection>,
    admin: SqliteConnection,
    probe: Option<SqliteConnection>,
    count: u64,
}

async fn plain(path: &Path, patience: Duration) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true).busy_timeout(patience);
    options.connect().await.unwrap()
}

impl Lane {
    async fn open(path: &Path, edits: &[(&str, &str)]) -> Self {
        let url = |limit: &str| format!("sqlite://{}?call_timeout_ms={limit}&connect_timeout_ms=60000", path.display());
        let mut destinations = Vec::new();
        for _ in 0..3 {
            destinations.push(SqliteDestination::connect_edited(&url("60000"), edits).await.unwrap());
        }
        destinations[0].adopt(None, &Authority::parse(FIRST).unwrap()).await.unwrap();
        let patient = Duration::from_mins(1);
        let mut admin = plain(path, patient).await;
        let tables = "CREATE TABLE content (name TEXT PRIMARY KEY, actor INTEGER);
             CREATE TABLE landed (name TEXT, actor INTEGER); CREATE INDEX by_name ON landed (name)";
        sqlx::raw_sql(tables).execute(&mut admin).await.unwrap();
        let mut connections = Vec::new();
        for _ in 0..3 {
            connections.push(plain(path, patient).await);
        }
        Self {
            destinations,
            impatient: Some(SqliteDestination::connect(&url("5")).await.unwrap()),
            plain: connections,
            admin,
            probe: Some(plain(path, Duration::ZERO).await),
            count: 0,
        }
    }

    async fn play(&mut self, scene: &Scene, how: Guard, schedule: &[usize], tally: &mut Tally) {
        self.count += 1;
        let name = format!("r{}", self.count);
        let mut prepare = format!("BEGIN IMMEDIATE; INSERT INTO content VALUES ('{name}', {NOBODY});");
        write!(prepare, "UPDATE leasehold_guard SET authority = '{FIRST}';").unwrap();
        if let Some((value, grant)) = scene.base {
            let grant = grant.to_hex();
            write!(prepare, "INSERT INTO leasehold_mark VALUES ('{name}', '{FIRST}', {value}, '{grant}');").unwrap();
        }
        sqlx::raw_sql(AssertSqlSafe(prepare + "COMMIT")).execute(&mut self.admin).await.unwrap();
        let resource = ResourceName::parse(name).unwrap();
        let lock = SharedLock::default();
        let mut actors = Vec::new();
        for (number, program) in scene.programs.iter().enumerate() {
            let session = Session {
                number,
                destination: self.destinations[number].clone(),
                plain: self.plain.remove(0),
                how,
                token: scene.tokens[number].clone(),
                resource: resource.clone(),
                one_row: scene.one_row,
                open: None,
                pending: None,
                lock: Arc::clone(&lock),
            };
            actors.push((session, program.clone()));
        }
        let token = scene.tokens[0].clone();
        let (probe, impatient) = (self.probe.take().unwrap(), self.impatient.take().unwrap());
        let mut watch = Busy { lock, probe, impatient, said: false, token };
        let (actors, events) = run(actors, schedule, &mut watch).await;
        self.plain.extend(actors.into_iter().map(|session| session.plain));
        (self.probe, self.impatient) = (Some(watch.probe), Some(watch.impatient));
        let found = self.found(&resource, scene.one_row).await;
        judge(&scene.ground(false), events, &found, tally);
    }

    async fn found(&mut self, resource: &ResourceName, one_row: bool) -> Found {
        let number = |n: i64| usize::try_from(n).unwrap();
        let content = sqlx::query_scalar("SELECT actor FROM content WHERE name = ?1").bind(resource.as_str());
        let content: i64 = content.fetch_one(&mut self.admin).await.unwrap();
        let mut found = Found { content: one_row.then(|| number(content)), ..Found::default() };
        let mark = "SELECT value, grant_id FROM leasehold_mark WHERE resource = ?1 AND authority = ?2";
        let mark = sqlx::query(mark).bind(resource.as_str()).bind(FIRST).fetch_optional(&mut self.admin).await.unwrap();
        found.mark = mark.map(|row| {
            let (value, grant): (i64, String) = (row.get(0), row.get(1));
            (u64::try_from(value).unwrap(), GrantId::from_hex(&grant).unwrap())
        });
        let landed = sqlx::query_scalar("SELECT actor FROM landed WHERE name = ?1").bind(resource.as_str());
        for actor in landed.fetch_all(&mut self.admin).await.unwrap() {
            *found.landed.entry(number(actor)).or_default() += 1;
        }
        found
    }
}

async fn explore(edits: &'static [(&'static str, &'static str)], how: Guard, scenes: Vec<Scene>) -> Tally {
    const LANES: usize = 4;
    let (scenes, folder) = (Arc::new(scenes), tempfile::tempdir().unwrap());
    let mut lanes = tokio::task::JoinSet::new();
    for number in 0..LANES {
        let (path, scenes) = (folder.path().join(format!("{number}.db")), Arc::clone(&scenes));
        lanes.spawn(async move {
            let mut lane = Lane::open(&path, edits).await;
            let mut tally = Tally::default();
            for scene in scenes.iter() {
                for schedule in merges(&scene.lengths()).iter().skip(number).step_by(LANES) {
                    lane.play(scene, how, schedule, &mut tally).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_is_right_in_every_interleaving() {
    let begun = std::time::Instant::now();
    let tally = explore(&[], Guard::Crate, scenes::all()).await;
    println!("sqlite: {tally} in {:?}", begun.elapsed());
    tally.assert_honest();
    assert_eq!(tally.try_again, 0, "whoever waits for the lock gets it");
}

const STALE: &[Rule] = &[Rule::StaleLanded];
/// Some say that the transaction cannot go on, without a reason that the token gives.
const REFUSED: &[Rule] = &[Rule::RefusedWrongly, Rule::WrongAnswer, Rule::FailedAlone];

const FORGETS: &[(&str, &str)] = &[("WHERE excluded.value > leasehold_mark.value", "WHERE true")];
const EQUAL: &[(&str, &str)] =
    &[("WHERE excluded.value > leasehold_mark.value", "WHERE excluded.value >= leasehold_mark.value")];
/// The mark is admitted only by the statement that raises it.
const SECOND_WRITE: &[(&str, &str)] =
    &[("AS mark, m.grant_id,", "AS mark, iif(changes() = 0, 'ffffffffffffffff', m.grant_id) AS grant_id,")];
/// Whatever the mark is, the answer is as if it were the token's.
const SWALLOWED: &[(&str, &str)] = &[("m.value AS mark, m.grant_id,", "?3 AS mark, ?4 AS grant_id,")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_saboteurs_are_found() {
    let stale = || vec![scenes::both_commit(), scenes::both_commit().with_base()];
    let after = || vec![scenes::both_commit().with_after()];
    let seals = || vec![scenes::both_seal_twice()];
    for (name, edits, how, scenes, rules) in [
        ("looks first", &[][..], Guard::LooksFirst, stale(), STALE),
        ("marks later", &[], Guard::MarksLater, after(), STALE),
        ("forgets its mark", FORGETS, Guard::Crate, stale(), STALE),
        ("takes another grant's value", EQUAL, Guard::Crate, vec![scenes::conflict()], STALE),
        ("refuses the holder's second write", SECOND_WRITE, Guard::Crate, seals(), REFUSED),
        ("swallows its refusal", SWALLOWED, Guard::Crate, stale(), STALE),
    ] {
        let tally = explore(edits, how, scenes).await;
        println!("sqlite saboteur, {name}: {tally}");
        tally.assert_found(rules);
    }
    let twins = explore(&[], Guard::Crate, [after(), seals()].concat()).await;
    assert!(twins.broken.is_empty(), "{twins}");
}
