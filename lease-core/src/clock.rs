//! Time that counts machine suspend and never jumps: the boot clock.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An instant on the boot clock of this machine, in nanoseconds since boot, suspended time included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// The instant of boot: as a deadline, one that has always passed.
    pub const ZERO: Self = Self(0);

    /// The instant `nanos` nanoseconds after boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `after` later; stops at the end of the clock's range (584 years).
    #[must_use]
    pub fn saturating_add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The instant `before` earlier; stops at boot.
    #[must_use]
    pub fn saturating_sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(before.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Tells one boot of one machine from every other: boot instants mean something only together with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BootId(Arc<str>);

impl BootId {
    /// A boot id from text; for stores and hand-overs that keep one.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The clock that deadlines count on.
///
/// Behind a trait so that tests can freeze and jump it. `now` never goes back.
#[async_trait::async_trait]
pub trait Clock: fmt::Debug + Send + Sync {
    /// The present instant.
    fn now(&self) -> BootInstant;

    /// The boot that the instants belong to.
    fn boot_id(&self) -> BootId;

    /// Returns when `at` has passed, at once if it already has.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    async fn sleep_until(&self, at: BootInstant);
}

/// A clock shared by a backend and its leases.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's boot clock (`CLOCK_BOOTTIME` on Linux; elsewhere the monotonic clock, which may stop in suspend).
///
/// A pause of a whole virtual machine from outside can stop every clock that its guest can read; only fencing covers that.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The clock, ready to share.
    #[must_use]
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

#[async_trait::async_trait]
impl Clock for SystemClock {
    fn now(&self) -> BootInstant {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
        let time = rustix::time::clock_gettime(id);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        BootInstant(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    fn boot_id(&self) -> BootId {
        static ID: OnceLock<BootId> = OnceLock::new();
        ID.get_or_init(|| {
            std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
                // No boot id here: one of this process's own, so that nothing is taken for the same boot.
                |_| BootId(crate::OwnerToken::random().map_or_else(|_| "unknown".into(), |t| t.reveal().into())),
                |text| BootId(text.trim().into()),
            )
        })
        .clone()
    }

    async fn sleep_until(&self, at: BootInstant) {
        // Tokio's timers stand still in suspend, so look at the boot clock again at least once a second.
        loop {
            let left = at.saturating_since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        }
    }
}

/// A clock that moves only when it is told to; clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<tokio::sync::watch::Sender<BootInstant>>,
    boot_id: BootId,
}

impl ManualClock {
    /// A clock that stands at one hour after boot.
    #[must_use]
    pub fn new() -> Self {
        let start = BootInstant(3_600_000_000_000);
        Self { now: Arc::new(tokio::sync::watch::Sender::new(start)), boot_id: BootId("manual".into()) }
    }

    /// Moves the time forward and wakes whoever slept until then.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = now.saturating_add(by));
    }

    /// The clock, ready to share.
    #[must_use]
    pub fn shared(&self) -> SharedClock {
        Arc::new(self.clone())
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait::async_trait]
impl Clock for ManualClock {
    fn now(&self) -> BootInstant {
        *self.now.borrow()
    }

    fn boot_id(&self) -> BootId {
        self.boot_id.clone()
    }

    async fn sleep_until(&self, at: BootInstant) {
        let mut watch = self.now.subscribe();
        // The sender lives in `self`, so the wait cannot fail while this future is polled.
        drop(watch.wait_for(|now| *now >= at).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn manual_clock_wakes_sleepers() {
        let clock = ManualClock::new();
        let at = clock.now().saturating_add(Duration::from_secs(5));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(at).await }
        });
        clock.advance(Duration::from_secs(4));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(BootInstant(u64::MAX).saturating_add(Duration::MAX), BootInstant(u64::MAX));
        assert_eq!(BootInstant(1).saturating_since(BootInstant(2)), Duration::ZERO);
        assert_eq!(BootInstant(5).saturating_sub(Duration::from_nanos(2)), BootInstant(3));
        assert_eq!(BootInstant(5).saturating_sub(Duration::MAX), BootInstant::ZERO);
        assert!(SystemClock.now() > BootInstant::ZERO);
        assert_eq!(SystemClock.boot_id(), SystemClock.boot_id());
    }
}
