//! Bounds of a scan over ordered keys.

use std::ops::Bound;

use smallvec::SmallVec;

/// The least key that is greater than every key that starts with `prefix`; `None` if there is no such key.
pub(crate) fn successor(prefix: &[u8]) -> Option<SmallVec<[u8; 32]>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut key = SmallVec::from_slice(&prefix[..=last]);
    key[last] += 1;
    Some(key)
}

/// First and last of an ordered map's keys to look at.
pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Where to look for the keys that start with `prefix`: those after `after` (before it when `reverse`) unless it is empty;
/// `None`: there can be none. Backwards, `beyond` is the prefix's [`successor`]; forwards, the far end is open, and the scan
/// stops at the first key without the prefix.
pub(crate) fn scan_range<'a>(
    prefix: &'a [u8],
    after: &'a [u8],
    reverse: bool,
    beyond: Option<&'a [u8]>,
) -> Option<Bounds<'a>> {
    if !reverse {
        let skips = !after.is_empty() && after >= prefix;
        let start = if skips { Bound::Excluded(after) } else { Bound::Included(prefix) };
        return Some((start, Bound::Unbounded));
    }
    let bound = (!after.is_empty()).then_some(after);
    let end = match (bound, beyond) {
        // No key with the prefix comes before the prefix.
        (Some(after), _) if after <= prefix => return None,
        (Some(after), Some(beyond)) => Bound::Excluded(after.min(beyond)),
        (Some(end), None) | (None, Some(end)) => Bound::Excluded(end),
        (None, None) => Bound::Unbounded,
    };
    Some((Bound::Included(prefix), end))
}
