//! Which service the bytes are of that wait for a node.

use std::collections::VecDeque;

use samite_wire::peer::PeerService;

/// A service whose bytes that wait are bounded, whatever other services do.
pub(crate) trait BoundedService: Copy + Eq {
    /// Most of its bytes that wait for a connection to one node while the connection is made.
    fn kept_max(self) -> usize;
    /// Its bytes that wait for one node, beyond which nothing more of it is sent there.
    fn waiting_max(self) -> usize;
}

impl BoundedService for PeerService {
    fn kept_max(self) -> usize {
        match self {
            Self::Mirror => 4 << 20,
        }
    }

    fn waiting_max(self) -> usize {
        match self {
            Self::Mirror => 32 << 20,
        }
    }
}

/// The bytes of each service in the queue of a connection: what is first in it is sent first.
#[derive(Debug)]
pub(crate) struct WaitingBytes<S> {
    /// Bytes of one service that lie one behind the other, from the front of the queue.
    runs: VecDeque<(S, usize)>,
    /// Of each service that has been seen.
    lens: Vec<(S, usize)>,
    total: usize,
}

impl<S> Default for WaitingBytes<S> {
    fn default() -> Self {
        Self { runs: VecDeque::new(), lens: Vec::new(), total: 0 }
    }
}

impl<S: Copy + Eq> WaitingBytes<S> {
    /// Bytes of `service`.
    pub(crate) fn len(&self, service: S) -> usize {
        self.lens.iter().find(|(known, _)| *known == service).map_or(0, |(_, len)| *len)
    }

    /// Adds `len` bytes at the end of the queue.
    pub(crate) fn add(&mut self, service: S, len: usize) {
        self.total += len;
        match self.lens.iter_mut().find(|(known, _)| *known == service) {
            Some((_, known)) => *known += len,
            None => self.lens.push((service, len)),
        }
        match self.runs.back_mut() {
            Some((last, run)) if *last == service => *run += len,
            _ => self.runs.push_back((service, len)),
        }
    }

    /// The queue has `len` bytes now: what was in front of them is sent. Returns the bytes among
    /// them that no service has added: those of TLS records, and of frames that a fault held up.
    pub(crate) fn shrink_to(&mut self, len: usize) -> usize {
        while self.total > len
            && let Some((service, run)) = self.runs.front_mut()
        {
            let sent = (*run).min(self.total - len);
            *run -= sent;
            self.total -= sent;
            if let Some((_, known)) = self.lens.iter_mut().find(|(known, _)| known == service) {
                *known -= sent;
            }
            if *run == 0 {
                self.runs.pop_front();
            }
        }
        len.saturating_sub(self.total)
    }

    /// The queue is gone.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The reference: a queue with a byte for each byte.
        #[test]
        fn bytes_are_counted_as_they_lie_in_the_queue(
            steps in prop::collection::vec((0..3_u8, 0..40_usize, any::<bool>()), 1..80),
        ) {
            let (mut waiting, mut queue) = (WaitingBytes::default(), VecDeque::new());
            for (service, len, is_sent) in steps {
                if is_sent {
                    queue.drain(..len.min(queue.len()));
                    prop_assert_eq!(waiting.shrink_to(queue.len()), 0);
                } else {
                    queue.extend(std::iter::repeat_n(service, len));
                    waiting.add(service, len);
                }
                for service in 0..3 {
                    let len = queue.iter().filter(|known| **known == service).count();
                    prop_assert_eq!(waiting.len(service), len);
                }
            }
        }
    }

    #[test]
    fn bytes_that_no_service_added_are_told() {
        let mut waiting = WaitingBytes::default();
        waiting.add('a', 10);
        assert_eq!((waiting.shrink_to(15), waiting.len('a')), (5, 10));
        assert_eq!((waiting.shrink_to(4), waiting.len('a')), (0, 4));
        waiting.clear();
        assert_eq!((waiting.shrink_to(7), waiting.len('a')), (7, 0));
    }
}
