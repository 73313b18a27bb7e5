//! One counter that is kept in each kind of server, so that a loss shows.

use lease_servers::{Kind, Server, ServerError, etcd_call, etcd_status, postgres_query, redis_command};

/// Begins to count.
pub(crate) fn begin(server: &Server) {
    if server.kind() == Kind::Postgres {
        postgres_query(server, "CREATE TABLE t (n int)").unwrap();
    }
}

/// Counts one more.
pub(crate) fn add(server: &Server) -> Result<(), ServerError> {
    match server.kind() {
        Kind::Redis => redis_command(server, &["INCR", "n"]),
        Kind::Etcd => etcd_call(server, "/v3/kv/put", r#"{"key":"aw==","value":"dg=="}"#),
        Kind::Postgres => postgres_query(server, "INSERT INTO t VALUES (1)"),
    }
    .map(drop)
}

/// What was counted. An etcd begins with 1.
pub(crate) fn count(server: &Server) -> u64 {
    match server.kind() {
        Kind::Redis => redis_command(server, &["INCRBY", "n", "0"]).unwrap().parse().unwrap(),
        Kind::Etcd => etcd_status(server).unwrap().revision.checked_sub(1).unwrap(),
        Kind::Postgres => postgres_query(server, "SELECT count(*) FROM t").unwrap().parse().unwrap(),
    }
}
