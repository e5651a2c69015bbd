//! Records that were read under a delegation, and how long they can be relied on.

use std::time::Duration;

use samite_client::{ClientOperation, Dataset, OwnedOutcome, OwnedResult, ReadStamp};
use samite_types::{Epoch, ErrorKind, Result};
use samite_wire::op::{Action, Operation};

use crate::records::store::{FoundInode, LOOKUP_LEN, RecordLocation, RecordStoreView, malformed};

/// Term of the delegations that are recalled: how long a change may have to wait for a holder that
/// has died.
pub const LONG_TERM: Duration = Duration::from_secs(3);

/// Longer than any file is open.
const SESSION_TERM: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How long a record stays as it was read: from the read stamp on, while the term of its delegation
/// lasts and this process does not change it.
#[derive(Clone, Copy, Debug)]
pub struct DelegationStamp {
    read_stamp: ReadStamp,
    term: Duration,
    /// Of a directory: its change stamps.
    also: Option<(ReadStamp, Duration)>,
}

impl DelegationStamp {
    /// Of a delegation that was asked for at `read_stamp`; `None`: it was refused.
    pub(crate) fn given(read_stamp: ReadStamp, term: Duration) -> Option<Self> {
        (!term.is_zero()).then_some(Self { read_stamp, term, also: None })
    }

    /// Of the delegation that a change of this process asked for at `read_stamp` by its
    /// last action, whose result is `lease`.
    pub(crate) fn of_change(
        read_stamp: ReadStamp,
        lease: Option<&OwnedResult>,
    ) -> Result<Option<Self>> {
        Ok(Self::given(read_stamp.past_own_change(), term(lease)?))
    }

    /// Of a change of this process that asked for a long delegation and was completed at
    /// `read_stamp`, without an answer.
    pub(crate) fn of_completed_change(read_stamp: ReadStamp) -> Option<Self> {
        Self::given(read_stamp.past_own_change(), LONG_TERM)
    }

    /// For session semantics: from `read_stamp` until its close, a handle takes the file for
    /// unchanged by all but this process.
    pub(crate) const fn of_session(read_stamp: ReadStamp) -> Self {
        Self { read_stamp, term: SESSION_TERM, also: None }
    }

    /// The same for a directory, as long as its change stamps stay as they were read, too.
    pub(crate) const fn with_change_stamps(self, stamps: Self) -> Self {
        Self { also: Some((stamps.read_stamp, stamps.term)), ..self }
    }

    /// How long it will stay so, unless the delegation is recalled; `None`: it may have changed.
    pub(crate) fn left_in(&self, dataset: &Dataset) -> Option<Duration> {
        let left = dataset.is_current(&self.read_stamp, self.term)?;
        match &self.also {
            None => Some(left),
            Some((read_stamp, term)) => {
                dataset.is_current(read_stamp, *term).map(|other| left.min(other))
            }
        }
    }
}

/// A record's node, with its value from the start.
pub struct DelegatedRecord {
    pub node: FoundInode,
    pub value: Vec<u8>,
    pub delegation: Option<DelegationStamp>,
    /// When it was asked for, if changes can be told from then on.
    pub read_stamp: Option<ReadStamp>,
}

/// The term of the delegation that a lease action was given.
pub fn term(result: Option<&OwnedResult>) -> Result<Duration> {
    Ok(Duration::from_micros(result.ok_or_else(malformed)?.number()?))
}

impl RecordStoreView {
    /// Reads the record in `location`, of which at most `len` bytes are wanted, under a delegation
    /// of
    /// `wanted` if one is granted; with an open reference `open_reference` unless that is 0.
    pub fn read_under(
        &self,
        location: &RecordLocation,
        epoch: Epoch,
        (len, wanted, open_reference): (usize, Duration, u64),
    ) -> Result<Option<DelegatedRecord>> {
        let read_stamp = match wanted.is_zero() {
            true => None,
            false => self.dataset.read_stamp(location.partition),
        };
        let key = &location.key;
        let mut op =
            Operation::new(location.partition, [Action::Get { key, offset: 0, len: len as u32 }]);
        if read_stamp.is_some() {
            op.actions.push(Action::Lease { key, term_us: wanted.as_micros() as u32 });
        }
        if open_reference != 0 {
            op.actions.push(Action::Hold { key, token: open_reference });
        }
        let results = match self.run(ClientOperation::new(op).under_lease(epoch))? {
            OwnedOutcome::Done(results) => results,
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                return Ok(None);
            }
            OwnedOutcome::Failed(failure) => return Err(failure.into_error("look up")),
        };
        let delegation = match read_stamp {
            Some(read_stamp) => DelegationStamp::given(read_stamp, term(results.get(1))?),
            None => None,
        };
        match results.into_iter().next() {
            Some(OwnedResult::Value { version, total_len, data: value, .. }) => {
                let node = self.node(location.clone(), version, total_len, &value)?;
                Ok(Some(DelegatedRecord {
                    node: FoundInode { open_reference, ..node },
                    value,
                    delegation,
                    read_stamp,
                }))
            }
            _ => Err(malformed()),
        }
    }

    /// Reads the record in `location`, present or not, under a long delegation if one is granted.
    pub fn look_under(
        &self,
        location: &RecordLocation,
        epoch: Epoch,
    ) -> Result<(Option<FoundInode>, Option<DelegationStamp>)> {
        let Some(read_stamp) = self.dataset.read_stamp(location.partition) else {
            return Ok((self.read(location, epoch)?, None));
        };
        let op =
            Operation::new(location.partition, listed_under_delegation(&location.key, LOOKUP_LEN));
        let results =
            self.run(ClientOperation::new(op).under_lease(epoch))?.into_results("look up")?;
        let delegation = DelegationStamp::given(read_stamp, term(results.get(1))?);
        // Longer keys with the same start come after it.
        let node = match results.first() {
            Some(OwnedResult::Listing { entries, .. }) => entries
                .first()
                .filter(|entry| entry.key[..] == location.key[..])
                .map(|entry| {
                    self.node(location.clone(), entry.version, entry.total_len, entry.bytes())
                })
                .transpose()?,
            _ => return Err(malformed()),
        };
        Ok((node, delegation))
    }
}

/// Reads a record that may be absent, and asks for a long delegation on it.
pub fn listed_under_delegation(key: &[u8], len: usize) -> [Action<'_>; 2] {
    [
        Action::List {
            prefix: key,
            after: b"",
            limit: 1,
            reverse: false,
            value_len_max: len as u32,
        },
        long_delegation(key),
    ]
}

/// Asks for a long delegation.
pub const fn long_delegation(key: &[u8]) -> Action<'_> {
    Action::Lease { key, term_us: LONG_TERM.as_micros() as u32 }
}
