//! Bytes and sets of them, in the C locale.

use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir};

/// White space of the C locale.
pub(super) fn is_space(byte: u8) -> bool {
    byte == b' ' || (9..=13).contains(&byte)
}

/// Bytes of words.
pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A set of bytes.
#[derive(Clone, Debug)]
pub(super) struct ByteSet([bool; 256]);

impl ByteSet {
    pub(super) const EMPTY: ByteSet = ByteSet([false; 256]);

    pub(super) fn of(is: impl Fn(u8) -> bool) -> ByteSet {
        ByteSet(std::array::from_fn(|byte| is(byte as u8)))
    }

    pub(super) fn add(&mut self, byte: u8) {
        self.0[usize::from(byte)] = true;
    }

    pub(super) fn join(&mut self, other: &ByteSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(one, other)| *one |= other);
    }

    pub(super) fn negate(&mut self) {
        self.0.iter_mut().for_each(|has| *has = !*has);
    }

    pub(super) fn fold_case(&mut self) {
        for upper in b'A'..=b'Z' {
            let (upper, lower) = (usize::from(upper), usize::from(upper.to_ascii_lowercase()));
            let either = self.0[upper] || self.0[lower];
            (self.0[upper], self.0[lower]) = (either, either);
        }
    }

    /// No line has a newline in it.
    pub(super) fn into_hir(mut self) -> Hir {
        self.0[usize::from(b'\n')] = false;
        let bytes = (0..=255_u8).filter(|byte| self.0[usize::from(*byte)]);
        let class = ClassBytes::new(bytes.map(|byte| ClassBytesRange::new(byte, byte)));
        Hir::class(Class::Bytes(class))
    }
}

/// One byte as a pattern.
pub(super) fn literal(byte: u8, icase: bool) -> Hir {
    if icase && byte.is_ascii_alphabetic() {
        return ByteSet::of(|other| other.eq_ignore_ascii_case(&byte)).into_hir();
    }
    Hir::literal([byte])
}
