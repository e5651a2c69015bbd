//! The hash that places everything. Part of the format: changing it moves every record.

use std::hash::{BuildHasherDefault, Hasher};

use samite_types::{PartitionId, ShardId};

/// XXH3-64 with seed 0 over the placement key. The same on every machine and in every version.
#[inline]
#[must_use]
pub fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// For tables of keys, hashes of keys, and tokens: the same order everywhere, and little to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

/// Makes a [`KeyHasher`].
pub type BuildKeyHasher = BuildHasherDefault<KeyHasher>;

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(32) ^ hash(bytes);
    }

    fn write_u64(&mut self, number: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ number) * u128::from(ODD);
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    /// The length prefix of a slice: the hash of the bytes says as much.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The shard, of `shards` (at least 1), that owns `partition` on the node that holds it. Known to the node alone.
#[inline]
#[must_use]
pub fn shard_of(partition: PartitionId, shards: u16) -> ShardId {
    // The remainder is below `shards`, which fits.
    ShardId((partition.get() % u32::from(shards.max(1))) as u16)
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// Fixed by the format: these values come from the XXH3 reference implementation.
    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(hash(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash(b"abc"), 0x78af_5f94_892f_3950);
    }
}
