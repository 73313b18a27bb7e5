//! `PostgreSQL`: the guard in the caller's own transaction, and careless writes by the client `sqlx`.

mod plain;

use super::raw;
use crate::subject::{PlainWriter, TestDestination};
use lease_core::{
    Authority, Claims, FencingToken, GuardError, GuardedDestination, LeaseError, Operation, ResourceName, StoreUrl,
    Stored,
};
use lease_postgres::PostgresDestination;
pub(super) use plain::Tokenless;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection as _, Postgres, Transaction};

/// A guarded destination, with connections of the caller's own beside it.
#[derive(Debug)]
pub(super) struct Destination {
    guarded: PostgresDestination,
    own: Own,
}

impl Destination {
    pub(super) async fn open(url: &str) -> Result<Self, GuardError> {
        Ok(Self { guarded: PostgresDestination::connect(url).await?, own: Own::new(url)? })
    }

    /// The caller's own statement on the guarded data.
    async fn put(&self, connection: &mut PgConnection, resource: &ResourceName, value: &str) -> Result<(), LeaseError> {
        self.own.put("guarded", connection, resource, value).await
    }
}

#[async_trait::async_trait]
impl GuardedDestination for Destination {
    fn kind(&self) -> &'static str {
        self.guarded.kind()
    }

    fn claims(&self) -> Claims {
        self.guarded.claims()
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        self.guarded.adopt(expected_old, new).await
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.guarded.seal(resource, token).await
    }

    /// As a user does it: the guard in an own transaction, on an own connection.
    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        let mut connection = self.own.connect().await?;
        let mut transaction = begin(&mut connection).await?;
        self.guarded.guard().admit(&mut transaction, resource, token).await?;
        self.put(&mut transaction, resource, value).await?;
        Ok(raw::bounded(Operation::GuardedWrite, transaction.commit()).await?)
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        self.guarded.read(resource).await
    }
}

#[async_trait::async_trait]
impl TestDestination for Destination {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        let mut connection = self.own.connect().await?;
        Ok(self.put(&mut connection, resource, value).await?)
    }

    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        let mut connection = self.own.connect().await?;
        let mut transaction = begin(&mut connection).await?;
        // A careless caller looks at none of the answers. The client reports a commit that the server turned into a rollback as done, so
        // the refusal is the last thing that anybody said about it.
        let asked = self.guarded.guard().admit(&mut transaction, resource, token).await;
        drop(self.put(&mut transaction, resource, value).await);
        raw::bounded(Operation::GuardedWrite, transaction.commit()).await?;
        asked
    }

    async fn write_and_roll_back(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Option<Result<(), GuardError>> {
        let work = async {
            let mut connection = self.own.connect().await?;
            let mut transaction = begin(&mut connection).await?;
            self.guarded.guard().admit(&mut transaction, resource, token).await?;
            self.put(&mut transaction, resource, value).await?;
            Ok(raw::bounded(Operation::GuardedWrite, transaction.rollback()).await?)
        };
        Some(work.await)
    }
}

/// Writes the register of a lease store without asking its fence.
#[derive(Debug)]
pub(super) struct Plain(Own);

impl Plain {
    pub(super) fn new(url: &str) -> Result<Self, LeaseError> {
        Own::new(url).map(Self)
    }

    /// Deletes the record of a resource's lease.
    pub(super) async fn delete_record(&self, resource: &ResourceName) -> Result<(), LeaseError> {
        let mut connection = self.0.connect().await?;
        let sql = format!("DELETE FROM \"{}\".lease WHERE name = $1", self.0.namespace);
        let delete = sqlx::query(AssertSqlSafe(sql)).bind(resource.as_str()).execute(&mut connection);
        raw::bounded(Operation::CleanUp, delete).await.map(drop)
    }
}

#[async_trait::async_trait]
impl PlainWriter for Plain {
    async fn write(&self, resource: &ResourceName, value: &str) -> Result<(), LeaseError> {
        let mut connection = self.0.connect().await?;
        self.0.put("register", &mut connection, resource, value).await
    }
}

async fn begin(connection: &mut PgConnection) -> Result<Transaction<'_, Postgres>, LeaseError> {
    raw::bounded(Operation::GuardedWrite, connection.begin()).await
}

/// How the caller connects by itself: anew for each write, so that many destinations at once need few connections.
#[derive(Debug)]
struct Own {
    namespace: String,
    options: PgConnectOptions,
}

impl Own {
    fn new(url: &str) -> Result<Self, LeaseError> {
        let parsed = StoreUrl::parse(url, OWN_PARAMETERS)?;
        let kept = ["sslmode", "sslrootcert"].into_iter().filter_map(|name| Some((name, parsed.own(name)?)));
        let own = super::super::servers::with_parameters(parsed.url.as_str(), kept);
        let options = own.parse().map_err(|e: sqlx::Error| raw::failed(Operation::Connect, e))?;
        Ok(Self { namespace: parsed.options.namespace.as_str().to_owned(), options })
    }

    async fn connect(&self) -> Result<PgConnection, LeaseError> {
        raw::bounded(Operation::Connect, PgConnection::connect_with(&self.options)).await
    }

    /// Writes into one of the crate's registers.
    async fn put(
        &self,
        table: &str,
        connection: &mut PgConnection,
        resource: &ResourceName,
        value: &str,
    ) -> Result<(), LeaseError> {
        let sql = format!(
            "INSERT INTO \"{}\".{table} (name, value) VALUES ($1, $2)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            self.namespace
        );
        let put = sqlx::query(AssertSqlSafe(sql)).bind(resource.as_str()).bind(value).execute(connection);
        raw::bounded(Operation::GuardedWrite, put).await.map(drop)
    }
}

/// Parameters that the crate knows besides the common ones.
const OWN_PARAMETERS: &[&str] = &["sslmode", "sslrootcert", "max_connections", "set_up"];
