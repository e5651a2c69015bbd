//! Messages between members: what is written is read; what is broken is refused.

#[allow(dead_code, reason = "replies are for the other tests")]
mod common;

use common::{Bytes, key, leak, operation};
use proptest::collection::vec;
use proptest::prelude::*;
use samite_types::{
    ClientId, DatasetId, Epoch, ErrorKind, PartitionId, Position, Seq, TargetId, Term, Version,
};
use samite_wire::WireError;
use samite_wire::op::{Action, Operation, ValueData};
use samite_wire::peer::{
    EntryEvent, LogPoint, PartitionLogEntry, PeerEnvelope, PeerMessage, PeerMessages, PeerService,
    RecordCopy,
};

fn envelope() -> impl Strategy<Value = PeerEnvelope> {
    (any::<[u32; 5]>(), any::<u64>()).prop_map(|(ids, epoch)| PeerEnvelope {
        dataset: DatasetId(ids[0]),
        partition: PartitionId(ids[1]),
        from: TargetId(ids[2]),
        to: TargetId(ids[3]),
        term: Term(ids[4]),
        epoch: Epoch(epoch),
    })
}

fn bytes(len_max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..=len_max).prop_map(leak)
}

fn kind() -> impl Strategy<Value = ErrorKind> {
    (1..36_u8).prop_map(|code| ErrorKind::from_code(code).expect("a kind"))
}

fn record() -> impl Strategy<Value = RecordCopy<'static>> {
    let piece = prop_oneof![
        bytes(60).prop_map(ValueData::Inline),
        (0..100_u32).prop_map(ValueData::Zeros),
    ];
    let value = prop::option::of(vec(piece, 0..4).prop_map(Into::into));
    (key(), any::<u64>(), value).prop_filter_map("no key", |(key, version, value)| {
        (!key.is_empty()).then_some(RecordCopy { key, version: Version(version), value })
    })
}

/// Blocks of shared memory mean nothing elsewhere.
fn travels(operation: &Operation<'_>) -> bool {
    operation.actions.iter().all(|action| match action {
        Action::Put { data, .. } | Action::Write { data, .. } | Action::Append { data, .. } => {
            !matches!(data, ValueData::Blocks(_))
        }
        _ => true,
    })
}

fn event() -> impl Strategy<Value = EntryEvent<'static>> {
    let client = || any::<u64>().prop_map(ClientId);
    prop_oneof![
        Just(EntryEvent::Opened),
        (
            client(),
            any::<u64>(),
            any::<bool>(),
            any::<u64>(),
            operation().prop_filter("blocks", travels)
        )
            .prop_map(|(client, below, is_retry, name_space, operation)| {
                EntryEvent::Applied {
                    client,
                    answered_below: Seq(below),
                    is_retry,
                    name_space_generation: Epoch(name_space),
                    operation,
                }
            }),
        (client(), any::<u64>(), any::<u64>(), kind(), 0..64_u16).prop_map(
            |(client, below, seq, kind, index)| EntryEvent::Refused {
                client,
                answered_below: Seq(below),
                seq: Seq(seq),
                kind,
                index,
            }
        ),
        client().prop_map(|client| EntryEvent::Gone { client }),
        any::<bool>().prop_map(|on| EntryEvent::Lending { on }),
        (key(), key(), any::<u64>()).prop_map(|(after, upto, digest)| EntryEvent::Digest {
            after,
            upto,
            digest
        }),
        (key(), key(), vec(record(), 0..4)).prop_map(|(after, upto, records)| EntryEvent::Range {
            after,
            upto,
            records
        }),
    ]
}

fn entry() -> impl Strategy<Value = PartitionLogEntry<'static>> {
    (any::<[u32; 2]>(), 0..u64::MAX, any::<[u64; 2]>(), any::<u32>(), event()).prop_map(
        |(mut terms, position, mut versions, outcome, event)| {
            terms.sort_unstable();
            versions.sort_unstable();
            let point = |at: usize| LogPoint {
                term: Term(terms[at]),
                position: Position(position + at as u64),
                version: Version(versions[at]),
            };
            PartitionLogEntry { before: point(0), after: point(1), outcome, event }
        },
    )
}

