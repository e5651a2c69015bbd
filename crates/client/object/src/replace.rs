//! Replacing an object as a whole.

use samite_client::drafts::{DraftLock, NameDrafts};
use samite_client::{ClientOperation, OwnedOutcome, key_text};
use samite_types::{Error, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::header::{HeaderKey, ID_AT, ObjectHeader, header_key};
use crate::open_object::OpenObject;
use crate::view::ObjectView;

/// An object on its way: it is written like any other, and no client sees it before
/// [`ObjectReplacement::place`]. Dropped before, it goes.
///
/// When its process dies, its chunks are removed by the next replacement, or removal, of an object
/// of this name.
#[derive(Debug)]
pub struct ObjectReplacement {
    objects: ObjectView,
    name: Box<[u8]>,
    header: ObjectHeader,
    object: OpenObject,
    drafts: NameDrafts,
    is_placed: bool,
    _held: DraftLock,
}

impl ObjectView {
    /// Begins an object that is to take the place of the one called `name`, if there is one by
    /// then.
    ///
    /// # Errors
    /// `Invalid`, `TooLarge` for a name that cannot be; `NoSpace`, `NoLocks`; as
    /// [`Dataset::execute`](samite_client::Dataset::execute).
    pub fn replace(&self, name: &[u8]) -> Result<ObjectReplacement> {
        header_key(name)?;
        let header = ObjectHeader::fresh(self.dataset.spec().chunk_len);
        let drafts = self.drafts(name);
        let held = drafts
            .begin(&header.id, &header.encode())
            .map_err(|error| error.context(format_args!("replace object {}", key_text(name))))?;
        let object = OpenObject::at(
            HeaderKey::from_slice(&drafts.key(&header.id)),
            self.dataset.clone(),
            name,
            &header,
        );
        Ok(ObjectReplacement {
            objects: self.clone(),
            name: name.into(),
            header,
            object,
            drafts,
            is_placed: false,
            _held: held,
        })
    }
}

impl ObjectReplacement {
    /// The object to write to. After [`Self::place`] it is at its name: open it anew.
    #[must_use]
    pub const fn object(&self) -> &OpenObject {
        &self.object
    }

    /// Puts it in place of the object that is there, in one step. Of several at a time the last one
    /// stays.
    ///
    /// # Errors
    /// `NotFound`: somebody has removed it, for its lock was lost; as
    /// [`Dataset::execute`](samite_client::Dataset::execute).
    pub fn place(mut self) -> Result<()> {
        let what = format!("replace object {}", key_text(&self.name));
        let key = header_key(&self.name)?;
        let draft = self.drafts.key(&self.header.id);
        let raw = ObjectHeader { len: self.object.len()?, ..self.header }.encode();
        let partition = self.objects.dataset.partition_of(&self.name);
        loop {
            let old = self.objects.header(&self.name)?;
            let mut actions = vec![Action::Delete { key: &draft }];
            let old_key = old.map(|old| (self.drafts.key(&old.id), old.id));
            let mut guard = Guard::Absent(&key);
            if let Some((old_key, id)) = &old_key {
                actions.push(Action::Put { key: old_key, data: ValueData::Inline(&[]) });
                guard = Guard::BytesAre { key: &key, offset: ID_AT, bytes: id };
            }
            actions.push(Action::Put { key: &key, data: ValueData::Inline(&raw) });
            let own = Guard::BytesAre { key: &draft, offset: ID_AT, bytes: &self.header.id };
            let operation = Operation::new(partition, actions).guard(own).guard(guard);
            match self.objects.dataset.execute_one(ClientOperation::new(operation))? {
                OwnedOutcome::Done(_) => {
                    self.is_placed = true;
                    // The rest of this is removed by the next client that comes. Another one may
                    // have been killed shortly before.
                    let _ = old_key.map(|(_, id)| self.drafts.remove(&id));
                    let _ = self.drafts.sweep();
                    return Ok(());
                }
                OwnedOutcome::Failed(failure)
                    if matches!(failure.kind, ErrorKind::Conflict | ErrorKind::NotFound) =>
                {
                    if failure.index == 0 {
                        return Err(
                            Error::new(ErrorKind::NotFound, what).context("its lock was lost")
                        );
                    }
                }
                OwnedOutcome::Failed(failure) => return Err(failure.into_error(what)),
            }
        }
    }
}

impl Drop for ObjectReplacement {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = self.drafts.give_up(&self.header.id);
        }
    }
}
