//! Asking a PostgreSQL something, through its own client.

use super::PASSWORD;
use crate::{Server, ServerError, binaries, program};
use std::process::Command;

/// Runs SQL on a PostgreSQL as its administrator and returns the answer as text: a row a line, `|` between the columns.
///
/// # Errors
/// When `psql` is not installed, the server refuses, or the answer does not come within a minute; what was sent may then run on.
pub fn postgres_query(server: &Server, sql: &str) -> Result<String, ServerError> {
    let mut command = client("psql", server.port())?;
    command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]);
    command.args(["--dbname=postgres", "--command", sql]);
    program::run(&mut command, &format!("ask the PostgreSQL on port {}", server.port()))
}

/// A client program that connects to this port as the administrator.
pub(super) fn client(name: &'static str, port: u16) -> Result<Command, ServerError> {
    let mut command = Command::new(binaries::find_postgres_client(name)?);
    command.args(["--host=127.0.0.1", &format!("--port={port}"), "--username=postgres", "--no-password"]);
    // Messages that do not change with the system's language, nor with settings of the person's own.
    command.env_remove("PGSERVICE").env_remove("PGOPTIONS").env("LC_ALL", "C").env("PGPASSWORD", PASSWORD);
    Ok(command)
}
