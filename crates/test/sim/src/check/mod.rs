//! Judges a history once it is over.

pub mod linear;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use samite_mirror::MirroredPartition;
use samite_types::PartitionId;

use crate::audit::AuditSet;
use crate::history::{CallHistory, ClientCall};
use crate::net::ProcessPlace;
use crate::node::SimNode;
use crate::op::{COUNTER, LOG, OpOutcome, OpStep, StepResultSeen, numbers};
use crate::run::READER;
use crate::world::SimWorld;
use linear::SearchVerdict;

/// Checks everything that the history of one partition must be.
pub fn partition(history: &CallHistory, partition: PartitionId, audit: &mut AuditSet) {
    let calls: Vec<&ClientCall> = history.of(partition).collect();
    let happened = audit.losses().of(partition).to_vec();
    // Counts and numbers from before a loss begin anew.
    if happened.is_empty() {
        appended_once(&calls, partition, audit);
        added_once(&calls, partition, audit);
        versions_are_unique(&calls, partition, audit);
    }
    refused_for_room(&calls, partition, audit);
    if let Some(call) = calls.iter().find(|call| call.is_refused_by_store() && !audit.fails) {
        let words = format!("{partition}: {} of c{} at {:?}", call.op, call.client, call.begun);
        audit.violate("no store fails by itself", words);
    }
    match linear::check(&calls, &happened) {
        SearchVerdict::Linearizable => {}
        SearchVerdict::TooHard => audit.too_hard += 1,
        SearchVerdict::Violated(at) => {
            let Some(call) = calls.get(at) else {
                let words =
                    format!("{partition}: no order explains {:?}", happened[at - calls.len()]);
                return audit.violate("linearizable", words);
            };
            let outcome =
                call.ended.as_ref().map_or("?".into(), |(_, outcome)| outcome.to_string());
            audit.violate(
                "linearizable",
                format!(
                    "{partition}: no order explains {} of c{} at {:?}: {outcome}",
                    call.op, call.client, call.begun
                ),
            );
        }
    }
}

/// Whether all members of each partition have the same records, in words where they do not.
#[must_use]
pub fn members(world: &SimWorld, nodes: u32, partitions: u32) -> Vec<String> {
    let mut unequal = Vec::new();
    for partition in (0..partitions).map(PartitionId) {
        let mut first: Option<(ProcessPlace, Vec<u8>)> = None;
        for place in (0..nodes).map(ProcessPlace::Node) {
            let node: Option<&SimNode> = world.process(place);
            let Some(mirrored) = node.and_then(|node| node.partition(partition)) else { continue };
            let content = content(mirrored);
            match &first {
                None => first = Some((place, content)),
                Some((_, other)) if *other == content => {}
                Some((other, _)) => {
                    unequal.push(format!("{partition}: {other} and {place} differ"))
                }
            }
        }
    }
    unequal
}

/// Records with their versions, and everything beside them.
fn content(mirrored: &MirroredPartition) -> Vec<u8> {
    let partition = mirrored.partition();
    let mut content = Vec::new();
    let mut keys = Vec::new();
    let visited = partition.visit_records(b"", &mut |key, meta| {
        keys.push(key.to_vec());
        content.extend_from_slice(&meta.version.get().to_le_bytes());
        ControlFlow::Continue(())
    });
    debug_assert!(visited.is_ok());
    for key in keys {
        content.extend_from_slice(&key);
        if let Ok(Some((_, pieces))) = partition.read_record(&key) {
            pieces.iter().for_each(|piece| piece.append_to(&mut content));
        }
    }
    partition.export_state(&mut content);
    content
}

/// The values of `key` that were read when everything else was over.
fn last_read<'a>(calls: &[&'a ClientCall], key: u8) -> Option<&'a [u8]> {
    let read = calls.iter().rev().find(|call| {
        call.client == READER as usize && call.op.acts == [OpStep::Get(key)] && call.ended.is_some()
    })?;
    match &read.ended.as_ref()?.1 {
        OpOutcome::Done(seen) => match seen.first()? {
            StepResultSeen::Value(value) => Some(value),
            _ => None,
        },
        OpOutcome::Failed(_) => Some(&[]),
    }
}

