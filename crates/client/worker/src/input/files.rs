//! Pieces of files.

use std::sync::Arc;

use samite_fs::{CallerContext, FileSystem, INLINE_LEN_MAX, OpenFile, OpenFlags};
use samite_types::{Error, ErrorKind, NodeId, PartitionId, Result};

use super::{InputPiece, WorkerPlace};
use crate::messages::{FilePiece, OrderedFile};
use crate::tasks::TaskState;

/// Bytes read at a time: they are still in the cache when the module looks at them.
const READ_LEN: usize = 256 << 10;
/// Bytes read at a time behind a piece: mostly the rest of a line.
const PAST_LEN: usize = 4 << 10;

/// See the module.
pub(super) struct FileInput {
    fs: FileSystem,
    context: CallerContext,
    node: NodeId,
    files: Vec<OrderedFile>,
    pieces: std::vec::IntoIter<FilePiece>,
    first_piece: u64,
    open: Option<(u32, OpenFile)>,
    piece: Option<FilePiece>,
    /// Where in the file to read next.
    at: u64,
    buffer: Vec<u8>,
}

impl FileInput {
    pub(super) fn open(
        place: &WorkerPlace,
        dataset: &str,
        files: Vec<OrderedFile>,
        pieces: Vec<FilePiece>,
    ) -> Result<Self> {
        if pieces.iter().any(|piece| files.get(piece.file as usize).is_none()) {
            return Err(Error::new(ErrorKind::Invalid, "a piece of no file"));
        }
        // Only of a store that has files: a worker makes nothing.
        place.client.dataset(dataset)?;
        Ok(Self {
            fs: FileSystem::open(&place.client, dataset)?,
            context: place.context.clone(),
            node: place.node,
            files,
            first_piece: pieces.first().map_or(0, |piece| piece.number),
            pieces: pieces.into_iter(),
            open: None,
            piece: None,
            at: 0,
            buffer: vec![0; READ_LEN],
        })
    }

    /// Opens a file of the same dataset for writing.
    pub(super) fn open_for_writing(
        &self,
        path: &[u8],
        ino: Option<u64>,
        state: &Arc<TaskState>,
    ) -> Result<TaskFile> {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let file = self.fs.open_file(&self.context, path, flags, 0)?;
        if ino.is_some_and(|ino| ino != file.ino()) {
            let words =
                format!("{}: another file has got this name", String::from_utf8_lossy(path));
            return Err(Error::new(ErrorKind::StaleHandle, words));
        }
        let (fs, node, state) = (self.fs.clone(), self.node, Arc::clone(state));
        Ok(TaskFile { fs, node, file, path: path.to_vec(), state })
    }

    /// Number of the first piece.
    pub(super) fn first_piece(&self) -> u64 {
        self.first_piece
    }

    pub(super) fn next_piece(&mut self, state: &TaskState) -> Result<Option<InputPiece>> {
        let Some(piece) = self.pieces.next() else {
            self.piece = None;
            return Ok(None);
        };
        let file = &self.files[piece.file as usize];
        if self.open.as_ref().is_none_or(|(index, _)| *index != piece.file) {
            let path = file.path.as_slice();
            let opened = self.fs.open_file(&self.context, path, OpenFlags::reading(), 0)?;
            if opened.ino() != file.ino {
                let words =
                    format!("{}: another file has got this name", String::from_utf8_lossy(path));
                return Err(Error::new(ErrorKind::StaleHandle, words));
            }
            self.open = Some((piece.file, opened));
        }
        // The file is counted by the task that has its first bytes.
        if piece.offset == 0 {
            state.add_record();
        }
        let found = InputPiece::File {
            file: file.number,
            offset: piece.offset,
            len: piece.len,
            size: file.size,
        };
        state.begin_piece(piece.number);
        self.at = piece.offset;
        self.piece = Some(piece);
        Ok(Some(found))
    }

    pub(super) fn read(&mut self, state: &TaskState) -> Result<&[u8]> {
        let end = self.piece.map_or(0, |piece| piece.offset + piece.len);
        self.read_to(end, READ_LEN, state)
    }

    pub(super) fn read_past(&mut self, state: &TaskState) -> Result<&[u8]> {
        let Some(piece) = self.piece else { return Ok(&[]) };
        self.at = self.at.max(piece.offset + piece.len);
        let size = self.files[piece.file as usize].size;
        self.read_to(size, PAST_LEN, state)
    }

    /// Reads on, but not beyond `end`, nor beyond the chunk.
    fn read_to(&mut self, end: u64, most: usize, state: &TaskState) -> Result<&[u8]> {
        let (Some(piece), Some((_, file))) = (self.piece, &self.open) else { return Ok(&[]) };
        let chunk_len = self.fs.chunk_len();
        let left = end.saturating_sub(self.at).min(chunk_len - self.at % chunk_len);
        let len = usize::try_from(left).unwrap_or(most).min(most);
        if len == 0 {
            return Ok(&[]);
        }
        let ordered = &self.files[piece.file as usize];
        let read = file.read_at(&mut self.buffer[..len], self.at).map_err(|error| {
            let path = String::from_utf8_lossy(&ordered.path);
            error.context(format_args!("{path}, at byte {}", self.at))
        })?;
        let partition = self.partition(ordered);
        let is_local = self.fs.dataset().node_of(partition)? == self.node;
        state.add_input(read as u64, is_local);
        self.at += read as u64;
        Ok(&self.buffer[..read])
    }

    /// Where the next bytes lie.
    fn partition(&self, file: &OrderedFile) -> PartitionId {
        match file.size {
            0..=INLINE_LEN_MAX => file.home,
            _ => self.fs.data_partition(file.ino, self.at),
        }
    }
}

/// A file of the store that a task writes. What is written counts as what is read: by where it lies.
pub struct TaskFile {
    fs: FileSystem,
    node: NodeId,
    file: OpenFile,
    path: Vec<u8>,
    state: Arc<TaskState>,
}

impl TaskFile {
    /// Writes all of `bytes` at this offset.
    ///
    /// # Errors
    /// As of the store, with the file and the offset; `Interrupted`, `Timeout`: the task is to end.
    pub fn write_at(&self, mut bytes: &[u8], mut at: u64) -> Result<()> {
        let chunk_len = self.fs.chunk_len();
        while !bytes.is_empty() {
            self.state.check()?;
            let left = chunk_len - at % chunk_len;
            let len = usize::try_from(left).unwrap_or(bytes.len()).min(bytes.len());
            let written = self.file.write_at(&bytes[..len], at).map_err(|error| {
                let path = String::from_utf8_lossy(&self.path);
                error.context(format_args!("{path}, at byte {at}"))
            })?;
            let partition = self.fs.data_partition(self.file.ino(), at);
            let is_local = self.fs.dataset().node_of(partition)? == self.node;
            self.state.add_input(written as u64, is_local);
            bytes = &bytes[written..];
            at += written as u64;
        }
        Ok(())
    }

    /// Settles what was written.
    ///
    /// # Errors
    /// As of the store.
    pub fn close(self) -> Result<()> {
        self.file.close()
    }
}
