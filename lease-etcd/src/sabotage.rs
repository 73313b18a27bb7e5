//! Deliberate flaws, so that a suite can show that it catches them. Without the feature `testing` there are none.

/// A guarantee that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    AcquireIgnoresHolder,
    AcquireWithoutLease,
    TokenIgnoresRevision,
    RenewIgnoresKey,
    RenewIgnoresOwner,
    ReleaseIgnoresOwner,
    ForceIgnoresValue,
    ForceLeavesNoMarker,
    FenceIgnoresOwner,
    GuardIgnoresMark,
    GuardIgnoresAuthority,
}

/// The flaws of one instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sabotage(Vec<Flaw>);

impl Sabotage {
    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.0.contains(&flaw)
    }

    /// Conditions or operations of a transaction, but none if this flaw takes them out.
    pub(crate) fn unless<T>(&self, flaw: Flaw, parts: Vec<T>) -> Vec<T> {
        if self.has(flaw) { Vec::new() } else { parts }
    }
}

#[cfg(feature = "testing")]
mod parse {
    use super::{Flaw, Sabotage};
    use lease_core::LeaseError;

    /// What can be taken out, as the edits name it.
    pub(crate) const BACKEND: &[(&str, Flaw)] = &[
        ("acquire compares that the resource is free", Flaw::AcquireIgnoresHolder),
        ("acquire attaches the lease", Flaw::AcquireWithoutLease),
        ("the token is the grant's revision", Flaw::TokenIgnoresRevision),
        ("renew reads the key", Flaw::RenewIgnoresKey),
        ("renew compares the owner", Flaw::RenewIgnoresOwner),
        ("release compares the owner", Flaw::ReleaseIgnoresOwner),
        ("force-release compares the value", Flaw::ForceIgnoresValue),
        ("force-release leaves a marker", Flaw::ForceLeavesNoMarker),
        ("fence compares the owner", Flaw::FenceIgnoresOwner),
    ];
    pub(crate) const DESTINATION: &[(&str, Flaw)] = &[
        ("guard compares the mark", Flaw::GuardIgnoresMark),
        ("guard compares the authority", Flaw::GuardIgnoresAuthority),
    ];

    impl Sabotage {
        /// The flaws that `edits` ask for: each names a check, and replaces it with nothing.
        ///
        /// # Errors
        /// [`LeaseError::InvalidConfig`] when there is no such check, or it is to be replaced by something.
        pub(crate) fn parse(edits: &[(&str, &str)], known: &[(&str, Flaw)]) -> Result<Self, LeaseError> {
            let flaw = |(from, to): &(&str, &str)| {
                let found = known.iter().find(|(name, _)| name == from && to.is_empty());
                found.map(|(_, flaw)| *flaw).ok_or_else(|| LeaseError::InvalidConfig {
                    reason: format!(
                        "no edit `{from}`; the transactions are built in code, so name one of these and replace it with nothing: {}",
                        known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
                    ),
                })
            };
            edits.iter().map(flaw).collect::<Result<_, _>>().map(Self)
        }
    }
}
#[cfg(feature = "testing")]
pub(crate) use parse::{BACKEND, DESTINATION};
