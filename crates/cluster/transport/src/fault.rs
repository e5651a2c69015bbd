//! Fault injection: carries out what [`samite_types::fault`] decides, on frames.
//!
//! A node injects faults into frames that it sends, by any connection, where the frame would enter
//! the connection; and into frames that clients send, where they would be handed to the service. So
//! a frame that is lost has been paid for like any other, and a late one delays its reader alone.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::net::sockopt;
use samite_types::RequestId;
use samite_types::fault::{FrameWords, TrafficClass};
use samite_wire::frame::{FLAG_PAYLOAD_UNCHECKED, FrameHeader, FrameKind, HEADER_LEN};
use zerocopy::IntoBytes;

/// Length of the checksum, which ends the header.
const CHECKSUM_LEN: usize = 4;

/// A frame, for the log of faults.
pub(crate) fn words(
    kind: FrameKind,
    request: RequestId,
    body: &[u8],
    payload: &[&[u8]],
) -> FrameWords {
    let payload_len: usize = payload.iter().map(|piece| piece.len()).sum();
    let traffic = match kind {
        FrameKind::Peer | FrameKind::PeerReply => TrafficClass::Peer,
        FrameKind::Control | FrameKind::ControlReply => TrafficClass::Coordinator,
        _ => TrafficClass::Other,
    };
    FrameWords { kind: kind.name(), request, len: HEADER_LEN + body.len() + payload_len, traffic }
}

/// A whole frame, as it goes on a wire.
pub(crate) fn whole(
    kind: FrameKind,
    request: RequestId,
    flags: u16,
    body: &[u8],
    payload: &[&[u8]],
) -> Vec<u8> {
    let header = FrameHeader::build(kind, request, flags, body, payload);
    [header.as_bytes(), body, &payload.concat()].concat()
}

/// Has the kernel reset a connection (RST) when it is closed, and throw away what waits to be sent. A Unix socket is just closed.
pub(crate) fn reset(fd: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
}

/// Turns one bit of a whole frame that its checksum tells of, and that does not say how long the frame is.
pub(crate) fn bend(frame: &mut [u8], flags: u16, body_len: usize, random: u64) {
    let end = if flags & FLAG_PAYLOAD_UNCHECKED == 0 { frame.len() } else { HEADER_LEN + body_len };
    let start = HEADER_LEN - CHECKSUM_LEN;
    let bits = (end - start) as u64 * 8;
    let bit = random % bits;
    frame[start + (bit / 8) as usize] ^= 1 << (bit % 8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use samite_wire::frame::CheckedHeader;

    use super::*;

    proptest! {
        /// Whichever bit is turned: the header is sound, and the checksum is not.
        #[test]
        fn what_is_bent_is_noticed(
            body in proptest::collection::vec(any::<u8>(), 0..100),
            payload in proptest::collection::vec(any::<u8>(), 0..100),
            on_ring in any::<bool>(),
            random in any::<u64>(),
        ) {
            let flags = if on_ring { FLAG_PAYLOAD_UNCHECKED } else { 0 };
            let mut frame = whole(FrameKind::Reply, RequestId(7), flags, &body, &[&payload]);
            bend(&mut frame, flags, body.len(), random);
            let (raw, content) = frame.split_first_chunk().unwrap();
            let header = CheckedHeader::parse(raw).unwrap();
            prop_assert_eq!(header.len_after(), content.len());
            let (body, payload) = content.split_at(header.body_len);
            prop_assert!(header.verify(body, &[payload]).is_err());
        }
    }
}
