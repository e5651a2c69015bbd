//! Checksums of files.
//!
//! CRC-32C is made of pieces in any order and joined. xxh3 and SHA-256 need the bytes of a file one
//! after the other: [`SequentialSum`] goes from piece to piece.

use crc_fast::CrcAlgorithm;
use serde::{Deserialize, Serialize};
use sha2::Digest;

/// The CRC-32C of a piece.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CrcPartial {
    crc: u32,
    len: u64,
}

impl CrcPartial {
    /// That of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> CrcPartial {
        CrcPartial { crc: crc_fast::crc32_iscsi(bytes), len: bytes.len() as u64 }
    }

    /// Appends what follows.
    pub fn join(&mut self, next: &CrcPartial) {
        let (one, other) = (u64::from(self.crc), u64::from(next.crc));
        let joined = match (self.len, next.len) {
            (_, 0) => one,
            (0, _) => other,
            (_, len) => crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, one, other, len),
        };
        // A sum of 32 bits in a number of 64.
        self.crc = joined as u32;
        self.len = self.len.wrapping_add(next.len);
    }

    /// The sum, if this is the whole file.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }
}

/// Sums that are made from the first byte to the last.
#[derive(Clone)]
pub enum SequentialSum {
    /// XXH3 of 64 bits.
    Xxh3(Box<xxhash_rust::xxh3::Xxh3>),
    /// SHA-256.
    Sha256(sha2::Sha256),
}

impl std::fmt::Debug for SequentialSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SequentialSum::Xxh3(_) => "SequentialSum::Xxh3",
            SequentialSum::Sha256(_) => "SequentialSum::Sha256",
        })
    }
}

impl SequentialSum {
    /// XXH3 of no bytes.
    #[must_use]
    pub fn xxh3() -> Self {
        SequentialSum::Xxh3(Box::default())
    }

    /// SHA-256 of no bytes.
    #[must_use]
    pub fn sha256() -> Self {
        SequentialSum::Sha256(sha2::Sha256::new())
    }

    /// Appends the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            SequentialSum::Xxh3(hasher) => hasher.update(bytes),
            SequentialSum::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// The sum, as its programs print it: hexadecimal, in small letters.
    #[must_use]
    pub fn hex(&self) -> String {
        match self {
            SequentialSum::Xxh3(hasher) => format!("{:016x}", hasher.digest()),
            SequentialSum::Sha256(hasher) => {
                let sum = hasher.clone().finalize();
                sum.iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sums_are_those_of_the_standards() {
        assert_eq!(CrcPartial::of(b"123456789").crc(), 0xe306_9283);
        let mut xxh3 = SequentialSum::xxh3();
        assert_eq!(xxh3.hex(), "2d06800538d394c2");
        xxh3.update(b"ab");
        xxh3.update(b"c");
        assert_eq!(xxh3.hex(), "78af5f94892f3950");
        let mut sha = SequentialSum::sha256();
        sha.update(b"a");
        sha.update(b"bc");
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha.hex(), expected);
    }

    proptest! {
        #[test]
        fn pieces_have_the_sum_of_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
        ) {
            let mut joined = CrcPartial::default();
            pieces.iter().for_each(|piece| joined.join(&CrcPartial::of(piece)));
            prop_assert_eq!(joined.crc(), CrcPartial::of(&pieces.concat()).crc());
        }
    }
}
