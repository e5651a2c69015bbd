//! Keys in messages.

/// A key or a name for messages: in quotes, with what is no text escaped, and cut behind 64 bytes.
#[must_use]
pub fn key_text(key: &[u8]) -> String {
    const SHOWN_MAX: usize = 64;
    let shown = String::from_utf8_lossy(&key[..key.len().min(SHOWN_MAX)]);
    if key.len() > SHOWN_MAX {
        format!("{shown:?}… ({} bytes)", key.len())
    } else {
        format!("{shown:?}")
    }
}
