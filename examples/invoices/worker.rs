//! A worker: a process that takes the lease on an invoice, pays and bills it. A waits for the director in between, to be stopped there.

use crate::said::{Outcome, Said};
use crate::scenes::{Payment, SCENES, Scene};
use crate::timeline::Tone;
use crate::{Failure, client, euros};
use leasehold::hold::{HoldOptions, Keeper, LeaseGuard, Loss, Permit, StaleBehaviour};
use leasehold::plain::IdempotencyKey;
use leasehold::postgres::PostgresDestination;
use leasehold::{DestinationExt as _, FencingToken, GuardError, GuardedDestination as _, Refusal};
use sqlx::{Connection as _, PgConnection};
use std::io::BufRead as _;
use std::net::SocketAddr;
use std::time::Duration;

/// How a worker is started: by the director's arguments, and the URLs in its environment, since they have passwords in them.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub(crate) name: String,
    pub(crate) scene: u8,
    pub(crate) invoice: String,
    pub(crate) ttl: Duration,
}

impl Assignment {
    pub(crate) fn arguments(&self) -> [String; 5] {
        let (scene, ttl) = (self.scene.to_string(), self.ttl.as_millis().to_string());
        ["worker".into(), self.name.clone(), scene, self.invoice.clone(), ttl]
    }

    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut next = || arguments.next().ok_or("a worker is started by the director");
        let (name, scene, invoice) = (next()?, next()?.parse()?, next()?);
        Ok(Self { name, scene, invoice, ttl: Duration::from_millis(next()?.parse()?) })
    }
}

/// The environment variables with what a worker connects to.
pub(crate) const REDIS: &str = "INVOICES_REDIS";
pub(crate) const POSTGRES: &str = "INVOICES_POSTGRES";
pub(crate) const PAYMENTS: &str = "INVOICES_PAYMENTS";

/// Waits longer than any TTL here, on any machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The worker's process.
pub(crate) fn main(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let assignment = Assignment::read(arguments)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work(assignment))
}

async fn work(assignment: Assignment) -> Result<(), Failure> {
    let scene = SCENES.iter().find(|scene| scene.number == assignment.scene).ok_or("there is no such scene")?;
    let postgres = std::env::var(POSTGRES)?;
    let mut worker = Worker {
        keeper: Keeper::start(leasehold::connect(&std::env::var(REDIS)?).await?)?,
        marks: PostgresDestination::connect(&postgres).await?,
        database: PgConnection::connect(&postgres).await?,
        payments: std::env::var(PAYMENTS)?.parse()?,
        scene,
        assignment,
    };
    worker.work().await
}

struct Worker {
    keeper: Keeper,
    /// Where the guard's marks are: in the same database as the bills.
    marks: PostgresDestination,
    /// The worker's own connection, for its own transactions.
    database: PgConnection,
    payments: SocketAddr,
    scene: &'static Scene,
    assignment: Assignment,
}

impl Worker {
    async fn work(&mut self) -> Result<(), Failure> {
        let resource = format!("invoices/{}", self.assignment.invoice);
        let held = self.keeper.acquire_within(&resource, self.assignment.ttl, PATIENCE, HoldOptions::default()).await?;
        let lease = held.ok_or_else(|| format!("somebody else holds {resource}"))?;
        let token = lease.token().ok_or("this backend mints no tokens")?.clone();
        Said::Token(token.value()).say()?;
        tell(Tone::Plain, format!("has the lease on {resource}, token {}", token.value()))?;

        if self.scene.guarded {
            // Before the first read: from here on no older worker's write can land between what is read here and what is written for it.
            self.marks.trust(token.authority()).await?;
            self.marks.seal(lease.resource(), &token).await?;
            tell(Tone::Plain, "seals: older tokens are refused from now on".into())?;
        }
        let cents = self.read().await?;
        let begun = match self.pay(&lease, cents).await {
            Ok(receipt) => lease.permit(self.of_bill()).map(|permit| (receipt, permit)).map_err(Failure::from),
            Err(error) => Err(error),
        };
        let (receipt, permit) = match begun {
            // The lease ended under it, before this scene had it stopped.
            Err(error) if error.is::<Loss>() => return Ok(Said::Lost.say()?),
            begun => begun?,
        };
        if self.assignment.name == "A" {
            tell(
                Tone::Plain,
                format!("may begin its transaction: the lease is good for {} ms", permit.remaining().as_millis()),
            )?;
            stopped_here().await?;
            tell(Tone::Plain, "wakes up and goes on, with the bill that it had in hand".into())?;
        }
        let outcome = self.bill(permit, &token, cents, receipt).await?;
        let loss = lease.loss();
        if outcome == Outcome::Billed {
            let (tone, when) =
                if loss.is_some() { (Tone::Bad, ", after its lease had ended") } else { (Tone::Plain, "") };
            tell(tone, format!("COMMITTED its bill of {}{when}", euros(cents)))?;
        }
        if let Some(loss) = loss {
            Said::Late.say()?;
            tell(Tone::Faint, format!("learns by its own clock that the lease was lost: {}", loss.cause()))?;
        }
        tell(Tone::Plain, format!("asks for the release of its lease: {:?}", lease.release().await?))?;
        Ok(Said::Done(outcome).say()?)
    }

