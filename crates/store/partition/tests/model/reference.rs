//! The reference: a partition as plain maps, with every operation tried on a copy.

use std::collections::{BTreeMap, BTreeSet};

use samite_partition::limits::REMEMBERED_LEN_MAX;
use samite_types::{ClientId, ErrorKind, Version};
use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::{ReplyEncoder, WHOLE_VALUES};

/// An action, with everything owned.
#[derive(Clone, Debug)]
pub enum Act {
    Get { key: Vec<u8>, offset: u32, len: u32 },
    Put { key: Vec<u8>, data: Bytes },
    Delete { key: Vec<u8> },
    DeletePrefix { prefix: Vec<u8>, limit: u32 },
    Write { key: Vec<u8>, offset: u32, data: Bytes },
    Append { key: Vec<u8>, data: Bytes, len_max: u32 },
    Truncate { key: Vec<u8>, len: u32 },
    Add { key: Vec<u8>, offset: u32, delta: u64 },
    Max { key: Vec<u8>, offset: u32, value: u64 },
    Advance { key: Vec<u8>, offset: u32, count: u8, to: i64, slack: u64 },
    List { prefix: Vec<u8>, after: Vec<u8>, limit: u32, reverse: bool, value_len_max: u32 },
    Punch { key: Vec<u8>, offset: u32, len: u32 },
    RaiseLease { epoch: u64 },
    Hold { key: Vec<u8>, token: u64 },
    Release { token: u64 },
    Locate { token: u64 },
    Detach { key: Vec<u8>, to: Vec<u8> },
    Holders { key: Vec<u8> },
    SetHolders { key: Vec<u8>, holders: Vec<(u64, u64)> },
    MoveHolds { from: Vec<u8>, to: Vec<u8> },
}

impl Act {
    /// Results that are asked anew when the operation is repeated.
    fn asks(&self) -> bool {
        matches!(
            self,
            Self::Get { .. }
                | Self::List { .. }
                | Self::Hold { .. }
                | Self::Release { .. }
                | Self::Locate { .. }
                | Self::Holders { .. }
        )
    }
}

/// A list of holders as it travels.
pub fn holders(list: &[(u64, u64)]) -> Vec<u8> {
    list.iter()
        .flat_map(|(token, client)| [token.to_le_bytes(), client.to_le_bytes()])
        .flatten()
        .collect()
}

/// Bytes to store, and how they travel.
#[derive(Clone, Debug)]
pub enum Bytes {
    Inline(Vec<u8>),
    /// In granted blocks, cut at these lengths.
    Blocks(Vec<Vec<u8>>),
    Zeros(u32),
}

impl Bytes {
    fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Inline(bytes) => bytes.clone(),
            Self::Blocks(blocks) => blocks.concat(),
            Self::Zeros(len) => vec![0; *len as usize],
        }
    }
}

/// A guard, with everything owned.
#[derive(Clone, Debug)]
pub enum Cond {
    Exists(Vec<u8>),
    Absent(Vec<u8>),
    VersionIs(Vec<u8>, u64),
    BytesAre(Vec<u8>, u32, Vec<u8>),
    LenAtMost(Vec<u8>, u32),
    PrefixEmpty(Vec<u8>),
}

impl Cond {
    fn key(&self) -> Option<Vec<u8>> {
        match self {
            Self::Exists(key)
            | Self::Absent(key)
            | Self::VersionIs(key, _)
            | Self::BytesAre(key, ..)
            | Self::LenAtMost(key, _) => Some(key.clone()),
            Self::PrefixEmpty(_) => None,
        }
    }
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Op {
    pub guards: Vec<Cond>,
    pub acts: Vec<Act>,
    pub reveal_len: u32,
}

/// The result of an action, in comparable form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    Value(u64, u32, Vec<u8>),
    Written(u64, u32, u32, bool),
    Deleted(bool),
    Number(u64),
    Listing(bool, u32, Vec<u8>),
}

/// The outcome of an operation, in comparable form.
pub type End = Result<Vec<Out>, (ErrorKind, u16, Option<(Version, u32, Vec<u8>)>)>;

/// Records: version and value.
pub type Records = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

