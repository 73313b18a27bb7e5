//! Where things are in etcd's key space, and which etcd lease belongs to which grant.
//!
//! A name is in its key as it is, byte by byte, at the end: no two names share a key, a prefix of names is a prefix of keys,
//! and etcd's key order is the byte order of names.

use lease_core::{Authority, ConnectOptions, GrantId, ResourceName};

/// The keys of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: String,
}

impl Keys {
    pub(crate) fn of(options: &ConnectOptions) -> Self {
        Self { namespace: options.namespace.as_str().to_owned() }
    }

    /// The prefix of all that the lease backend keeps.
    pub(crate) fn leases(&self) -> String {
        format!("{}/lease/", self.namespace)
    }

    /// The prefix of all that the guarded destination keeps.
    pub(crate) fn guards(&self) -> String {
        format!("{}/guard/", self.namespace)
    }

    /// The random incarnation of this namespace.
    pub(crate) fn incarnation(&self) -> String {
        format!("{}incarnation", self.leases())
    }

    /// The prefix of the records of grants.
    pub(crate) fn grants(&self) -> String {
        format!("{}grant/", self.leases())
    }

    /// The record of a resource's live grant.
    pub(crate) fn grant(&self, resource: &ResourceName) -> String {
        format!("{}{resource}", self.grants())
    }

    /// The prefix of the markers of spent attempts.
    pub(crate) fn spent_prefix(&self) -> String {
        format!("{}spent/", self.leases())
    }

    /// The marker of an attempt that must make no grant any more. The grant's id is no secret, unlike the owner token.
    pub(crate) fn spent(&self, grant: GrantId) -> String {
        format!("{}{}", self.spent_prefix(), grant.to_hex())
    }

    /// The register behind the native fence.
    pub(crate) fn register(&self, resource: &ResourceName) -> String {
        format!("{}register/{resource}", self.leases())
    }

    /// The authority that the destination trusts.
    pub(crate) fn trusted(&self) -> String {
        format!("{}trusted", self.guards())
    }

    /// The mark of a resource under an authority. No authority has a `|`, so the first one ends it.
    pub(crate) fn mark(&self, authority: &Authority, resource: &ResourceName) -> String {
        format!("{}mark/{authority}|{resource}", self.guards())
    }

    /// The destination's register.
    pub(crate) fn data(&self, resource: &ResourceName) -> String {
        format!("{}data/{resource}", self.guards())
    }
}

/// The etcd lease that the first request of an attempt makes: the grant's id without its highest and lowest bit, which
/// is positive as etcd wants it; 2 in place of 0, which would ask the server to choose.
pub(crate) fn first_lease(grant: GrantId) -> i64 {
    let bits = u64::from_str_radix(&grant.to_hex(), 16).unwrap_or_default();
    match i64::try_from(bits & 0x7fff_ffff_ffff_fffe) {
        Ok(id) if id != 0 => id,
        _ => 2,
    }
}

/// The etcd lease of the marker that the attempt is spent: the odd neighbour.
pub(crate) fn marker_lease(grant: GrantId) -> i64 {
    first_lease(grant) | 1
}

/// The end of the range of all keys that begin with `prefix`.
pub(crate) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    // Nothing but 0xff: to the end of the key space.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ids_are_positive_and_pair_up() {
        for hex in ["0000000000000000", "0000000000000001", "8000000000000000", "ffffffffffffffff", "00000000000000aa"]
        {
            let grant = GrantId::from_hex(hex).unwrap();
            assert!(first_lease(grant) > 0 && first_lease(grant) % 2 == 0);
            assert_eq!(marker_lease(grant), first_lease(grant) + 1);
        }
        assert_ne!(
            first_lease(GrantId::from_hex("00000000000000aa").unwrap()),
            first_lease(GrantId::from_hex("00000000000000ac").unwrap())
        );
    }

    #[test]
    fn keys_are_injective() {
        let keys = Keys::of(&ConnectOptions::default());
        let name = |n: &str| ResourceName::parse(n).unwrap();
        let authority = |a: &str| Authority::parse(a).unwrap();
        assert_eq!(keys.grant(&name("a/b |")), "leasehold/lease/grant/a/b |");
        assert_ne!(keys.mark(&authority("a"), &name("b|c")), keys.mark(&authority("a/b"), &name("c")));
        assert_eq!(prefix_end(b"a/"), b"a0");
        assert_eq!(prefix_end(&[b'a', 0xff]), b"b");
        assert_eq!(prefix_end(&[0xff]), [0]);
    }
}
