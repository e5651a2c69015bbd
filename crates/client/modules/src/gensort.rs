//! The records of the sort benchmark (sortbenchmark.org), byte for byte those of its program
//! gensort 1.5: 100 bytes, the first 10 of which are the key.
//!
//! A record is a function of its number, so that pieces of a file are made anywhere, in any order.

/// Length of a record, in bytes.
pub const RECORD_LEN: usize = 100;
/// Length of its key, in bytes: the first of the record.
pub const KEY_LEN: usize = 10;

/// The linear congruential generator of 128 bits: `next = state * MULTIPLIER + INCREMENT`.
const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
const INCREMENT: u128 = 0x4a69_6d47_7261_7952_4950_2020_2020_2001;

/// What the ten random numbers of a record without text are changed by, ten bytes each.
const MASKS: [u128; 10] = [
    0,
    0xf0e8_e4e2_e1d8_d4d2_d1cc << 48,
    0xcac9_c6c5_c3b8_b4b2_b1ac << 48,
    0xaaa9_a6a5_a39c_9a99_9695 << 48,
    0x938e_8d8b_8778_7472_716c << 48,
    0x6a69_6665_635c_5a59_5655 << 48,
    0x534e_4d4b_473c_3a39_3635 << 48,
    0x332e_2d2b_271e_1d1b_170f << 48,
    0xc8c4_c2c1_9894_9291_8ce0 << 48,
    0x170f_332e_2d2b_271e_1d1b << 48,
];

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// What records are made of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum RecordStyle {
    /// Bytes of all kinds.
    #[default]
    Binary,
    /// Printing characters, a line each (`gensort -a`).
    Ascii,
}

/// Makes records one after the other.
#[derive(Clone, Debug)]
pub struct RecordGenerator {
    style: RecordStyle,
    number: u128,
    random: u128,
}

impl RecordGenerator {
    /// Begins with record `number`, as `gensort -bNUMBER`. Another seed of the same file is a
    /// number far away.
    #[must_use]
    pub fn new(style: RecordStyle, number: u128) -> Self {
        RecordGenerator { style, number, random: next(skip(number)) }
    }

    /// Fills `out` with records.
    ///
    /// # Panics
    /// The length of `out` is no multiple of [`RECORD_LEN`].
    pub fn fill(&mut self, out: &mut [u8]) {
        assert!(out.len().is_multiple_of(RECORD_LEN), "records are whole");
        for record in out.chunks_exact_mut(RECORD_LEN) {
            match self.style {
                RecordStyle::Binary => binary(record, self.random),
                RecordStyle::Ascii => ascii(record, self.random, self.number),
            }
            self.random = next(self.random);
            self.number = self.number.wrapping_add(1);
        }
    }
}

/// Fills `out` with the bytes of the file of records from `offset` on, wherever that is in a
/// record. `first`: number of the record at offset 0.
pub fn fill_range(style: RecordStyle, first: u128, offset: u64, out: &mut [u8]) {
    let record = offset / RECORD_LEN as u64;
    let mut generator = RecordGenerator::new(style, first.wrapping_add(u128::from(record)));
    // Less than a record.
    let inside = (offset % RECORD_LEN as u64) as usize;
    let head = if inside == 0 { 0 } else { out.len().min(RECORD_LEN - inside) };
    let mut one = [0; RECORD_LEN];
    if head > 0 {
        generator.fill(&mut one);
        out[..head].copy_from_slice(&one[inside..inside + head]);
    }
    let rest = &mut out[head..];
    let (whole, tail) = rest.split_at_mut(rest.len() / RECORD_LEN * RECORD_LEN);
    generator.fill(whole);
    if !tail.is_empty() {
        generator.fill(&mut one);
        let len = tail.len();
        tail.copy_from_slice(&one[..len]);
    }
}

fn next(random: u128) -> u128 {
    random.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT)
}

/// The generator's state after `steps` steps from 0.
fn skip(mut steps: u128) -> u128 {
    let (mut multiplier, mut increment) = (MULTIPLIER, INCREMENT);
    let mut state = 0_u128;
    while steps != 0 {
        if steps & 1 == 1 {
            state = state.wrapping_mul(multiplier).wrapping_add(increment);
        }
        increment = increment.wrapping_mul(multiplier.wrapping_add(1));
        multiplier = multiplier.wrapping_mul(multiplier);
        steps >>= 1;
    }
    state
}

fn binary(record: &mut [u8], mut random: u128) {
    for (part, mask) in record.chunks_exact_mut(KEY_LEN).zip(MASKS) {
        part.copy_from_slice(&(random ^ mask).to_be_bytes()[..KEY_LEN]);
        random = next(random);
    }
}

fn ascii(record: &mut [u8], random: u128, number: u128) {
    let (high, low) = ((random >> 64) as u64, random as u64);
    printing(&mut record[..8], high);
    printing(&mut record[8..10], low);
    record[10..12].fill(b' ');
    for (index, digit) in record[12..44].iter_mut().enumerate() {
        *digit = HEX[(number >> (124 - 4 * index)) as usize & 15];
    }
    record[44..46].fill(b' ');
    for (index, digits) in record[46..98].chunks_exact_mut(4).enumerate() {
        digits.fill(HEX[(low >> (48 - 4 * index)) as usize & 15]);
    }
    record[98..].copy_from_slice(b"\r\n");
}

fn printing(key: &mut [u8], mut random: u64) {
    for byte in key {
        *byte = b' ' + (random % 95) as u8;
        random /= 95;
    }
}
