//! Hints to the processor about memory that will be needed soon.

/// Has the processor bring `len` bytes from `start` on into its cache, from line to line. Changes nothing that a program can see, whatever is
/// there.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch(start: *const u8, len: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    const CACHE_LINE_LEN: usize = 64;
    for offset in (0..len).step_by(CACHE_LINE_LEN) {
        // SAFETY: a hint, which does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset).cast()) };
    }
}

/// There is no such hint for this processor.
#[cfg(not(target_arch = "x86_64"))]
pub const fn prefetch(_: *const u8, _: usize) {}
