//! Where each record lies. One resource's keys share a hash tag; the namespace comes first, so that one ACL pattern covers all.

use lease_core::{Namespace, OwnerToken, ResourceName};

/// The keys of one namespace. A name is percent-encoded byte by byte, so no two names share a key, and no name can close a hash tag.
#[derive(Clone, Debug)]
pub(crate) struct Keys(Namespace);

impl Keys {
    pub(crate) fn new(namespace: Namespace) -> Self {
        Self(namespace)
    }

    /// The incarnation of this namespace's history.
    pub(crate) fn incarnation(&self) -> String {
        format!("{}:incarnation", self.0)
    }

    /// The authority that this namespace trusts as a destination.
    pub(crate) fn trusted(&self) -> String {
        format!("{}:trusted", self.0)
    }

    /// The latest grant of a resource.
    pub(crate) fn lease(&self, resource: &ResourceName) -> String {
        self.of(resource, "lease")
    }

    /// The tombstone of an attempt: it must make no grant any more.
    pub(crate) fn spent(&self, resource: &ResourceName, owner: &OwnerToken) -> String {
        format!("{}{}", self.spent_prefix(resource), owner.reveal())
    }

    /// What the owner token is appended to.
    pub(crate) fn spent_prefix(&self, resource: &ResourceName) -> String {
        self.of(resource, "spent:")
    }

    /// The register behind the native fence.
    pub(crate) fn register(&self, resource: &ResourceName) -> String {
        self.of(resource, "register")
    }

    /// The marks of a guarded resource, one per authority.
    pub(crate) fn marks(&self, resource: &ResourceName) -> String {
        self.of(resource, "marks")
    }

    /// The register behind the guard.
    pub(crate) fn guarded(&self, resource: &ResourceName) -> String {
        self.of(resource, "guarded")
    }

    /// Patterns that match this namespace's lease records and nothing else.
    pub(crate) fn lease_patterns(&self) -> [String; 4] {
        let ns = &self.0;
        [
            format!("{ns}:incarnation"),
            format!("{ns}:{{*}}:lease"),
            format!("{ns}:{{*}}:spent:*"),
            format!("{ns}:{{*}}:register"),
        ]
    }

    /// Patterns that match this namespace's guard records and nothing else.
    pub(crate) fn guard_patterns(&self) -> [String; 3] {
        let ns = &self.0;
        [format!("{ns}:trusted"), format!("{ns}:{{*}}:marks"), format!("{ns}:{{*}}:guarded")]
    }

    fn of(&self, resource: &ResourceName, what: &str) -> String {
        format!("{}:{{{}}}:{what}", self.0, resource.encoded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_names_share_a_key_and_tags_are_whole() {
        let keys = Keys::new(Namespace::default());
        let names = ["a", "A", "a}", "a}:lease", "{a}", "a:lease", "a b", "a%20b", "*", "ä", "a/"];
        let mut seen = BTreeSet::new();
        for name in names {
            let name = ResourceName::parse(name).unwrap();
            for key in [keys.lease(&name), keys.register(&name), keys.marks(&name), keys.guarded(&name)] {
                assert_eq!(key.matches('{').count(), 1, "{key}");
                assert_eq!(key.matches('}').count(), 1, "{key}");
                assert!(key.starts_with("leasehold:{"));
                assert!(seen.insert(key));
            }
        }
        assert!(!seen.contains(&keys.incarnation()) && !seen.contains(&keys.trusted()));
    }
}
