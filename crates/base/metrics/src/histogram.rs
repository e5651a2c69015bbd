//! Buckets of histograms: powers of two, in microseconds.

/// Buckets of a histogram. Bucket `i` has times up to 2^i µs and above those of the bucket before;
/// the last one has all longer times.
pub const BUCKETS: usize = 25;

/// The bucket of a time in microseconds.
#[must_use]
pub const fn bucket_of(micros: u64) -> usize {
    // 0 and 1 go into the first, 2 into the second, 3 and 4 into the third.
    let bits = match micros {
        0 | 1 => 0,
        _ => (u64::BITS - (micros - 1).leading_zeros()) as usize,
    };
    if bits < BUCKETS { bits } else { BUCKETS - 1 }
}

/// The longest time of a bucket in microseconds; `None`: it has no bound.
#[must_use]
pub const fn bound_of(bucket: usize) -> Option<u64> {
    if bucket + 1 < BUCKETS { Some(1 << bucket) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_has_room_for_it() {
        for micros in (0..5000).chain([1 << 22, (1 << 23) - 1, 1 << 23, (1 << 23) + 1, u64::MAX]) {
            let bucket = bucket_of(micros);
            assert!(bound_of(bucket).is_none_or(|bound| micros <= bound), "{micros}");
            let below = bucket.checked_sub(1).and_then(bound_of);
            assert!(below.is_none_or(|bound| micros > bound), "{micros}");
        }
        assert_eq!((bound_of(0), bound_of(BUCKETS - 2)), (Some(1), Some(1 << 23)));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
