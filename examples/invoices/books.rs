//! The invoices and bills in PostgreSQL, as the director sets them up and reads them back.

use crate::Failure;
use crate::scenes::CENTS;
use sqlx::{Connection as _, PgConnection};

/// Nothing in these tables keeps a second bill out. A unique constraint would: a record that makes the effect at most once, where the first one wins.
const TABLES: &str = "
CREATE TABLE invoice (number text PRIMARY KEY, cents bigint NOT NULL);
CREATE TABLE bill (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    invoice text NOT NULL REFERENCES invoice,
    cents bigint NOT NULL,
    receipt bigint,
    worker text NOT NULL
)";

/// The director's own connection.
#[derive(Debug)]
pub(crate) struct Books {
    connection: PgConnection,
    url: String,
}

impl Books {
    /// Creates the tables, and a database for the payment API.
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::raw_sql(TABLES).execute(&mut connection).await?;
        sqlx::raw_sql("CREATE DATABASE payments").execute(&mut connection).await?;
        Ok(Self { connection, url: url.to_owned() })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the payment API's database.
    pub(crate) fn payments_url(&self) -> Result<String, Failure> {
        let server = self.url.strip_suffix("/postgres").ok_or("the server's URL ends with its database")?;
        Ok(format!("{server}/payments"))
    }

    pub(crate) async fn issue(&mut self, invoice: &str) -> Result<(), Failure> {
        let insert = sqlx::query("INSERT INTO invoice VALUES ($1, $2)").bind(invoice).bind(CENTS);
        insert.execute(&mut self.connection).await?;
        Ok(())
    }

    /// How many bills there are of an invoice, and of how much in all.
    pub(crate) async fn bills(&mut self, invoice: &str) -> Result<(i64, i64), Failure> {
        let sums = sqlx::query_as("SELECT count(*), coalesce(sum(cents), 0)::bigint FROM bill WHERE invoice = $1");
        Ok(sums.bind(invoice).fetch_one(&mut self.connection).await?)
    }
}
