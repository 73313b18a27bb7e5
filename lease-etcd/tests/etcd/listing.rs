//! Names: each has its own key, and lists are in the byte order of names.

use crate::support::*;
use lease_core::LeaseBackend;
use std::time::Duration;

const LONG: Duration = Duration::from_mins(1);

#[tokio::test]
async fn no_two_names_meet_and_lists_are_in_byte_order() {
    let server = server();
    let (backend, raw) = (backend(&server).await, raw(&server).await);
    let longest = "x".repeat(512);
    let mut names = vec![
        "a",
        "A",
        "a b",
        "a%20b",
        "a%b",
        "{a}",
        "a:b",
        "a*",
        "a'\"",
        "ä",
        "日本",
        "a/",
        "a//",
        "a/b",
        "%",
        "\u{10ffff}",
        "..",
        &longest,
    ];
    for name in &names {
        acquire(&backend, name, LONG).await;
    }
    // Somebody else's data under the prefix is passed over.
    for foreign in ["leasehold/lease/grant/a/foreign", "leasehold/lease/grant/a/\n"] {
        raw.kv_client().put(foreign, "x", None).await.unwrap();
    }
    names.sort_unstable();
    let page = backend.list("", None, 1_000).await.unwrap();
    assert_eq!(page.grants.iter().map(|g| g.resource.as_str()).collect::<Vec<_>>(), names);
    assert!(page.grants.iter().all(|g| g.remaining <= LONG && g.remaining > TTL && g.value.is_some()));
    assert!(page.grants.iter().all(|g| g.holder.starts_with("pid ")));
    assert_eq!(page.next_after, None);

    for prefix in ["a", "a/", "A", "\u{10ffff}", "none"] {
        let expected: Vec<_> = names.iter().copied().filter(|n| n.starts_with(prefix)).collect();
        for limit in [1, 2, 3, 100, u32::MAX] {
            assert_eq!(paged(&backend, prefix, limit).await, expected, "{prefix:?} by {limit}");
        }
    }
}

/// All names of all pages; each page must keep the limit.
async fn paged(backend: &lease_etcd::EtcdBackend, prefix: &str, limit: u32) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = backend.list(prefix, after.as_ref(), limit).await.unwrap();
        assert!(page.grants.len() <= usize::try_from(limit).unwrap());
        all.extend(page.grants.iter().map(|g| g.resource.as_str().to_owned()));
        match page.next_after {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}

#[tokio::test]
async fn an_inspection_tells_what_others_may_know_and_no_secret() {
    let server = server();
    let backend = backend(&server).await;
    let attempt = attempt("r", LONG).held_by(lease_core::HolderLabel::parse("worker:7:eu").unwrap());
    let lease = repeat(&backend, &attempt).await;
    let inspection = backend.inspect(&name("r")).await.unwrap();
    let held = inspection.held.clone().unwrap();
    assert_eq!(held.holder, "worker:7:eu");
    assert_eq!(held.value, lease.token().map(lease_core::FencingToken::value));
    assert!(held.remaining <= LONG && held.remaining > TTL);
    assert!(!format!("{inspection:?}{backend:?}").contains(&lease.owner().reveal()));
    assert!(backend.inspect(&name("other")).await.unwrap().held.is_none());
}
