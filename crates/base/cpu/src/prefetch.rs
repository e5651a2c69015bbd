//! Hints to the processor about memory that will be needed soon.

/// Has the processor bring `len` bytes from `start` on into its cache, from line to line. Changes nothing that a program can see, whatever is
/// there.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch(start: *const u8, len: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    for line in lines(start, len) {
        // SAFETY: a hint, which does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
}

/// Like [`prefetch`], for memory that is to be written: other cores give up their copies at once, not when the first byte is written.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch_to_write(start: *const u8, len: usize) {
    for line in lines(start, len) {
        // The instruction itself: the library's hint becomes one to read unless a program is built for processors that are known to have this
        // one. Those that do not have it take it for none.
        // SAFETY: a hint, which does not fault.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) line,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
}

/// Where the cache lines of these bytes are.
#[cfg(target_arch = "x86_64")]
fn lines(start: *const u8, len: usize) -> impl Iterator<Item = *const u8> {
    const CACHE_LINE_LEN: usize = 64;
    (0..len).step_by(CACHE_LINE_LEN).map(move |offset| start.wrapping_add(offset))
}

/// There is no such hint for this processor.
#[cfg(not(target_arch = "x86_64"))]
pub const fn prefetch(_: *const u8, _: usize) {}

/// There is no such hint for this processor.
#[cfg(not(target_arch = "x86_64"))]
pub const fn prefetch_to_write(_: *const u8, _: usize) {}
