//! One operation as a caller gives it.

use samite_types::{Epoch, Error, ErrorKind, Result};
use samite_wire::limits::{ACTIONS_MAX, BLOCK_LEN, KEY_LEN_MAX, PAYLOAD_LEN_MAX, RECORD_LEN_MAX};
use samite_wire::op::{Action, Guard, Operation, ValueData};

/// An [`Operation`] with the client's settings for it: where the bytes it reads shall land, and the
/// state on which it relies.
///
/// The sequence number inside is filled in by the client. Data is given inline whatever its length (up to
/// [`samite_wire::limits::RECORD_LEN_MAX`]): the client moves it through shared memory where it can.
#[derive(Debug)]
pub struct ClientOperation<'a> {
    /// The operation itself.
    pub operation: Operation<'a>,
    /// Where the bytes of the first `Get` land; the result then says how many came and has no bytes
    /// itself. The `Get` never asks for more than fits here.
    pub dest: Option<&'a mut [u8]>,
    /// Name-space generation on which the cached directories behind this operation stand;
    /// [`Epoch`]`(u64::MAX)` when there are none.
    pub name_space_generation: Epoch,
}

impl<'a> ClientOperation<'a> {
    /// An operation that relies on nothing cached and returns the bytes that it reads.
    #[must_use]
    pub const fn new(operation: Operation<'a>) -> Self {
        Self { operation, dest: None, name_space_generation: Epoch(u64::MAX) }
    }

    /// The same, with the bytes of the first `Get` landing in `dest`.
    #[must_use]
    pub fn into_dest(mut self, dest: &'a mut [u8]) -> Self {
        self.dest = Some(dest);
        self
    }

    /// The same, standing on name-space generation `epoch`: fails with
    /// [`samite_types::ErrorKind::StaleLease`] at a partition that knows a newer one.
    #[must_use]
    pub const fn under_lease(mut self, epoch: Epoch) -> Self {
        self.name_space_generation = epoch;
        self
    }
}

impl<'a> From<Operation<'a>> for ClientOperation<'a> {
    fn from(operation: Operation<'a>) -> Self {
        Self::new(operation)
    }
}

/// The space that an operation takes of a frame, in bytes; upper bounds, but for values whose
/// length only the node knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameFootprint {
    pub(crate) body: usize,
    pub(crate) payload: usize,
    pub(crate) reply_payload: usize,
}

/// Body of an operation, a guard or an action without keys and data: no less than any of them takes.
const FIXED_LEN: usize = 32;

/// Checks every limit that a node would end the connection for.
pub(crate) fn check(operation: &Operation<'_>) -> Result<()> {
    {
        let named = || name(operation);
        if operation.actions.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "an operation without actions"));
        }
        if operation.actions.len() > ACTIONS_MAX || operation.guards.len() > ACTIONS_MAX {
            return Err(too_large(
                named(),
                "actions or guards",
                operation.actions.len(),
                ACTIONS_MAX,
            ));
        }
        for guard in &operation.guards {
            let (key, bytes) = guard_parts(guard);
            if key.len() > KEY_LEN_MAX || bytes.len() > KEY_LEN_MAX {
                let len = key.len().max(bytes.len());
                return Err(too_large(named(), "bytes of key", len, KEY_LEN_MAX));
            }
        }
        let mut payload = 0;
        for action in &operation.actions {
            let (key, after, data) = action_parts(action);
            payload += data.map_or(0, ValueData::len);
            if key.len() > KEY_LEN_MAX || after.len() > KEY_LEN_MAX {
                let len = key.len().max(after.len());
                return Err(too_large(named(), "bytes of key", len, KEY_LEN_MAX));
            }
            match data {
                Some(ValueData::Blocks(_)) => {
                    let cause = format!("{}: data is given inline", named());
                    return Err(Error::new(ErrorKind::Invalid, cause));
                }
                Some(data) if data.len() > RECORD_LEN_MAX => {
                    return Err(too_large(named(), "bytes of value", data.len(), RECORD_LEN_MAX));
                }
                _ => {}
            }
        }
        if payload > PAYLOAD_LEN_MAX {
            return Err(too_large(named(), "bytes of data", payload, PAYLOAD_LEN_MAX));
        }
        Ok(())
    }
}

impl FrameFootprint {
    /// All bytes.
    pub(crate) const fn sum(&self) -> usize {
        self.body + self.payload + self.reply_payload
    }
}

