//! Reading and writing without waiting.

use samite_client::{FinishStep, PendingOperations};
use samite_types::Result;

use crate::open_object::{ObjectPart, OpenObject};

impl OpenObject {
    /// Reads `len` bytes from `offset` on, without waiting; fewer come only at the end of the
    /// object.
    ///
    /// # Errors
    /// As [`Self::read_at`] and [`samite_client::Dataset::submit`].
    pub fn submit_read_at(&self, len: usize, offset: u64) -> Result<PendingOperations<Vec<u8>>> {
        let parts = self.parts(offset, len)?;
        let operations: Vec<_> = parts.iter().map(ObjectPart::read).collect();
        let object = self.clone();
        self.dataset().submit_then(&operations, move |outcomes| {
            let mut bytes = Vec::new();
            for outcome in outcomes {
                match object.got(outcome) {
                    Err(error) => return FinishStep::Ready(Err(error)),
                    Ok(None) => break,
                    // The first value is most often the only one.
                    Ok(Some((_, data))) if bytes.is_empty() => bytes = data,
                    Ok(Some((_, data))) => bytes.extend_from_slice(&data),
                }
            }
            if bytes.len() == len {
                return FinishStep::Ready(Ok(bytes));
            }
            // A hole, or the end of the object.
            FinishStep::Follow(Box::new(move || {
                let mut bytes = vec![0; len];
                let len = object.read_at(&mut bytes, offset)?;
                bytes.truncate(len);
                Ok(bytes)
            }))
        })
    }

    /// Writes all of `data` at `offset`, without waiting.
    ///
    /// # Errors
    /// As [`Self::write_at`] and [`samite_client::Dataset::submit`].
    pub fn submit_write_at(&self, data: &[u8], offset: u64) -> Result<PendingOperations<()>> {
        let parts = self.parts(offset, data.len())?;
        let end = offset + data.len() as u64;
        let grows = self.grows(data.len(), end);
        let operations = self.write_operations(&parts, data, end, grows);
        let object = self.clone();
        self.dataset().submit_then(&operations, move |outcomes| match object.written(outcomes) {
            Ok(()) if grows => FinishStep::Follow(Box::new(move || object.raise_len(end))),
            result => FinishStep::Ready(result),
        })
    }
}
