//! What a run has made in stores that stay, so that it can be taken away again.

use super::stores;
use lease_core::LeaseError;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The namespaces that were used. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tidy {
    used: Arc<Mutex<BTreeSet<Used>>>,
}

/// A namespace, as the URL that reaches it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Used {
    Leases(String),
    Destination(String),
}

impl Tidy {
    /// Leases are going to be kept under this URL.
    pub(crate) fn leases(&self, url: &str) {
        self.note(Used::Leases(url.to_owned()));
    }

    /// A destination is going to be made under this URL.
    pub(crate) fn destination(&self, url: &str) {
        self.note(Used::Destination(url.to_owned()));
    }

    fn note(&self, used: Used) {
        // Inserting is one step: a panic elsewhere left the list whole.
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(used);
    }

    /// Removes everything. Goes on after a failure, and returns every failure, without any URL's credentials.
    pub(crate) async fn purge(&self) -> Vec<String> {
        let used = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        let mut failures = Vec::new();
        for one in used {
            let (url, result) = match &one {
                Used::Leases(url) => (url, stores::purge_leases(url).await),
                Used::Destination(url) => (url, stores::purge_destination(url).await),
            };
            if let Err(error) = result {
                failures.push(failure(url, &error));
            }
        }
        failures
    }
}

fn failure(url: &str, error: &LeaseError) -> String {
    let namespace = url.split_once("namespace=").map_or("", |(_, rest)| rest.split('&').next().unwrap_or_default());
    format!("namespace {namespace} on {} was not removed: {error}", lease_core::redact_url(url))
}
