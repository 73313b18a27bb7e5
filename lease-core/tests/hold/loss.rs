//! Loss is on time, for good, and with its cause.

use crate::bench::{STEP, TTL, bench, settle};
use lease_core::hold::{HoldOptions, LeaseGuard, LossCause, StaleBehaviour};
use lease_core::memory::{MemoryBackend, MemoryStore};
use lease_core::testing::Fault;
use lease_core::{
    Clock as _, Effect, FenceError, FencedRegister as _, ForceRelease, Forced, HolderLabel, LeaseBackend as _,
    LeaseExt as _, Operation, Release,
};
use std::time::Duration;

#[tokio::test]
async fn in_a_black_hole_it_is_lost_by_the_deadline_and_never_revived() {
    for fault in [Fault::Silent, Fault::SilentAfter, Fault::RequestLost, Fault::ReplyLost] {
        let bench = bench();
        let guard = bench.acquire().await;
        let deadline = bench.clock.now().saturating_add(guard.remaining());
        bench.backend.always(Operation::Renew, Some(fault));
        let waiter = async { guard.lost().await };
        let (loss, ()) = tokio::join!(waiter, bench.pass(TTL));
        assert_eq!(loss.cause(), LossCause::Unresolved, "{fault:?}");
        assert!(loss.at() >= deadline && loss.at() < deadline.saturating_add(STEP), "{fault:?}: noticed too late");
        bench.backend.always(Operation::Renew, None);
        bench.pass(TTL).await;
        assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause(), LossCause::Unresolved, "{fault:?}");
    }
}

#[tokio::test]
async fn a_definite_refusal_is_a_loss_at_once_with_its_reason() {
    let bench = bench();
    let guard = bench.acquire().await;
    let data = guard.into_hand_over().unwrap();
    let lease = data.clone().into_lease(bench.clock.shared()).unwrap();
    let guard = bench.keeper.hold(data.into_lease(bench.clock.shared()).unwrap(), HoldOptions::default());
    assert_eq!(bench.rival.release(&lease).await.unwrap(), Release::Released);
    bench.pass(Duration::from_secs(4)).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::ReleasedElsewhere);

    let guard = bench.acquire().await;
    let lease = guard.into_hand_over().unwrap().into_lease(bench.clock.shared()).unwrap();
    let guard = bench.keeper.hold(lease.clone(), HoldOptions::default());
    assert_eq!(bench.rival.release(&lease).await.unwrap(), Release::Released);
    let _newer = bench.rival.try_acquire("r", TTL).await.unwrap().unwrap();
    bench.pass(Duration::from_secs(4)).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Superseded);
}

#[tokio::test]
async fn a_deadline_that_passes_during_a_renewal_is_unresolved() {
    let bench = bench();
    let guard = bench.acquire().await;
    bench.backend.next(Operation::Renew, Fault::Silent);
    bench.pass(Duration::from_secs(3)).await;
    assert_eq!(bench.backend.calls(Operation::Renew), 1);
    bench.clock.advance(TTL);
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Unresolved);
}

fn order(guard: &LeaseGuard) -> ForceRelease {
    let value = guard.token().unwrap().value();
    ForceRelease::new(guard.resource().clone(), value, HolderLabel::parse("ops").unwrap(), "it hangs").unwrap()
}

#[tokio::test]
async fn a_grant_that_was_ended_by_force_is_lost_by_force_at_its_next_renewal() {
    let bench = bench();
    let guard = bench.acquire().await;
    assert_eq!(bench.rival.force_release(&order(&guard)).await.unwrap(), Forced::Ended);
    assert_eq!(guard.loss(), None, "nothing here can know it yet; the destination's guard is what protects the data");
    let refused = bench.rival.write(&guard.lease(), "late").await;
    assert!(matches!(refused, Err(FenceError::Refused { .. })), "the fence of the lease's own store does: {refused:?}");
    bench.pass(TTL / 3).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Forced);
    assert_eq!(guard.permit(StaleBehaviour::Fenced).unwrap_err().cause().id(), "forced");
    assert_eq!(guard.release().await.unwrap(), Release::NotHeld);

    // When somebody has it by then, that is what the store can still tell.
    let guard = bench.acquire().await;
    assert_eq!(bench.rival.force_release(&order(&guard)).await.unwrap(), Forced::Ended);
    let _newer = bench.rival.try_acquire("r", TTL).await.unwrap().unwrap();
    bench.pass(TTL / 3).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Superseded);
}

/// Nobody ordered it, so it is trouble at the store: here it has come back empty.
#[tokio::test]
async fn a_grant_whose_record_is_gone_is_revoked_and_not_ended_by_force() {
    let bench = bench();
    let before = MemoryBackend::on(MemoryStore::on_clock(bench.clock.shared()).unwrap());
    let lease = before.try_acquire("r", TTL).await.unwrap().unwrap();
    let guard = bench.keeper.hold(lease, HoldOptions::default());
    settle().await;
    bench.pass(TTL / 3).await;
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Revoked);
    assert_eq!(guard.loss().unwrap().cause().id(), "revoked");
}

#[tokio::test]
async fn an_order_whose_answer_was_lost_is_repeated() {
    for (fault, ended) in [(Fault::ReplyLost, true), (Fault::RequestLost, false), (Fault::Refused, false)] {
        let bench = bench();
        let guard = bench.acquire().await;
        bench.backend.next(Operation::ForceRelease, fault);
        let error = bench.backend.force_release(&order(&guard)).await.unwrap_err();
        let unknown = fault != Fault::Refused;
        assert_eq!(error.effect() == Effect::Unknown, unknown, "{fault:?}");
        assert_eq!(error.to_string().contains("repeat the order"), unknown, "{error}");
        assert_eq!(bench.is_free().await, ended, "{fault:?}");
        let again = bench.backend.force_release(&order(&guard)).await.unwrap();
        assert_eq!(again, if ended { Forced::NotHeld } else { Forced::Ended }, "{fault:?}");
        assert_eq!(bench.backend.calls(Operation::ForceRelease), 2);
    }
}
