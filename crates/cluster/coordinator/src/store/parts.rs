//! Messages of voters in parts: one may contain many states of the coordinator, and a frame about
//! one.

use std::collections::BTreeMap;

use samite_types::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};

/// Bytes of a message in one part, at most.
const PART_LEN: usize = 256 << 10;
/// Most parts of a message.
const PARTS_MAX: u32 = 256;

/// A part of a message.
#[derive(Debug, Serialize, Deserialize)]
struct MessagePart {
    /// The message's number at its sender; another run of it begins at another one.
    message: u64,
    /// Which part it is, of how many.
    index: u32,
    count: u32,
    bytes: Vec<u8>,
}

/// Cuts messages into parts.
#[derive(Debug)]
pub struct MessageCutter {
    next: u64,
}

impl MessageCutter {
    /// `start` is drawn at random.
    pub const fn new(start: u64) -> Self {
        Self { next: start }
    }

    /// The parts of a message, to be sent in this order; none of a message that is longer than it
    /// may be.
    pub fn cut(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        self.next = self.next.wrapping_add(1);
        let count = message.len().div_ceil(PART_LEN).max(1);
        if count > PARTS_MAX as usize {
            tracing::error!(len = message.len(), "a message to a voter is too long");
            return Vec::new();
        }
        let part = |index: u32| {
            let start = index as usize * PART_LEN;
            let end = message.len().min(start + PART_LEN);
            let bytes = message[start..end].to_vec();
            let part = MessagePart { message: self.next, index, count: count as u32, bytes };
            // Numbers and bytes can be written down.
            postcard::to_stdvec(&part).unwrap_or_default()
        };
        (0..count as u32).map(part).collect()
    }
}

/// A message of which some parts have come.
#[derive(Debug)]
struct PartialMessage {
    message: u64,
    parts: u32,
    bytes: Vec<u8>,
}

/// Puts parts together: of one message of each sender at a time.
#[derive(Debug, Default)]
pub struct MessageJoiner {
    begun: BTreeMap<NodeId, PartialMessage>,
}

impl MessageJoiner {
    /// A part has come from `sender`; the message, once it is whole. A message of which a part is
    /// missing is lost.
    ///
    /// # Errors
    /// `Corrupt`: it is no part.
    pub fn join(&mut self, sender: NodeId, part: &[u8]) -> Result<Option<Vec<u8>>> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "not a part of a message to a voter");
        let part: MessagePart = postcard::from_bytes(part).map_err(|_| corrupt())?;
        let MessagePart { message, index, count, bytes } = part;
        if index >= count || count > PARTS_MAX || bytes.len() > PART_LEN {
            return Err(corrupt());
        }
        if index == 0 {
            self.begun.insert(sender, PartialMessage { message, parts: 0, bytes: Vec::new() });
        }
        let Some(begun) = self.begun.get_mut(&sender) else { return Ok(None) };
        if begun.message != message || begun.parts != index {
            self.begun.remove(&sender);
            return Ok(None);
        }
        begun.parts += 1;
        begun.bytes.extend(bytes);
        if begun.parts < count {
            return Ok(None);
        }
        Ok(self.begun.remove(&sender).map(|begun| begun.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn message(len: usize, first: u8) -> Vec<u8> {
        (0..len).map(|index| first.wrapping_add((index % 251) as u8)).collect()
    }

    #[test]
    fn messages_of_any_length_arrive_whole() {
        let (mut cutter, mut joiner) = (MessageCutter::new(7), MessageJoiner::default());
        for len in [0, 1, PART_LEN - 1, PART_LEN, PART_LEN + 1, 3 * PART_LEN, 3 * PART_LEN + 5] {
            let sent = message(len, 3);
            let parts = cutter.cut(&sent);
            assert_eq!(parts.len(), len.div_ceil(PART_LEN).max(1));
            for (index, part) in parts.iter().enumerate() {
                let came = joiner.join(A, part).unwrap();
                let is_last = index + 1 == parts.len();
                assert_eq!(came, is_last.then(|| sent.clone()), "{len} bytes, part {index}");
            }
        }
        assert!(cutter.cut(&vec![0; PARTS_MAX as usize * PART_LEN + 1]).is_empty());
    }

    #[test]
    fn a_message_with_a_part_that_is_lost_or_comes_twice_does_not_come() {
        let (mut cutter, mut joiner) = (MessageCutter::new(7), MessageJoiner::default());
        let (one, two) = (message(3 * PART_LEN, 1), message(2 * PART_LEN, 2));
        let (first, second) = (cutter.cut(&one), cutter.cut(&two));
        for part in [&first[0], &first[2], &first[1], &first[2]] {
            assert_eq!(joiner.join(A, part).unwrap(), None);
        }
        for part in [&first[0], &first[0], &first[1], &first[1], &first[2], &second[1]] {
            assert_eq!(joiner.join(A, part).unwrap(), None);
        }
        // Senders do not disturb each other.
        assert_eq!(joiner.join(A, &second[0]).unwrap(), None);
        assert_eq!(joiner.join(B, &first[0]).unwrap(), None);
        assert_eq!(joiner.join(A, &second[1]).unwrap(), Some(two));
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let mut joiner = MessageJoiner::default();
        let part = |index, count, len| {
            postcard::to_stdvec(&MessagePart { message: 1, index, count, bytes: vec![0; len] })
                .unwrap()
        };
        for bad in [
            vec![],
            vec![255; 40],
            part(0, 0, 1),
            part(3, 3, 1),
            part(0, PARTS_MAX + 1, 1),
            part(0, 2, PART_LEN + 1),
        ] {
            assert_eq!(joiner.join(A, &bad).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