#[derive(Clone, Debug, Default)]
pub struct Reference {
    pub records: Records,
    pub version: u64,
    pub lease: u64,
    /// Open references in the order in which they came: token, client, key.
    pub open_references: Vec<(u64, u64, Vec<u8>)>,
    pub orphans: BTreeSet<Vec<u8>>,
    client: u64,
    is_changing: bool,
    done: BTreeMap<(ClientId, u64), Vec<Out>>,
    /// An operation that was refused when it came again, and is refused for good.
    refused: BTreeMap<(ClientId, u64), (ErrorKind, u16)>,
}

/// Which records an operation has made uncertain for itself, by removing some of a prefix.
#[derive(Default)]
struct Doubt {
    wiped: Vec<Vec<u8>>,
    settled: Vec<Vec<u8>>,
    /// Keys that an orphan may have now.
    unsure: Vec<Vec<u8>>,
}

impl Doubt {
    fn about(&self, key: &[u8]) -> bool {
        self.unsure.iter().any(|unsure| unsure == key)
            || !self.settled.iter().any(|settled| settled == key)
                && self.wiped.iter().any(|prefix| key.starts_with(prefix))
    }

    fn settle(&mut self, key: &[u8]) {
        self.unsure.retain(|unsure| unsure != key);
        self.settled.push(key.to_vec());
    }

    fn ask(&self, key: &[u8]) -> Result<(), ErrorKind> {
        if self.about(key) { Err(ErrorKind::Invalid) } else { Ok(()) }
    }
}

impl Op {
    pub fn is_mutation(&self) -> bool {
        self.acts.iter().any(|act| !act.asks())
    }
}

impl Reference {
    /// An operation that was sent before: a refusal now is one for good.
    pub fn apply_again(&mut self, client: ClientId, seq: u64, lease: u64, op: &Op) -> End {
        if let Some((kind, index)) = self.refused.get(&(client, seq)) {
            let guard = op.guards.get(usize::from(*index));
            let current = guard.filter(|_| *kind == ErrorKind::Conflict);
            let current = current.and_then(|guard| self.shown(guard.key(), op.reveal_len));
            return Err((*kind, *index, current));
        }
        let end = self.apply(client, seq, lease, op);
        if let Err((kind, index, _)) = &end
            && op.is_mutation()
            && !matches!(kind, ErrorKind::StaleLease | ErrorKind::Invalid)
        {
            self.refused.insert((client, seq), (*kind, *index));
        }
        end
    }

    /// There was no room for an operation that was sent before.
    pub fn refuse(&mut self, client: ClientId, seq: u64, index: u16) {
        self.refused.insert((client, seq), (ErrorKind::NoSpace, index));
    }

    fn shown(&self, key: Option<Vec<u8>>, len: u32) -> Option<(Version, u32, Vec<u8>)> {
        let (version, value) = self.records.get(&key?)?;
        let shown = &value[..value.len().min(len as usize)];
        (len > 0).then(|| (Version(*version), value.len() as u32, shown.to_vec()))
    }

    pub fn apply(&mut self, client: ClientId, seq: u64, lease: u64, op: &Op) -> End {
        self.client = client.get();
        self.is_changing = op.is_mutation();
        if op.is_mutation()
            && let Some(outs) = self.done.get(&(client, seq)).cloned()
        {
            return Ok(self.again(op, outs));
        }
        let lets_go = |act: &Act| matches!(act, Act::Release { .. } | Act::Locate { .. });
        if lease < self.lease && !op.acts.iter().all(lets_go) {
            return Err((ErrorKind::StaleLease, 0, None));
        }
        for (index, guard) in op.guards.iter().enumerate() {
            if let Some(key) = self.broken(guard) {
                let current = self.shown(key, op.reveal_len);
                return Err((ErrorKind::Conflict, index as u16, current));
            }
        }
        let mut next = self.clone();
        next.version += u64::from(op.is_mutation());
        let mut doubt = Doubt::default();
        let mut outs = Vec::new();
        let mut later = Vec::new();
        for (index, act) in op.acts.iter().enumerate() {
            let fail = |kind| (kind, index as u16, None);
            if let (false, Act::Hold { .. } | Act::Release { .. }) = (op.is_mutation(), act) {
                // A record cannot go before these are done, when nothing else changes.
                if let Act::Hold { key, .. } = act {
                    self.records.get(key).ok_or(fail(ErrorKind::NotFound))?;
                }
                later.push((index, act));
                outs.push(Out::Number(0));
                continue;
            }
            outs.push(next.act(act, &mut doubt).map_err(fail)?);
        }
        for (index, act) in later {
            outs[index] = next.act(act, &mut doubt).map_err(|kind| (kind, index as u16, None))?;
        }
        if op.is_mutation() {
            next.done.insert((client, seq), outs.clone());
        }
        *self = next;
        Ok(outs)
    }