/// An operation that only removes is never refused for want of room, and none is where there is
/// plenty. An operation that removes and brings something may be, where a member has used up its
/// reserve: one that was started again may need more than it had.
fn refused_for_room(calls: &[&ClientCall], partition: PartitionId, audit: &mut AuditSet) {
    for call in calls.iter().filter(|call| call.is_refused_for_room()) {
        let removes = |act: &OpStep| matches!(act, OpStep::Delete(_) | OpStep::Detach(..));
        if !audit.gets_full || call.op.acts.iter().all(removes) {
            let words = format!("{partition}: {} of c{} at {:?}", call.op, call.client, call.begun);
            audit.violate("only what does not fit is refused", words);
        }
    }
}

/// No client removes anything from the log: each acknowledged append is in it, and nothing twice.
fn appended_once(calls: &[&ClientCall], partition: PartitionId, audit: &mut AuditSet) {
    let Some(log) = last_read(calls, LOG) else { return };
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    for number in numbers(log) {
        *times.entry(number).or_default() += 1;
    }
    for (number, times) in &times {
        if *times > 1 {
            audit.violate(
                "exactly once",
                format!("{partition}: {number} was appended {times} times"),
            );
        }
    }
    for call in calls {
        for act in &call.op.acts {
            let OpStep::Append(LOG, number) = act else { continue };
            match &call.ended {
                Some((at, OpOutcome::Done(_))) if !times.contains_key(number) => audit.violate(
                    "no acknowledged write lost",
                    format!("{partition}: append of {number}, acknowledged at {at:?}, is gone"),
                ),
                Some((at, OpOutcome::Failed(kind))) if times.contains_key(number) => audit.violate(
                    "nothing failed takes effect",
                    format!(
                        "{partition}: append of {number} failed ({kind:?}) at {at:?}, and is there"
                    ),
                ),
                _ => {}
            }
        }
    }
}

/// The counter is the sum of the additions, give or take those that no client was told of.
fn added_once(calls: &[&ClientCall], partition: PartitionId, audit: &mut AuditSet) {
    let Some(value) = last_read(calls, COUNTER) else { return };
    let total = numbers(value).next().unwrap_or(0);
    let (mut sure, mut unsure) = (0u64, Vec::new());
    for call in calls {
        for act in &call.op.acts {
            let OpStep::Add(COUNTER, delta) = act else { continue };
            match &call.ended {
                Some((_, OpOutcome::Done(_))) => sure = sure.wrapping_add(*delta),
                Some(_) => {}
                None => unsure.push(*delta),
            }
        }
    }
    let rest = total.wrapping_sub(sure);
    // Few calls have no end; more than this many are not worth all sums.
    let explained = unsure.len() > 12
        || (0..1u32 << unsure.len()).any(|set| {
            let chosen = unsure.iter().enumerate().filter(|(bit, _)| set & 1 << bit != 0);
            chosen.fold(0u64, |sum, (_, delta)| sum.wrapping_add(*delta)) == rest
        });
    if !explained {
        audit.violate(
            "exactly once",
            format!("{partition}: the counter is {total}, acknowledged were {sure}"),
        );
    }
}

/// No two changes have one version, and versions grow with time.
fn versions_are_unique(calls: &[&ClientCall], partition: PartitionId, audit: &mut AuditSet) {
    let mut by_version: BTreeMap<u64, &ClientCall> = BTreeMap::new();
    for call in calls {
        let Some(version) = call.version.filter(|_| call.op.is_mutation()) else { continue };
        if let Some(other) = by_version.insert(version.get(), call) {
            audit.violate(
                "one version for each change",
                format!("{partition}: {version} for {} and {}", other.op, call.op),
            );
        }
    }
    // The latest end of all before: a call that begins after it must have a greater version.
    let changes: Vec<_> = by_version.into_iter().collect();
    let mut begun_last = std::time::Duration::ZERO;
    for (version, call) in changes {
        if let Some((ended, _)) = &call.ended
            && *ended < begun_last
        {
            audit.violate(
                "versions grow",
                format!("{partition}: v{version} of {} was over before a lower one began", call.op),
            );
        }
        begun_last = begun_last.max(call.begun);
    }
}
