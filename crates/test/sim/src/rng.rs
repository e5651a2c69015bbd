//! The only source of chance in a simulated world.

use std::time::Duration;

/// A small generator (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct SimRng(u64);

impl SimRng {
    /// The generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator, independent of later draws from this one; equal tags give equal
    /// generators.
    #[must_use]
    pub fn fork(&self, tag: u64) -> Self {
        Self(Self(self.0 ^ tag.wrapping_mul(0xd6e8_feb8_6659_fd93)).next())
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "numbers without an end are no iterator")]
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is far below the resolution of a test of this size.
        self.next() % bound
    }

    /// A number from `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `permille` times in a thousand.
    pub const fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A time from `low` to `high`, in microseconds.
    pub const fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low, high))
    }

    /// One of `from`, which is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