    /// A mutation that was done: the same answers, with long values that it read read again.
    fn again(&mut self, op: &Op, outs: Vec<Out>) -> Vec<Out> {
        let mut fresh = Vec::new();
        for (act, out) in op.acts.iter().zip(outs) {
            let is_kept =
                matches!(&out, Out::Value(_, _, found) if found.len() <= REMEMBERED_LEN_MAX);
            fresh.push(if act.asks() && !is_kept {
                self.act(act, &mut Doubt::default()).unwrap_or(Out::Value(0, 0, Vec::new()))
            } else {
                out
            });
        }
        fresh
    }

    /// The key whose guard is not true.
    fn broken(&self, guard: &Cond) -> Option<Option<Vec<u8>>> {
        let (key, holds) = match guard {
            Cond::Exists(key) => (Some(key), self.records.contains_key(key)),
            Cond::Absent(key) => (Some(key), !self.records.contains_key(key)),
            Cond::VersionIs(key, version) => {
                (Some(key), self.records.get(key).is_some_and(|(found, _)| found == version))
            }
            Cond::BytesAre(key, offset, bytes) => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                let same = |value: &[u8]| match value.get(start..end) {
                    Some(found) => found == bytes.as_slice(),
                    None => bytes.is_empty(),
                };
                (Some(key), self.records.get(key).is_some_and(|(_, value)| same(value)))
            }
            Cond::LenAtMost(key, len) => (
                Some(key),
                self.records.get(key).is_none_or(|(_, value)| value.len() <= *len as usize),
            ),
            Cond::PrefixEmpty(prefix) => {
                (None, !self.records.keys().any(|key| key.starts_with(prefix)))
            }
        };
        (!holds).then(|| key.cloned())
    }

    fn act(&mut self, act: &Act, doubt: &mut Doubt) -> Result<Out, ErrorKind> {
        match act {
            Act::Get { key, offset, len } => {
                doubt.ask(key)?;
                let (version, value) = self.records.get(key).ok_or(ErrorKind::NotFound)?;
                let start = value.len().min(*offset as usize);
                let end = value.len().min(offset.saturating_add(*len) as usize).max(start);
                Ok(Out::Value(*version, value.len() as u32, value[start..end].to_vec()))
            }
            Act::Put { key, data } => {
                doubt.settle(key);
                let created =
                    self.records.insert(key.clone(), (self.version, data.to_vec())).is_none();
                Ok(self.written(key, 0, created))
            }
            Act::Write { key, offset, data } => self.write(key, *offset, &data.to_vec()),
            Act::Append { key, data, len_max } => {
                doubt.ask(key)?;
                let data = data.to_vec();
                let offset = self.records.get(key).map_or(0, |(_, value)| value.len());
                if offset + data.len() > *len_max as usize {
                    return Err(ErrorKind::TooLarge);
                }
                self.write(key, offset as u32, &data)
            }
            Act::Punch { key, offset, len } => self.punch(key, *offset, *len, doubt),
            Act::Truncate { key, len } => {
                doubt.ask(key)?;
                let (version, value) = self.records.get_mut(key).ok_or(ErrorKind::NotFound)?;
                value.resize(*len as usize, 0);
                *version = self.version;
                Ok(self.written(key, *len, false))
            }
            Act::Delete { key } => {
                doubt.settle(key);
                self.forget(key);
                Ok(Out::Deleted(self.records.remove(key).is_some()))
            }
            Act::DeletePrefix { prefix, limit } => Ok(self.delete_prefix(prefix, *limit, doubt)),
            Act::Add { key, offset, delta } => {
                let before = self.number(key, *offset);
                self.write(key, *offset, &before.wrapping_add(*delta).to_le_bytes())?;
                Ok(Out::Number(before))
            }
            Act::Max { key, offset, value } => {
                doubt.ask(key)?;
                let (_, old) = self.records.get(key).ok_or(ErrorKind::NotFound)?;
                let is_short = old.len() < *offset as usize + 8;
                let before = self.number(key, *offset);
                if *value > before || is_short {
                    self.write(key, *offset, &before.max(*value).to_le_bytes())?;
                }
                Ok(Out::Number(before))
            }
            Act::Advance { key, offset, count, to, slack } => {
                let raw = self.advanced(key, *offset, *count, (*to, *slack));
                self.write(key, *offset, &raw)
            }
            Act::List { prefix, after, limit, reverse, value_len_max } => {
                Ok(self.list(prefix, after, *limit, *reverse, *value_len_max))
            }
            Act::RaiseLease { epoch } => {
                let before = self.lease;
                self.lease = before.max(*epoch);
                Ok(Out::Number(before))
            }
            _ => self.hold_act(act, doubt),
        }
    }

    /// The result of moving numbers forward.
    fn advanced(&self, key: &[u8], offset: u32, count: u8, (to, slack): (i64, u64)) -> Vec<u8> {
        let value = self.records.get(key).map_or(&[][..], |(_, value)| value);
        let numbers = (0..usize::from(count)).map(|index| {
            let there = value.get(offset as usize + 8 * index..offset as usize + 8 * index + 8);
            let now = there.map(|raw| i64::from_le_bytes(*raw.first_chunk().expect("8 bytes")));
            now.filter(|now| *now > to && now.abs_diff(to) <= slack).unwrap_or(to)
        });
        numbers.flat_map(i64::to_le_bytes).collect()
    }

    fn punch(
        &mut self,
        key: &[u8],
        offset: u32,
        len: u32,
        doubt: &mut Doubt,
    ) -> Result<Out, ErrorKind> {
        doubt.ask(key)?;
        let Some((version, value)) = self.records.get_mut(key) else {
            return Ok(Out::Number(0));
        };
        let start = value.len().min(offset as usize);
        let end = value.len().min(offset.saturating_add(len) as usize).max(start);
        value[start..end].fill(0);
        if start < end {
            *version = self.version;
        }
        Ok(Out::Number((end - start) as u64))
    }

    fn delete_prefix(&mut self, prefix: &[u8], limit: u32, doubt: &mut Doubt) -> Out {
        doubt.settled.retain(|key| !key.starts_with(prefix));
        doubt.wiped.push(prefix.to_vec());
        let matching = self.records.keys().filter(|key| key.starts_with(prefix));
        let keys: Vec<_> = matching.take(limit as usize).cloned().collect();
        for key in &keys {
            self.forget(key);
            self.records.remove(key);
        }
        Out::Number(keys.len() as u64)
    }

    fn hold_act(&mut self, act: &Act, doubt: &mut Doubt) -> Result<Out, ErrorKind> {
        Ok(match act {
            Act::Hold { key, token } => {
                doubt.ask(key)?;
                self.records.get(key).ok_or(ErrorKind::NotFound)?;
                if !self.open_references.iter().any(|(known, ..)| known == token) {
                    self.open_references.push((*token, self.client, key.clone()));
                }
                let at = self.held_by(*token).unwrap_or_default();
                Out::Number(self.holders(&at).len() as u64)
            }
            Act::Release { token } => {
                let at = self.held_by(*token);
                self.open_references.retain(|(known, ..)| known != token);
                Out::Number(at.map_or(0, |key| self.holders(&key).len() as u64))
            }
            Act::Locate { token } => {
                let key = match self.held_by(*token) {
                    Some(key) => key,
                    None if self.is_changing => Vec::new(),
                    None => return Err(ErrorKind::NotFound),
                };
                Out::Value(0, key.len() as u32, key)
            }
            Act::Holders { key } => {
                let list = holders(&self.holders(key));
                Out::Value(0, list.len() as u32, list)
            }
            Act::Detach { key, to } => self.unlink_to_orphan(key, to, doubt)?,
            Act::SetHolders { key, holders } => {
                doubt.ask(key)?;
                self.records.get(key).ok_or(ErrorKind::NotFound)?;
                let before = self.holders(key).len();
                self.forget(key);
                for (token, client) in holders {
                    self.open_references.retain(|(known, ..)| known != token);
                    self.open_references.push((*token, *client, key.clone()));
                }
                Out::Number(before as u64)
            }
            Act::MoveHolds { from, to } => {
                let moved = self.holders(from);
                self.move_holds(from, to);
                Out::Number(moved.len() as u64)
            }
            _ => unreachable!("an action on open references"),
        })
    }

    fn unlink_to_orphan(
        &mut self,
        key: &[u8],
        to: &[u8],
        doubt: &mut Doubt,
    ) -> Result<Out, ErrorKind> {
        if to.len() > key.len() {
            return Err(ErrorKind::Invalid);
        }
        doubt.settle(key);
        doubt.unsure.push(to.to_vec());
        let is_there = self.records.contains_key(key);
        if self.holders(key).is_empty() || !is_there {
            self.forget(key);
            return Ok(Out::Number(u64::from(self.records.remove(key).is_some())));
        }
        if key != to {
            self.forget(to);
            if let Some((_, value)) = self.records.remove(key) {
                self.records.insert(to.to_vec(), (self.version, value));
            }
            self.move_holds(key, to);
        }
        self.orphans.insert(to.to_vec());
        Ok(Out::Number(2))
    }

    fn held_by(&self, token: u64) -> Option<Vec<u8>> {
        self.open_references
            .iter()
            .find(|(known, ..)| *known == token)
            .map(|(_, _, key)| key.clone())
    }

    /// Token and client of the holders of open references to `key`.
    fn holders(&self, key: &[u8]) -> Vec<(u64, u64)> {
        let of_key = self.open_references.iter().filter(|(.., held)| held == key);
        of_key.map(|(token, client, _)| (*token, *client)).collect()
    }

    fn forget(&mut self, key: &[u8]) {
        self.open_references.retain(|(.., held)| held != key);
        self.orphans.remove(key);
    }

    fn move_holds(&mut self, from: &[u8], to: &[u8]) {
        if from == to {
            return;
        }
        self.orphans.remove(from);
        // They come behind those that are there.
        let moved: Vec<_> =
            self.open_references.extract_if(.., |(.., held)| held == from).collect();
        self.open_references
            .extend(moved.into_iter().map(|(token, client, _)| (token, client, to.to_vec())));
    }

    pub fn drop_client(&mut self, client: u64) {
        self.open_references.retain(|(_, owner, _)| *owner != client);
    }

    pub fn leaked_orphans(&self) -> u64 {
        self.orphans.iter().filter(|key| self.holders(key).is_empty()).count() as u64
    }

    fn written(&self, key: &[u8], offset: u32, created: bool) -> Out {
        Out::Written(self.version, offset, self.records[key].1.len() as u32, created)
    }

    fn write(&mut self, key: &[u8], offset: u32, data: &[u8]) -> Result<Out, ErrorKind> {
        let created = !self.records.contains_key(key);
        let (version, value) = self.records.entry(key.to_vec()).or_default();
        let end = offset as usize + data.len();
        value.resize(value.len().max(end), 0);
        value[offset as usize..end].copy_from_slice(data);
        *version = self.version;
        Ok(self.written(key, offset, created))
    }

    fn number(&self, key: &[u8], offset: u32) -> u64 {
        let value = self.records.get(key).map_or(&[][..], |(_, value)| value);
        let mut raw = [0; 8];
        for (byte, found) in raw.iter_mut().zip(value.iter().skip(offset as usize)) {
            *byte = *found;
        }
        u64::from_le_bytes(raw)
    }

    fn list(&self, prefix: &[u8], after: &[u8], limit: u32, reverse: bool, value_len: u32) -> Out {
        let mut found: Vec<_> =
            self.records.iter().filter(|(key, _)| key.starts_with(prefix)).collect();
        if reverse {
            found.reverse();
        }
        if !after.is_empty() {
            let beyond = |key: &[u8]| if reverse { key < after } else { key > after };
            found.retain(|(key, _)| beyond(key));
        }
        let complete = found.len() <= limit as usize;
        found.truncate(limit as usize);
        let mut entries = Vec::new();
        for (key, (version, value)) in &found {
            let head = &value[..value.len().min(value_len as usize)];
            let (version, len) = (Version(*version), value.len() as u32);
            if value_len == WHOLE_VALUES && self.is_changing && len > BLOCK_LEN as u32 {
                ReplyEncoder::encode_left_entry(&mut entries, key, version, len);
                continue;
            }
            ReplyEncoder::encode_list_entry(&mut entries, key, version, len, head);
        }
        Out::Listing(complete, found.len() as u32, entries)
    }
}
