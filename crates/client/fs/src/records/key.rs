//! A file system as records: the keys.
//!
//! | key | value | partition |
//! |---|---|---|
//! | `e` parent-ino name | inode, then inline data: a directory entry | hash of the key |
//! | `h` ino | inode that lives apart from its entries: the root, files with several links | hash of the key |
//! | `o` token | inode without a name that a process still has open | that of the name it had last |
//! | `c` ino chunk-no | file data | the dataset's distribution |
//! | `w` ino | when the chunks here were last written, as far as it is not settled | those of the file's chunks |
//! | `f` ino | fence: token of the only handle that may spill the file's tail into chunks here | those of the chunks of a tail whose spilling was taken over |
//! | `s` directory-ino | tombstone: the directory is being removed, nothing may be made in it | every partition |
//! | `t` directory-ino | change stamp: when an entry here changed, how many of them are directories | each partition that has or had entries |
//! | `l` ino | key of the entry that a renamed file lives in now | hash of the key |
//! | `i` key | intent: the entry or inode with this key is moving | that of the key |
//! | `k` token | verdict on a move | that of the move's destination |
//! | `x` ino name | extended attribute | hash of `x` ino |
//! | `n` word | counters and locks of the whole file system | hash of the key |
//!
//! Numbers are big-endian, so that key order is number order. Tombstones, change stamps and intents
//! lie in the partition of the entries they speak of: one operation can check or change both.

use smallvec::SmallVec;

use crate::NAME_LEN_MAX;

/// Longest key: the intent of an entry with the longest name.
pub const KEY_LEN_MAX: usize = 1 + 1 + 8 + NAME_LEN_MAX;

/// Number of the root directory.
pub const ROOT_INO: u64 = 1;

/// Bytes of a key that need no allocation: an entry with a name of 47 bytes. Keys are moved about much, so their size counts.
const KEY_LEN_USUAL: usize = 56;

/// A record key.
pub type Key = SmallVec<[u8; KEY_LEN_USUAL]>;

fn keyed(tag: u8, ino: u64, rest: &[u8]) -> Key {
    let mut key = Key::new();
    key.push(tag);
    key.extend_from_slice(&ino.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

pub fn entry(parent: u64, name: &[u8]) -> Key {
    keyed(b'e', parent, name)
}

/// Prefix of all entries of a directory.
pub fn entries(directory: u64) -> Key {
    keyed(b'e', directory, b"")
}

/// Parent and name behind an entry's key.
pub fn parse_entry(key: &[u8]) -> Option<(u64, &[u8])> {
    let (tag, rest) = key.split_first()?;
    let (parent, name) = rest.split_first_chunk::<8>()?;
    (*tag == b'e').then_some((u64::from_be_bytes(*parent), name))
}

pub fn own(ino: u64) -> Key {
    keyed(b'h', ino, b"")
}

/// The inode behind the key of its own record or of a directory's change stamps.
pub fn parse_inode(key: &[u8]) -> Option<u64> {
    let (tag, rest) = key.split_first()?;
    let ino = u64::from_be_bytes(rest.try_into().ok()?);
    matches!(tag, b'h' | b't').then_some(ino)
}

/// A place for an inode that loses its name; no longer than any key that an inode can have before.
pub fn orphan(token: u64) -> Key {
    keyed(b'o', token, b"")
}

/// Prefix of all orphans.
pub const ORPHANS: &[u8] = b"o";

pub fn is_orphan(key: &[u8]) -> bool {
    key.starts_with(ORPHANS)
}

pub fn chunk(ino: u64, chunk_no: u32) -> Key {
    keyed(b'c', ino, &chunk_no.to_be_bytes())
}

/// Prefix of all chunks of a file.
pub fn chunks(ino: u64) -> Key {
    keyed(b'c', ino, b"")
}

/// When the chunks of a file in one partition were last written.
pub fn stamp(ino: u64) -> Key {
    keyed(b'w', ino, b"")
}

/// Token of the handle that may spill the tail of a file into its chunks in one partition.
pub fn fence(ino: u64) -> Key {
    keyed(b'f', ino, b"")
}

/// Number of the chunk behind its key.
pub fn parse_chunk(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*key.get(9..)?.first_chunk::<4>()?))
}

pub fn tombstone(directory: u64) -> Key {
    keyed(b's', directory, b"")
}

pub fn change_stamp(directory: u64) -> Key {
    keyed(b't', directory, b"")
}

pub fn location(ino: u64) -> Key {
    keyed(b'l', ino, b"")
}

pub fn intent(moving: &[u8]) -> Key {
    let mut key = Key::new();
    key.push(b'i');
    key.extend_from_slice(moving);
    key
}

pub fn verdict(token: u64) -> Key {
    keyed(b'k', token, b"")
}

pub fn attribute(ino: u64, name: &[u8]) -> Key {
    keyed(b'x', ino, name)
}

/// Counter from which processes take ranges of inode numbers.
pub const INO_COUNTER: &[u8] = b"nino";
/// Counter from which name-space generations are drawn.
pub const GENERATION_COUNTER: &[u8] = b"nlease";
/// Held while a directory moves to another parent, so that two moves cannot make a loop.
pub const DIRECTORY_MOVE_LOCK: &[u8] = b"nmove";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_chunks_parse_back() {
        let key = entry(7, b"a\nb\xff");
        assert_eq!(parse_entry(&key), Some((7, &b"a\nb\xff"[..])));
        assert!(key.starts_with(&entries(7)));
        assert_eq!(parse_entry(&chunk(7, 9)), None);
        assert_eq!(parse_chunk(&chunk(7, 9)), Some(9));
        assert_eq!(parse_chunk(&entries(7)), None);
    }

    #[test]
    fn usual_keys_need_no_allocation_and_long_ones_are_whole() {
        assert!(!entry(u64::MAX, &[b'x'; 47]).spilled());
        let longest = entry(u64::MAX, &[b'x'; NAME_LEN_MAX]);
        assert_eq!(parse_entry(&longest), Some((u64::MAX, &[b'x'; NAME_LEN_MAX][..])));
    }
}
