//! A small seeded sequence: the same seed, the same choices.

/// splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of one of several who share a seed.
    pub(crate) fn of(seed: u64, who: u64) -> Self {
        Self(Self(seed ^ who.wrapping_mul(0xD6E8_FEB8_6659_FD93)).next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = self.0;
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `limit` − 1; 0 when there is none.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or_default()
    }

    /// A number from `from` to `to`.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from.saturating_add(self.below(to.saturating_sub(from).saturating_add(1)))
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(from.len()).unwrap_or(u64::MAX);
        from.get(usize::try_from(self.below(count)).unwrap_or_default())
    }
}
