//! The log: batches in, segments out, and back.

use std::collections::VecDeque;
use std::sync::Arc;

use samite_types::Result;

use crate::disk::{Disk, LogFile};
use crate::frame::{Batch, FRAME_LEN_MAX, framed_len};
use crate::segment::{HEADER_LEN, SPARE, Segment, corrupt, header, scan};

/// How a log is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Id of the log, the same for all of its life and no other's.
    pub id: u64,
    /// Bytes of a segment; more where a single frame needs it.
    pub segment_len: u64,
}

impl Settings {
    /// Segments of 64 MiB.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self { id, segment_len: 64 << 20 }
    }

    /// Longest file that can be a segment of this log.
    const fn segment_len_max(&self) -> u64 {
        let one = (HEADER_LEN + framed_len(FRAME_LEN_MAX)) as u64;
        if self.segment_len > one { self.segment_len } else { one }
    }
}

/// A log that is open. One thread uses it.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    settings: Settings,
    /// Oldest first; the last is the one in use, if any frame was written since the log was opened.
    segments: VecDeque<Segment>,
    file: Option<Box<dyn LogFile>>,
    /// Where the next frame goes in `file`.
    end: u64,
    /// Number of the next frame; all below are on flash.
    next: u64,
    /// The next segment, set aside.
    spare: Option<(Box<dyn LogFile>, u64)>,
    /// The name of the segment in use may not be on flash yet.
    is_named: bool,
}

impl Log {
    /// Opens the log on `disk`, makes it if there is none, hands out its frames in order, and cuts off a torn tail.
    ///
    /// # Errors
    /// `Corrupt`: bytes have changed that had been on flash; the message says which. Those of the disk and of `visit`.
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: Settings,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Self> {
        let names = disk.list()?;
        if names.iter().any(|name| name == SPARE) {
            disk.remove(SPARE)?;
        }
        let mut firsts: Vec<u64> =
            names.iter().filter_map(|name| Segment::first_of(name)).collect();
        firsts.sort_unstable();
        let mut log = Self {
            disk,
            settings,
            segments: VecDeque::new(),
            file: None,
            end: 0,
            next: firsts.first().copied().unwrap_or(1),
            spare: None,
            is_named: true,
        };
        for (index, first) in firsts.iter().enumerate() {
            log.read_segment(*first, index + 1 == firsts.len(), visit)?;
        }
        Ok(log)
    }

    fn read_segment(
        &mut self,
        first: u64,
        last: bool,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Self { disk, settings, .. } = self;
        let name = Segment::name(first);
        if first != self.next {
            let missing = format!("frames {} to {} are missing before it", self.next, first - 1);
            return Err(corrupt(&name, 0, &missing));
        }
        let bounds = (last, settings.segment_len_max());
        let found = scan((&**disk, settings.id), first, bounds, visit)?;
        self.next = found.next;
        if found.end < found.len {
            let file = self.disk.open(&name)?;
            file.truncate(found.end)?;
            file.sync()?;
        }
        self.segments.push_back(Segment { first, len: found.end });
        Ok(())
    }

