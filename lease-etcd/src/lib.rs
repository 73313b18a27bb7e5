//! etcd leases for [Leasehold](lease_core): one etcd lease and one key per grant, decided in transactions. etcd can also be the
//! guarded destination of any lease, with [`EtcdDestination`].
//!
//! ```no_run
//! use lease_core::{LeaseBackend, LeaseExt};
//! use lease_etcd::EtcdBackend;
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = EtcdBackend::connect("etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/?namespace=billing").await?;
//! if let Some(lease) = backend.try_acquire("invoices/2026-12", Duration::from_secs(15)).await? {
//!     // The caller's own data in the same etcd: the transaction commits only while this grant is live.
//!     let mut etcd = etcd_client::Client::connect(["10.0.0.1:2379"], None).await?;
//!     let write = etcd_client::TxnOp::put("invoices/2026-12/state", "sent", None);
//!     let answer = etcd.txn(etcd_client::Txn::new().when(backend.compares(&lease)).and_then([write])).await?;
//!     assert!(answer.succeeded(), "the lease was lost");
//!     backend.release(&lease).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! * **acquire** makes an etcd lease, then runs one transaction: if the resource has no key, the attempt is not spent and the
//!   namespace's incarnation is the expected one, put the record, attached to that etcd lease. The revision of this transaction is the
//!   fencing value. A resource that was held when last seen is read first, so that polling writes nothing.
//! * **renew** sends a keep-alive and *then* reads the key: a keep-alive that succeeds proves nothing about the key, which may have been
//!   deleted by hand. The deadline counts from the keep-alive. A former leader that has not noticed can go on answering keep-alives
//!   that no longer count; so the reply's raft term must equal that of the read, which a majority confirmed.
//! * **release** deletes the key if owner and revision are this grant's, and leaves a marker that goes by itself, with the grant's own
//!   etcd lease; for TTLs over a minute, and while a request may still be on its way, with one of its own.
//! * **abandon** leaves such a marker and deletes what the attempt has made. No etcd lease is ever made twice, so a transaction that was
//!   held up is refused: by the marker as long as its etcd lease could live, and by etcd after that.
//! * **`force_release`** reads the record, and if it has the revision that the order names makes an etcd lease for a marker of the same kind; one
//!   transaction then compares the revision again, deletes the key and puts the marker, which also tells the holder why. Needs no privilege of its own.
//!
//! # What it claims
//!
//! | claim | | why |
//! |---|---|---|
//! | `fencing-token` | yes | the store's revision, which grows with each transaction of the whole cluster |
//! | `mints-above-floor` | no | a revision cannot be chosen: behind an attempt's floor the acquire fails with [`BelowFloor`](lease_core::LeaseError::BelowFloor), without a grant |
//! | `native-fence-live-owner` | yes | [`EtcdBackend::compares`]: owner and revision of the key, compared in the caller's transaction |
//! | `cross-process` | yes | |
//! | `list-by-prefix` | yes | keys end with the name's bytes, so a prefix is one range. A page is no snapshot; it has at most 1,000 grants |
//! | `idle-names-forgotten` | yes | nothing stays of a grant; revisions do not depend on it. A fence's register stays: it is data |
//! | `lease-survives-restart`, `token-survives-restart` | yes | raft's log is on disk before the answer (but for `--unsafe-no-fsync` and a power cut) |
//! | destination: `mark-survives-restart`, `refusal-uncommittable` | yes | mark and mutation are one transaction |
//! | destination: `mark-rolls-back` | no | etcd has no transaction that the caller could roll back |
//!
//! **Limits.** TTLs are whole seconds, rounded up. The shortest is 1.5 times the server's election time-out (2 s by default), found out at
//! connect with an etcd lease that is ended at once; what the server grants is in
//! [`Lease::granted_ttl`](lease_core::Lease::granted_ttl). A grant ends up to 2 s after its TTL; a change of
//! leader starts the TTL of every live grant anew, so a crashed holder's resource stays held for longer then. An etcd before 3.5 looks for grants that
//! are over by the wall clock: set back by an hour, it ends none of those that it has for an hour, and no holder loses its own. **In an
//! etcd before 3.4.31 or 3.5.13 a leader whose disk stalls for longer than a TTL ends live grants** when the disk goes on, since it has not seen that others
//! renewed them with the leader that followed; tokens go on growing. Remaining times are whole
//! seconds. A record, or a guarded value, is limited by etcd's request size (1.5 MiB by default). In a cluster that has run out of space nothing can be
//! acquired, released or abandoned; renewals go on. Its error has an unknown effect, since a member whose space runs out between a request and its
//! turn does it and says the same. Guarded writes are nested transactions, which etcd (3.4) does not count: they pass its space quota by.
//!
//! # Authority, and what goes back unseen
//!
//! The authority is `etcd:CLUSTER-INCARNATION:EPOCH`: the cluster's id, 16 random digits that are kept under `NAMESPACE/lease/incarnation`,
//! and the URL's `epoch`. Each grant's transaction compares the incarnation. It changes with a new cluster, a wiped namespace, and a
//! snapshot that was restored with another `--initial-cluster-token` or other peer URLs.
//!
//! **A snapshot that is restored with the same token and peer URLs keeps the cluster's id**, and its revisions go back: the store cannot
//! notice that. Give `etcdctl snapshot restore` a new `--initial-cluster-token`, or raise `epoch` in every client's URL, and adopt the
//! new authority at each destination.
//!
//! # URL
//!
//! `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/][?PARAMETERS]`, port 2379 by default; `etcds://` for TLS, with the
//! feature `tls-rustls`.
//!
//! | parameter | default | |
//! |---|---|---|
//! | `namespace` | `leasehold` | prefix of all keys |
//! | `endpoints` | | more members, `HOST:PORT,HOST:PORT` |
//! | `call_timeout_ms`, `connect_timeout_ms` | 2,000, 5,000 | limits of one operation, and of connecting |
//! | `epoch` | 0 | see above |
//! | `idle_retention_ms` | | of no use here: nothing is retained |
//! | `ca_file` | the system's roots | PEM file of the authority to trust (`etcds` only) |
//! | `cert_file`, `key_file` | | PEM files of the client's certificate and key (`etcds` only) |
//!
//! Requests are spread over the members. One that could not be sent goes to another member; one that may have been sent is never
//! repeated, and its error says that its effect is unknown. One that was refused because users or roles have changed since the login was not
//! done, and is sent again after a new login. After a time-out the connection is given up.
//!
//! # The least privileged account
//!
//! Read and write on the namespace's prefix; etcd asks no privilege for its leases. `NAMESPACE/lease/` is enough for the lease
//! backend alone, `NAMESPACE/guard/` for a destination alone.
//!
//! ```text
//! etcdctl role add leases
//! etcdctl role grant-permission leases --prefix=true readwrite leasehold/
//! etcdctl user add worker
//! etcdctl user grant-role worker leases
//! ```

mod acquire;
mod backend;
mod claims;
mod client;
mod config;
mod connection;
mod error;
mod fence;
mod force;
mod guard;
mod keys;
mod look;
mod sabotage;
mod wire;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
pub use guard::{EtcdDestination, EtcdGuard};
