//! Freezes against a reference: who holds one, and until when.

use std::time::Duration;

use proptest::prelude::*;
use samite_types::ErrorKind;
use samite_wire::freeze::{FREEZE_TERM, FreezeCall, FreezeRequest};

use super::{complete, spec};
use crate::{ClusterTiming, Coordinator};

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u64, FreezeCall),
    /// So many tenths of a second pass.
    Pass(u64),
    /// Another instance decides from now on.
    TakeOver,
    Drop,
}

fn step() -> impl Strategy<Value = Step> {
    let call = prop_oneof![
        3 => Just(FreezeCall::Begin), 4 => Just(FreezeCall::Renew), 1 => Just(FreezeCall::End)
    ];
    prop_oneof![
        8 => (1..3_u64, call).prop_map(|(token, call)| Step::Ask(token, call)),
        4 => (1..30_u64).prop_map(Step::Pass),
        1 => Just(Step::TakeOver),
        1 => Just(Step::Drop),
    ]
}

/// The holder and the end of its term.
type Held = Option<(u64, Duration)>;

fn ask(
    coordinator: &mut Coordinator,
    held: &mut Held,
    now: Duration,
    token: u64,
    call: FreezeCall,
) {
    let request = FreezeRequest { dataset: "d".into(), token, call };
    let holder = held.map(|(holder, _)| holder);
    let expected = match (call, holder) {
        (FreezeCall::Begin, Some(other)) if other != token => Err(ErrorKind::InUse),
        (FreezeCall::Renew, other) if other != Some(token) => Err(ErrorKind::NotFound),
        _ => Ok(()),
    };
    let revision = coordinator.revision();
    let answer = coordinator.freeze(now, &request);
    assert_eq!(answer.map(drop).map_err(|error| error.kind()), expected, "{call:?}");
    match (call, expected) {
        (FreezeCall::Begin | FreezeCall::Renew, Ok(())) => *held = Some((token, now + FREEZE_TERM)),
        (FreezeCall::End, Ok(())) if holder == Some(token) => *held = None,
        _ => {}
    }
    // What does not change who holds it makes no new map.
    let is_changed = holder != held.map(|(holder, _)| holder);
    assert_eq!(coordinator.revision() != revision, is_changed, "{call:?}");
}

proptest! {
    #[test]
    fn one_client_holds_a_dataset_frozen_until_its_term_is_over(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut coordinator = complete(1);
        coordinator.create_dataset(spec("d")).unwrap();
        let (mut held, mut now): (Held, Duration) = (None, Duration::from_secs(1));
        coordinator.tick(now);
        for step in steps {
            match step {
                Step::Ask(token, call) => ask(&mut coordinator, &mut held, now, token, call),
                Step::Pass(tenths) => {
                    for _ in 0..tenths {
                        now += Duration::from_millis(100);
                        coordinator.tick(now);
                        held = held.filter(|(_, until)| now < *until);
                    }
                }
                Step::TakeOver => {
                    let state = coordinator.export();
                    coordinator =
                        Coordinator::take_over(&state, ClusterTiming::DEFAULT, now).unwrap();
                    coordinator.tick(now);
                    // It may have been renewed just now, and nobody knows.
                    held = held.map(|(holder, _)| (holder, now + FREEZE_TERM));
                }
                Step::Drop => {
                    coordinator.drop_dataset("d").unwrap();
                    coordinator.create_dataset(spec("d")).unwrap();
                    held = None;
                }
            }
            let frozen_by = coordinator.map().unwrap().dataset("d").unwrap().frozen_by;
            prop_assert_eq!(frozen_by, held.map_or(0, |(holder, _)| holder), "{:?}", step);
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut coordinator = complete(1);
    coordinator.create_dataset(spec("d")).unwrap();
    for (dataset, token, call, kind) in [
        ("d", 0, FreezeCall::Begin, ErrorKind::Invalid),
        ("e", 1, FreezeCall::Begin, ErrorKind::NotFound),
        ("d", 1, FreezeCall::Serves(samite_types::Epoch(1)), ErrorKind::Invalid),
    ] {
        let request = FreezeRequest { dataset: dataset.into(), token, call };
        let error = coordinator.freeze(Duration::ZERO, &request).unwrap_err();
        assert_eq!(error.kind(), kind, "{request:?}");
    }
}