fn message() -> impl Strategy<Value = PeerMessage<'static>> {
    prop_oneof![
        entry().prop_map(PeerMessage::Entry),
        entry().prop_map(PeerMessage::Tail),
        answer(),
        resync()
    ]
}

fn answer() -> impl Strategy<Value = PeerMessage<'static>> {
    let position = || any::<u64>().prop_map(Position);
    prop_oneof![
        (position(), position(), any::<(u64, bool, u32)>()).prop_map(
            |(position, here, (room, has_reserve, answers))| {
                PeerMessage::Applied { position, here, room, has_reserve, answers }
            }
        ),
        (position(), any::<u32>(), any::<[u64; 3]>()).prop_map(
            |(position, number, [claim, need, wanted])| {
                PeerMessage::AskRoom { number, position, claim, need, wanted }
            }
        ),
        position().prop_map(|have| PeerMessage::Gap { have }),
        position().prop_map(|have| PeerMessage::AskTail { have }),
        position().prop_map(|upto| PeerMessage::TailEnd { upto }),
        (position(), kind()).prop_map(|(position, kind)| PeerMessage::Unfit { position, kind }),
        (key(), key()).prop_map(|(after, upto)| PeerMessage::Differs { after, upto }),
        (any::<u64>(), position())
            .prop_map(|(asked, position)| PeerMessage::AskReads { asked, position }),
        (any::<u64>(), position())
            .prop_map(|(asked, position)| PeerMessage::LendReads { asked, position }),
        key()
            .prop_filter("a key", |key| !key.is_empty())
            .prop_map(|key| PeerMessage::Fetch { key }),
        record().prop_map(|record| PeerMessage::Fetched { record }),
        Just(PeerMessage::Stale),
    ]
}

fn resync() -> impl Strategy<Value = PeerMessage<'static>> {
    let step = || (any::<u32>(), any::<u32>());
    let versions = || vec((key(), any::<u64>().prop_map(Version)), 0..5);
    prop_oneof![
        any::<u32>().prop_map(|attempt| PeerMessage::Begin { attempt }),
        (step(), key(), key(), versions()).prop_map(|((attempt, step), after, upto, records)| {
            PeerMessage::Compare { attempt, step, after, upto, records }
        }),
        (step(), vec(record(), 0..4)).prop_map(|((attempt, step), records)| PeerMessage::Records {
            attempt,
            step,
            records
        }),
        (step(), bytes(200), 0..99_u32, 0..99_u32).prop_map(
            |((attempt, step), bytes, offset, more)| {
                let total_len = offset + bytes.len() as u32 + more;
                PeerMessage::State { attempt, step, total_len, offset, bytes }
            }
        ),
        (step(), any::<[bool; 2]>(), bytes(40)).prop_map(
            |((attempt, step), [again, is_busy], wanted)| {
                PeerMessage::Done { attempt, step, again, is_busy, wanted }
            }
        ),
        (any::<u32>(), kind()).prop_map(|(attempt, kind)| PeerMessage::Lost { attempt, kind }),
    ]
}

