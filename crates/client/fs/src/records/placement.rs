//! Which partition a record of a file system is in, by its key, and what becomes of the records that
//! lie in several: for what moves whole datasets. See [`super::key`].

use samite_client::record_placement::RecordPlacement;

use super::change_stamps::ChangeStamps;

/// Key of the root directory's inode: a dataset with it is a file system.
pub const MARKER_KEY: &[u8] = b"h\0\0\0\0\0\0\0\x01";

const INO_LEN: usize = 8;

/// Where a file system keeps the record with this key; `None`: it is none of its records.
#[must_use]
pub fn record_placement(key: &[u8]) -> Option<RecordPlacement<'_>> {
    let (tag, rest) = key.split_first()?;
    let is_number = rest.len() == INO_LEN;
    match *tag {
        b'e' if rest.len() > INO_LEN => Some(RecordPlacement::Hashed(key)),
        b'h' | b'l' if is_number => Some(RecordPlacement::Hashed(key)),
        b'n' => Some(RecordPlacement::Hashed(key)),
        b'x' if rest.len() >= INO_LEN => Some(RecordPlacement::Hashed(&key[..=INO_LEN])),
        b'c' if rest.len() == INO_LEN + 4 => {
            let (object, number) = rest.split_at(INO_LEN);
            let number = u32::from_be_bytes(*number.first_chunk()?);
            Some(RecordPlacement::Chunk { object, number: number.into() })
        }
        b'w' | b't' if is_number => Some(RecordPlacement::PerPartition),
        b'o' if is_number => Some(RecordPlacement::Anywhere),
        b'i' => match record_placement(rest)? {
            placement @ RecordPlacement::Hashed(_) => Some(placement),
            _ => Some(RecordPlacement::Anywhere),
        },
        b'k' if is_number => Some(RecordPlacement::Verdict),
        b's' | b'f' if is_number => Some(RecordPlacement::Transient),
        _ => None,
    }
}

/// The value of a record that says what those of several partitions say together
/// ([`RecordPlacement::PerPartition`]).
#[must_use]
pub fn merged_record<'v>(key: &[u8], values: impl IntoIterator<Item = &'v [u8]>) -> Vec<u8> {
    if key.first() == Some(&b't') {
        let mut stamps = ChangeStamps::NONE;
        values.into_iter().for_each(|value| stamps.add(value));
        return stamps.record().to_vec();
    }
    let time = |value: &[u8]| value.first_chunk().map(|raw| i64::from_le_bytes(*raw));
    let latest = values.into_iter().filter_map(time).max().unwrap_or(i64::MIN);
    latest.to_le_bytes().to_vec()
}

/// Token of a move, and key of its destination, from the value of its intent.
#[must_use]
pub fn move_of_intent(value: &[u8]) -> Option<(u64, &[u8])> {
    let (token, rest) = value.split_first_chunk::<8>()?;
    let ([_, _, _, low, high], rest) = rest.split_first_chunk::<5>()?;
    let destination = rest.get(..usize::from(u16::from_le_bytes([*low, *high])))?;
    Some((u64::from_le_bytes(*token), destination))
}

/// Token of the move that the verdict with this key is about.
#[must_use]
pub fn token_of_verdict(key: &[u8]) -> Option<u64> {
    let (tag, token) = key.split_first()?;
    (*tag == b'k').then_some(())?;
    Some(u64::from_be_bytes(token.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::key;
    use super::*;

    #[test]
    fn each_kind_of_key_has_its_place() {
        use RecordPlacement::{Anywhere, Chunk, Hashed, PerPartition, Transient, Verdict};
        assert_eq!(&key::own(key::ROOT_INO)[..], MARKER_KEY);
        let entry = key::entry(7, b"name");
        let ino = 7_u64.to_be_bytes();
        for (key, placement) in [
            (entry.clone(), Hashed(&entry)),
            (key::own(7), Hashed(&key::own(7))),
            (key::location(7), Hashed(&key::location(7))),
            (key::attribute(7, b"user.a"), Hashed(&key::attribute(7, b""))),
            (key::chunk(7, 9), Chunk { object: &ino, number: 9 }),
            (key::stamp(7), PerPartition),
            (key::change_stamp(7), PerPartition),
            (key::orphan(7), Anywhere),
            (key::intent(&entry), Hashed(&entry)),
            (key::intent(&key::orphan(7)), Anywhere),
            (key::verdict(7), Verdict),
            (key::tombstone(7), Transient),
            (key::fence(7), Transient),
            (key::Key::from_slice(key::INO_COUNTER), Hashed(key::INO_COUNTER)),
        ] {
            assert_eq!(record_placement(&key), Some(placement), "{key:?}");
        }
        assert_eq!(record_placement(b"v some other view"), None);
        assert_eq!(record_placement(b""), None);
        assert_eq!(token_of_verdict(&key::verdict(5)), Some(5));
    }

    #[test]
    fn records_of_several_partitions_become_one() {
        let stamp = |time: i64, count: i64| [time.to_le_bytes(), count.to_le_bytes()].concat();
        let (a, b, c) = (stamp(5, 2), stamp(9, -1), 7_i64.to_le_bytes());
        assert_eq!(merged_record(&key::change_stamp(1), [&a[..], &b, &c]), stamp(9, 1));
        assert_eq!(merged_record(&key::stamp(1), [&c[..], &5_i64.to_le_bytes()]), c);
    }
}