    /// Number that the next frame gets; all below are on flash.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Number of the oldest frame that is kept; [`next`](Self::next) if there is none.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.segments.front().map_or(self.next, |segment| segment.first)
    }

    /// Bytes that its files take, the spare one included.
    #[must_use]
    pub fn len(&self) -> u64 {
        let segments: u64 = self.segments.iter().map(|segment| segment.len).sum();
        segments + self.spare.as_ref().map_or(0, |(_, len)| *len)
    }

    /// No frames are kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first() == self.next
    }

    /// Bytes of frames that are sure to find space. Where the space that is set aside ends in the middle of a frame the rest of it is
    /// not used, so frames of up to `frame_len_max` bytes count.
    #[must_use]
    pub fn room(&self, frame_len_max: usize) -> u64 {
        let current = self.segments.back().filter(|_| self.file.is_some());
        let here = current.map_or(0, |segment| segment.len - self.end);
        let header = HEADER_LEN as u64;
        let there = self.spare.as_ref().map_or(0, |(_, len)| len - header);
        if there == 0 { here } else { there + here.saturating_sub(frame_len_max as u64) }
    }

    /// Sets the next segment aside, unless it is.
    ///
    /// # Errors
    /// The disk's, most likely `NoSpace`. Nothing is lost by it: try again when there may be space.
    pub fn prepare(&mut self) -> Result<()> {
        if self.spare.is_some() {
            return Ok(());
        }
        self.make_spare(self.settings.segment_len)
    }

    fn make_spare(&mut self, len: u64) -> Result<()> {
        let _ = self.disk.remove(SPARE);
        let file = self.disk.create(SPARE)?;
        let made = file.reserve(len).and_then(|()| file.sync());
        match made {
            Ok(()) => self.spare = Some((file, len)),
            Err(_) => self.disk.remove(SPARE)?,
        }
        made
    }

    /// Writes the frames of `batch`, in order, and returns when they are on flash.
    ///
    /// # Errors
    /// The disk's. The frames below [`next`](Self::next) are on flash; the same batch may be tried again, and is written anew from there. What
    /// a sync that failed has left is not relied on.
    pub fn write(&mut self, batch: &mut Batch) -> Result<()> {
        batch.seal(self.settings.id, self.next, self.next);
        while batch.written() < batch.len() {
            let at = batch.written();
            let room = self.segments.back().filter(|_| self.file.is_some());
            let room = room.map_or(0, |segment| segment.len - self.end);
            let (frames, len) = batch.fitting(at, room as usize);
            if frames == 0 {
                self.rotate(batch.frame_len(at))?;
                continue;
            }
            if !self.is_named {
                self.disk.sync()?;
                self.is_named = true;
            }
            if let Some(file) = &self.file {
                file.write_at(self.end, &batch.bytes()[at..at + len])?;
                file.sync()?;
            }
            self.end += len as u64;
            self.next += frames;
            batch.advance(len);
        }
        Ok(())
    }

    /// Begins the next segment, which has room for a frame of `frame_len` bytes.
    fn rotate(&mut self, frame_len: usize) -> Result<()> {
        let need = self.settings.segment_len.max((HEADER_LEN + frame_len) as u64);
        if self.spare.as_ref().is_none_or(|(_, len)| *len < need) {
            self.spare = None;
            self.make_spare(need)?;
        }
        if let Some((file, _)) = &self.spare {
            file.write_at(0, &header(self.settings.id, self.next))?;
            file.sync()?;
        }
        self.disk.rename(SPARE, &Segment::name(self.next))?;
        self.close_current();
        // One that was begun before a crash and has no frames is replaced.
        if self.segments.back().is_some_and(|last| last.first == self.next) {
            self.segments.pop_back();
        }
        if let Some((file, len)) = self.spare.take() {
            self.segments.push_back(Segment { first: self.next, len });
            self.file = Some(file);
        }
        self.end = HEADER_LEN as u64;
        self.is_named = false;
        Ok(())
    }

    /// The rest of the segment in use is not needed.
    fn close_current(&mut self) {
        if let (Some(file), Some(segment)) = (self.file.take(), self.segments.back_mut()) {
            // When it fails the space is given back later, with the segment.
            if file.truncate(self.end).is_ok() {
                segment.len = self.end;
            }
        }
    }

    /// Frames below `sequence` are not needed any more: removes the segments that have no others. The newest one stays, so that the
    /// numbers go on after it.
    ///
    /// # Errors
    /// The disk's; the segments are there, then, and can be removed later.
    pub fn drop_below(&mut self, sequence: u64) -> Result<()> {
        while self.segments.get(1).is_some_and(|second| second.first <= sequence) {
            self.disk.remove(&Segment::name(self.first()))?;
            self.segments.pop_front();
            // Oldest first, also on flash: a gap would look like rot.
            self.disk.sync()?;
        }
        Ok(())
    }
}