impl ClientOperation<'_> {
    /// Its space in a frame.
    pub(crate) fn footprint(&self) -> FrameFootprint {
        let mut sum = FrameFootprint { body: FIXED_LEN, ..FrameFootprint::default() };
        for guard in &self.operation.guards {
            let (key, bytes) = guard_parts(guard);
            sum.body += FIXED_LEN + key.len() + bytes.len();
        }
        for action in &self.operation.actions {
            let (key, after, data) = action_parts(action);
            sum.body += FIXED_LEN + key.len() + after.len();
            if let Some(data) = data {
                sum.body += 16 * (data.len() / BLOCK_LEN + 1);
                sum.payload += data.len();
            }
            if let Action::SetHolders { holders, .. } = action {
                sum.body += holders.len();
            }
            if let Action::Get { len, .. } = action {
                // Without a destination it is not known how much is expected: the node answers what
                // fits, and is asked again.
                sum.reply_payload += self.dest.as_ref().map_or(0, |_| *len as usize);
            }
        }
        sum
    }

    /// Makes the first `Get` ask for no more than its destination has room for.
    pub(crate) fn clip(&mut self) {
        let Some(dest) = &self.dest else { return };
        let fits = u32::try_from(dest.len()).unwrap_or(u32::MAX);
        let first = self.operation.actions.iter_mut().find_map(|action| match action {
            Action::Get { len, .. } => Some(len),
            _ => None,
        });
        if let Some(len) = first {
            *len = fits.min(*len);
        }
    }
}

/// An operation in words, for messages.
pub(crate) fn name(operation: &Operation<'_>) -> &'static str {
    match operation.actions.first() {
        None => "nothing",
        Some(Action::Get { .. }) => "get",
        Some(Action::Put { .. }) => "put",
        Some(Action::Delete { .. }) => "delete",
        Some(Action::DeletePrefix { .. }) => "delete prefix",
        Some(Action::Write { .. }) => "write",
        Some(Action::Append { .. }) => "append",
        Some(Action::Truncate { .. }) => "truncate",
        Some(Action::Add { .. }) => "add",
        Some(Action::Max { .. }) => "max",
        Some(Action::Advance { .. }) => "advance",
        Some(Action::List { .. }) => "list",
        Some(Action::Punch { .. }) => "punch",
        Some(Action::Extents { .. }) => "list extents",
        Some(Action::RaiseLease { .. }) => "raise lease",
        Some(Action::Lease { .. }) => "lease",
        Some(Action::Hold { .. }) => "hold",
        Some(Action::Release { .. }) => "release",
        Some(Action::Locate { .. }) => "locate",
        Some(Action::Detach { .. }) => "detach",
        Some(Action::Holders { .. } | Action::SetHolders { .. } | Action::MoveHolds { .. }) => {
            "holders"
        }
    }
}

fn too_large(name: &str, what: &str, len: usize, max: usize) -> Error {
    Error::new(ErrorKind::TooLarge, format!("{name}: {len} {what}; the limit is {max}"))
}

fn guard_parts<'g>(guard: &'g Guard<'_>) -> (&'g [u8], &'g [u8]) {
    match guard {
        Guard::Exists(key)
        | Guard::Absent(key)
        | Guard::VersionIs(key, _)
        | Guard::LenAtMost(key, _)
        | Guard::PrefixEmpty(key) => (key, &[]),
        Guard::BytesAre { key, bytes, .. } => (key, bytes),
    }
}

fn action_parts<'g, 'a>(action: &'g Action<'a>) -> (&'g [u8], &'g [u8], Option<&'g ValueData<'a>>) {
    match action {
        Action::Put { key, data }
        | Action::Write { key, data, .. }
        | Action::Append { key, data, .. } => (key, &[], Some(data)),
        Action::Get { key, .. }
        | Action::Delete { key }
        | Action::Truncate { key, .. }
        | Action::Add { key, .. }
        | Action::Max { key, .. }
        | Action::Advance { key, .. }
        | Action::Punch { key, .. }
        | Action::Lease { key, .. }
        | Action::Hold { key, .. }
        | Action::Holders { key }
        | Action::SetHolders { key, .. } => (key, &[], None),
        Action::DeletePrefix { prefix, .. } => (prefix, &[], None),
        Action::List { prefix, after, .. } | Action::Extents { prefix, after, .. } => {
            (prefix, after, None)
        }
        Action::RaiseLease { .. } | Action::Release { .. } | Action::Locate { .. } => {
            (&[], &[], None)
        }
        Action::Detach { key, to } | Action::MoveHolds { from: key, to } => (key, to, None),
    }
}
