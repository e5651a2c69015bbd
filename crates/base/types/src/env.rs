//! Environment of the pure parts: time and randomness.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Source of time. The simulator has its own.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Time since 1970-01-01 UTC: for the times of files, and to tell processes of a node apart. It may be set back.
    fn realtime(&self) -> Duration;
}

/// Source of randomness. The simulator has its own.
pub trait Entropy: Send + Sync {
    /// Fills `out` with unpredictable bytes.
    fn fill(&self, out: &mut [u8]);

    /// One unpredictable number.
    fn next_u64(&self) -> u64 {
        let mut raw = [0; 8];
        self.fill(&mut raw);
        u64::from_le_bytes(raw)
    }
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    // The kernel never hands out negative values for these two clocks after 1970.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        read(ClockId::Monotonic)
    }

    fn realtime(&self) -> Duration {
        read(ClockId::Realtime)
    }
}

/// The kernel's random number generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, mut out: &mut [u8]) {
        // A loop because getrandom may return fewer bytes than asked when a signal arrives.
        while !out.is_empty() {
            if let Ok(len) =
                rustix::rand::getrandom(&mut *out, rustix::rand::GetRandomFlags::empty())
            {
                out = &mut out[len..];
            }
        }
    }
}