    /// What there is to bill.
    async fn read(&mut self) -> Result<i64, Failure> {
        let query = "SELECT cents, EXISTS (SELECT FROM bill WHERE invoice = number) FROM invoice WHERE number = $1";
        let query = sqlx::query_as(query).bind(&self.assignment.invoice);
        let (cents, billed): (i64, bool) = query.fetch_one(&mut self.database).await?;
        if billed {
            return Err("this invoice is billed, and this example has nobody who would have done it yet".into());
        }
        tell(Tone::Plain, format!("reads the invoice: {}, not billed yet", euros(cents)))?;
        Ok(cents)
    }

    /// Asks the API for the money, which nothing takes back.
    async fn pay(&self, lease: &LeaseGuard, cents: i64) -> Result<Option<i64>, Failure> {
        let (key, behaviour) = match self.scene.payment {
            Payment::None => return Ok(None),
            Payment::WithoutKey => (None, StaleBehaviour::Unprotected { reason: "this scene shows what comes of it" }),
            // Of the resource and the operation only: with a token in it, each worker would have a key of its own.
            Payment::WithKey => (Some(IdempotencyKey::new(lease.resource(), "charge")?), StaleBehaviour::Idempotent),
        };
        let permit = lease.permit(behaviour)?;
        let answer = client::charge(self.payments, &self.assignment.invoice, cents, key.as_ref()).await?;
        let receipt = answer.body.get("receipt").and_then(serde_json::Value::as_i64);
        let receipt = receipt.ok_or_else(|| format!("the payment API answered {answer:?}"))?;
        permit.committed();
        Said::Receipt(receipt).say()?;
        tell(Tone::Plain, format!("has asked for {}, answer {}, receipt {receipt}", euros(cents), answer.status))?;
        Ok(Some(receipt))
    }

    fn of_bill(&self) -> StaleBehaviour {
        if self.scene.guarded {
            StaleBehaviour::Fenced
        } else {
            StaleBehaviour::Unprotected { reason: "this scene shows what comes of it" }
        }
    }

    /// Writes the bill. The guard's check and the row are one transaction, this worker's own.
    async fn bill(
        &mut self,
        permit: Permit,
        token: &FencingToken,
        cents: i64,
        receipt: Option<i64>,
    ) -> Result<Outcome, Failure> {
        let resource = leasehold::ResourceName::parse(format!("invoices/{}", self.assignment.invoice))?;
        let mut transaction = self.database.begin().await?;
        if self.scene.guarded {
            match self.marks.guard().admit(&mut transaction, &resource, token).await {
                Ok(()) => {}
                // Any other refusal is a fault of this example.
                Err(GuardError::Refused { refusal: Refusal::Stale { presented, mark }, .. }) => {
                    transaction.rollback().await?;
                    permit.refused();
                    tell(
                        Tone::Good,
                        format!("REFUSED in its transaction: token {presented} is below the mark {mark}"),
                    )?;
                    return Ok(Outcome::Refused);
                }
                Err(error) => return Err(error.into()),
            }
        }
        sqlx::query("INSERT INTO bill (invoice, cents, receipt, worker) VALUES ($1, $2, $3, $4)")
            .bind(&self.assignment.invoice)
            .bind(cents)
            .bind(receipt)
            .bind(&self.assignment.name)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        permit.committed();
        Ok(Outcome::Billed)
    }
}

/// Where the director stops A. The line that ends the wait is in the pipe before A is resumed, so it is the signal that holds A here. The
/// keeper goes on renewing until then.
async fn stopped_here() -> Result<(), Failure> {
    Said::Ready.say()?;
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    match line.await??.as_str() {
        "" => Err("the director is gone".into()),
        _ => Ok(()),
    }
}

fn tell(tone: Tone, what: String) -> std::io::Result<()> {
    Said::Tell(tone, what).say()
}
