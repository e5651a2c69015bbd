//! From sound frames to others.

use samite_types::RequestId;
use samite_wire::control::{ControlRequest, decode};
use samite_wire::frame::{FrameHeader, FrameKind, HEADER_LEN};
use samite_wire::limits::{BODY_LEN_MAX, PAYLOAD_LEN_MAX};
use samite_wire::op::OperationRequest;
use zerocopy::IntoBytes;

use super::record::{FrameRecording, RecordedFrame};
use crate::rng::AcceptanceRng;

/// Bytes to send: one frame, or what is left of it.
pub fn next(recording: &FrameRecording, rng: &mut AcceptanceRng) -> Vec<u8> {
    let frame = rng.pick(&recording.requests);
    let (mut body, mut payload) = {
        let (body, payload) = frame.parts();
        (body.to_vec(), payload.to_vec())
    };
    let mut kind = frame.header.kind;
    match rng.below(8) {
        0 => {}
        1 => splice(&mut body, rng.pick(&recording.requests), rng),
        2 => cut(&mut body, rng),
        3 => cut(&mut payload, rng),
        4 => kind = *rng.pick(&KINDS),
        5 => body.extend((0..rng.below(64)).map(|at| at as u8)),
        _ => flip(&mut body, rng),
    }
    let mut bytes = if is_harmless(recording, kind, &body, &payload) {
        whole(kind, RequestId(rng.number() >> rng.below(64)), &body, &payload)
    } else {
        whole(frame.header.kind, frame.header.request_id, frame.parts().0, frame.parts().1)
    };
    // Beneath the checksum is one half; errors that the checksum, or the header, is to notice are
    // the other.
    match rng.below(10) {
        0 => flip(&mut bytes, rng),
        1 => flip_in(&mut bytes[..HEADER_LEN], rng),
        2 => cut(&mut bytes, rng),
        3 => {
            let len = rng.below(64) as usize;
            bytes.splice(..0, (0..len).map(|at| at as u8));
        }
        4 => {
            let len = (rng.number() >> rng.below(40)) as u32;
            let at = [4, 16][rng.below(2) as usize];
            bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
        _ => {}
    }
    bytes
}

const KINDS: [FrameKind; 11] = [
    FrameKind::Hello,
    FrameKind::Challenge,
    FrameKind::Proof,
    FrameKind::Welcome,
    FrameKind::Goodbye,
    FrameKind::Request,
    FrameKind::Reply,
    FrameKind::Control,
    FrameKind::ControlReply,
    FrameKind::Peer,
    FrameKind::PeerReply,
];

fn whole(kind: FrameKind, id: RequestId, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let (body, payload) =
        (&body[..body.len().min(BODY_LEN_MAX)], &payload[..payload.len().min(PAYLOAD_LEN_MAX)]);
    [FrameHeader::build(kind, id, 0, body, &[payload]).as_bytes(), body, payload].concat()
}

/// Whether a frame is no sound request that harms other clients: the attackers are of the same
/// user, so such requests are allowed.
fn is_harmless(recording: &FrameRecording, kind: FrameKind, body: &[u8], payload: &[u8]) -> bool {
    match kind {
        FrameKind::Request => OperationRequest::decode(body, payload)
            .map_or(true, |request| request.header.dataset == recording.dataset),
        FrameKind::Control => decode::<ControlRequest>(body).map_or(true, |request| {
            matches!(
                request,
                ControlRequest::Map { .. }
                    | ControlRequest::Status
                    | ControlRequest::Grant { .. }
                    | ControlRequest::Watch { .. }
                    | ControlRequest::Revocations { .. }
                    | ControlRequest::CancelLock { .. }
                    | ControlRequest::LockWaits(_)
            )
        }),
        _ => true,
    }
}

fn flip_in(bytes: &mut [u8], rng: &mut AcceptanceRng) {
    for _ in 0..=rng.below(3) {
        if !bytes.is_empty() {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
    }
}

fn flip(bytes: &mut [u8], rng: &mut AcceptanceRng) {
    // The fields that decide stand at the start; far behind them are only values.
    let end = if rng.one_in(4) { bytes.len() } else { bytes.len().min(64) };
    flip_in(&mut bytes[..end], rng);
}

fn cut(bytes: &mut Vec<u8>, rng: &mut AcceptanceRng) {
    let len = rng.below(bytes.len() as u64 + 1) as usize;
    bytes.truncate(len);
}

fn splice(body: &mut Vec<u8>, other: &RecordedFrame, rng: &mut AcceptanceRng) {
    cut(body, rng);
    let other = other.parts().0;
    let from = rng.below(other.len() as u64 + 1) as usize;
    body.extend_from_slice(&other[from..]);
}