fn frame(messages: &[(PeerEnvelope, PeerMessage<'static>)]) -> (Vec<u8>, Vec<u8>) {
    let (mut body, mut payload) = (Vec::new(), Vec::new());
    for (envelope, message) in messages {
        message.append(envelope, &mut body, &mut payload);
    }
    (body, payload)
}

proptest! {
    #[test]
    fn messages_come_as_they_were_sent(messages in vec((envelope(), message()), 0..5)) {
        let (body, payload) = frame(&messages);
        let (body, payload) = (leak(body), leak(payload));
        let found: Result<Vec<_>, _> = PeerMessages::new(body, payload).collect();
        prop_assert_eq!(found, Ok(messages));
    }

    #[test]
    fn an_entry_can_be_kept_alone(entry in entry()) {
        let (mut body, mut payload) = (Vec::new(), Vec::new());
        entry.encode(&mut body);
        entry.payload(&mut |piece| payload.extend_from_slice(piece));
        let (body, payload) = (leak(body), leak(payload));
        prop_assert_eq!(PartitionLogEntry::decode(body, payload), Ok(entry));
    }

    #[test]
    fn broken_messages_are_refused_or_mean_something(
        messages in vec((envelope(), message()), 1..3),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut body, payload) = frame(&messages);
        for (at, value) in &changes {
            let at = at.index(body.len());
            body[at] = *value;
        }
        // No panic, and it comes to an end.
        let count = PeerMessages::new(&body, &payload).count();
        prop_assert!(count <= messages.len() + 1 + body.len() / 36);
        body.truncate(cut.index(body.len()));
        let _ = PeerMessages::new(&body, &payload).count();
        let _ = PeerMessages::new(&payload, &body).count();
        let _ = PartitionLogEntry::decode(&body, &payload);
    }
}

#[test]
fn lying_counts_and_lengths_are_refused() {
    let envelope = PeerEnvelope {
        dataset: DatasetId(1),
        partition: PartitionId(2),
        from: TargetId(3),
        to: TargetId(4),
        term: Term(5),
        epoch: Epoch(6),
    };
    let refused = |message: PeerMessage<'static>, at: usize, lie: &[u8]| {
        let (mut body, payload) = frame(&[(envelope, message)]);
        body[at..at + lie.len()].copy_from_slice(lie);
        let found: Result<Vec<_>, _> = PeerMessages::new(&body, &payload).collect();
        assert!(found.is_err(), "{found:?}");
    };
    // Body and payload longer than the frame.
    refused(PeerMessage::Stale, 0, &u32::MAX.to_le_bytes());
    refused(PeerMessage::Stale, 4, &1_u32.to_le_bytes());
    // A tag that nothing has.
    refused(PeerMessage::Stale, 36, &[99]);
    let compare =
        PeerMessage::Compare { attempt: 1, step: 1, after: &[], upto: &[], records: Vec::new() };
    // More records than there are bytes, and more than may be.
    refused(compare.clone(), 36 + 9 + 4, &7_u16.to_le_bytes());
    refused(compare, 36 + 9 + 4, &u16::MAX.to_le_bytes());
    let state = PeerMessage::State { attempt: 1, step: 1, total_len: 4, offset: 0, bytes: b"1234" };
    // A part beyond the whole, and a whole beyond all bounds.
    refused(state.clone(), 36 + 9 + 4, &1_u32.to_le_bytes());
    refused(state, 36 + 9, &u32::MAX.to_le_bytes());
}

#[test]
fn only_what_a_client_asked_for_is_a_clients() {
    let (client, answered_below, kind) = (ClientId(1), Seq(1), ErrorKind::Exists);
    assert!(
        EntryEvent::Refused { client, answered_below, seq: Seq(1), kind, index: 0 }.is_clients()
    );
    for own in [
        EntryEvent::Opened,
        EntryEvent::Gone { client },
        EntryEvent::Lending { on: true },
        EntryEvent::Digest { after: &[], upto: &[], digest: 0 },
        EntryEvent::Range { after: &[], upto: &[], records: Vec::new() },
    ] {
        assert!(!own.is_clients(), "{own:?}");
    }
}

#[test]
fn the_body_of_a_frame_names_a_service_that_there_is() {
    for service in PeerService::ALL {
        let body = [service.code(), 7, 8];
        assert_eq!(PeerService::split(&body), Ok((service, &[7, 8][..])));
        assert_eq!(PeerService::split(&body[..1]), Ok((service, &[][..])), "no messages");
    }
    assert_eq!(PeerService::split(&[]), Err(WireError::Short("peer service")));
    let known = PeerService::ALL.map(PeerService::code);
    assert_eq!(known, [1], "numbers stay what they are");
    for code in (0..=u8::MAX).filter(|code| !known.contains(code)) {
        let body = [code, 0];
        assert_eq!(PeerService::split(&body), Err(WireError::Unknown("peer service")), "{code}");
    }
}
