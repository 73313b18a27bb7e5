//! The data of a grant that a guard holds.

use crate::Lease;
use std::ops::Deref;

/// The data of a grant that a [`LeaseGuard`](super::LeaseGuard) holds, to be looked at: a `&Lease` for the fence of the lease's own store.
///
/// It is not a [`Lease`] of its own, so that it cannot be handed over while the guard goes on:
/// [`LeaseGuard::into_hand_over`](super::LeaseGuard::into_hand_over) consumes the guard.
///
/// ```compile_fail,E0507
/// # fn two_holders_of_one_grant(guard: &lease_core::hold::LeaseGuard) {
/// let data = guard.lease().into_hand_over(); // two processes would renew, and release, the same grant
/// # }
/// ```
///
/// **A clone of the [`Lease`] in it can be.** Then two processes renew one grant, both may act as its holder, no fence tells them apart since
/// they have the same token, and when one of them releases, the other one has lost it.
#[derive(Debug)]
pub struct HeldLease(Lease);

impl HeldLease {
    pub(super) fn new(lease: Lease) -> Self {
        Self(lease)
    }
}

impl Deref for HeldLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}
