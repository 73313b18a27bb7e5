//! Names: whatever is allowed works, and no two of them are the same.

use super::{Case, case};
use crate::context::{CaseResult, Stage, Stop, acquire, ensure, evidence, is_held, release, renew};
use crate::judge::Rule;
use lease_core::{LeaseBackend, ResourceName};

pub(super) const CASES: &[Case] = &[
    case!(
        Together,
        distinct,
        Rule::Core,
        "names/distinct",
        "No two names share a record, whatever they contain.",
        "Names that differ in case, in one space, in a prefix, in braces, quotes, wildcards, slashes, percent signs or in Unicode form are all held at the same time. Then every second one is released; the others must stay held, each must show its own name, and be renewed as the same grant."
    ),
    case!(
        Together,
        longest,
        Rule::Core,
        "names/longest",
        "Names of 512 bytes work, and two that differ in the last byte only are two.",
        "Both are acquired; one is released; the other one stays held."
    ),
];

/// Pairs and groups that stores are known to mix up.
pub(super) const NASTY: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a/",
    "a//",
    "a/b",
    "ab",
    "abc",
    "a:b",
    "a.b",
    "a_b",
    "a%b",
    "a%25b",
    "a%20b",
    "a b",
    "a+b",
    "{a}",
    "{a}b",
    "a{b}",
    "a{b}c",
    "{}",
    "{{x}}",
    "}{",
    "a}b{c",
    "{a}{b}",
    "*",
    "a*",
    "a?",
    "[a]",
    "'",
    "\"",
    "a'b",
    "a''b",
    "a\\b",
    "a\\\\b",
    "a;--",
    "$1",
    "$a",
    "?1",
    ":a",
    "-",
    "--a",
    "..",
    "../a",
    "ä",
    "a\u{308}",
    "Ä",
    "ß",
    "ss",
    "ﬁ",
    "fi",
    "日本",
    "日",
    "🦀",
    "İ",
    "i",
    "ı",
    "\u{feff}a",
    "a\u{200b}",
    "null",
    "0",
    "00",
    "1e3",
    "1000",
];

async fn distinct(stage: Stage) -> CaseResult {
    let (a, b) = stage.two_clients().await?;
    let mut leases = Vec::new();
    for (at, suffix) in NASTY.iter().enumerate() {
        let resource = stage.resource(suffix)?;
        let client = if at.is_multiple_of(2) { &a } else { &b };
        leases.push(acquire(client, &resource, stage.run.long()).await?);
    }
    for (at, lease) in leases.iter().enumerate() {
        if at.is_multiple_of(2) {
            release(&a, lease).await?;
        }
    }
    for (at, lease) in leases.iter().enumerate() {
        let name = lease.resource();
        let held = a.inspect(name).await?.held;
        if at.is_multiple_of(2) {
            ensure!(held.is_none(), "{name} was released and looks held");
        } else {
            let shown = held.ok_or_else(|| Stop::Refuted(format!("{name} is held and looks free")))?;
            ensure!(shown.resource == *name, "{name} shows the record of {}", shown.resource);
            ensure!(is_held(&a, name, stage.run.long()).await?, "{name} was granted twice");
            let renewed = renew(&b, lease).await?;
            ensure!(renewed.token() == lease.token(), "a renewal of {name} changed {lease:?} into {renewed:?}");
            release(&b, &renewed).await?;
        }
    }
    Ok(evidence! { "names": NASTY.len() })
}

async fn longest(stage: Stage) -> CaseResult {
    let client = stage.client().await?;
    let stem = stage.resource("")?;
    let fill = ResourceName::MAX_BYTES.saturating_sub(stem.as_str().len()).saturating_sub(1);
    let name = |last: &str| ResourceName::parse(format!("{stem}{}{last}", "x".repeat(fill)));
    let (one, two) = (name("1")?, name("2")?);
    let first = acquire(&client, &one, stage.run.long()).await?;
    let second = acquire(&client, &two, stage.run.long()).await?;
    release(&client, &first).await?;
    ensure!(is_held(&client, &two, stage.run.long()).await?, "the release of one name of 512 bytes freed another one");
    release(&client, &second).await?;
    Ok(evidence! { "longest_name_bytes": one.as_str().len() })
}
