//! Checksums by which copies of a partition find that they differ.

/// Takes in one number after the other.
#[derive(Clone, Copy, Debug)]
pub struct StateDigest(u64);

impl StateDigest {
    /// Of nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// Takes in `number`; the order of numbers counts.
    pub const fn add(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 = mixed ^ (mixed >> 32);
    }

    /// The digest of all that was taken in.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Default for StateDigest {
    fn default() -> Self {
        Self::new()
    }
}
