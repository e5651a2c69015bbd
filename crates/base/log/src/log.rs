//! The log: batches in, segments out, and back.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use samite_types::{ErrorKind, Result};

use crate::disk::{LogDisk, LogFile};
use crate::frame::{FRAME_LEN_MAX, FrameBatch, framed_len};
use crate::manifest::{LogExtent, LogManifest};
use crate::segment::{HEADER_LEN, LogSegment, SPARE, SegmentContents, corrupt, header, scan};

/// How a log is laid out.
#[derive(Clone, Copy, Debug)]
pub struct LogSettings {
    /// Id of the log, the same for all of its life and no other's.
    pub id: u64,
    /// Bytes of a segment; more where a single frame needs it.
    pub segment_len: u64,
}

impl LogSettings {
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

/// On a disk that is full, a segment may be so much smaller.
const SMALL: u64 = 16;
/// Zeros that are written in one go.
const ZEROS_LEN: u64 = 1 << 20;

/// A log that is open. One thread uses it.
#[derive(Debug)]
pub struct OpenLog {
    disk: Arc<dyn LogDisk>,
    settings: LogSettings,
    manifest: LogManifest,
    /// Oldest first; the last is the one in use.
    segments: VecDeque<LogSegment>,
    /// The last segment.
    file: Option<Box<dyn LogFile>>,
    /// Where the next frame goes in `file`.
    end: u64,
    /// Number of the next frame; all below are on flash.
    next: u64,
    /// The next segment, set aside.
    spare: Option<(Box<dyn LogFile>, u64)>,
    /// The manifest tells of the last segment, whose name is on flash. Before that it gets no frames.
    is_recorded: bool,
    /// The segment before, by its first frame, and where its frames end: the rest of it is given back once the last one is recorded.
    full: Option<(Box<dyn LogFile>, u64, u64)>,
}

impl OpenLog {
    /// Opens the log on `disk`, makes it if there is none, hands out its frames in order, and clears a torn tail.
    ///
    /// # Errors
    /// `Corrupt`: bytes have changed that had been on flash, or a segment is missing or shorter than it was; the message says which. Those of the disk
    /// and of `visit`.
    pub fn open(
        disk: Arc<dyn LogDisk>,
        settings: LogSettings,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Self> {
        let names = disk.list()?;
        let mut firsts: Vec<u64> =
            names.iter().filter_map(|name| LogSegment::first_of(name)).collect();
        firsts.sort_unstable();
        let manifest = LogManifest::open(&*disk, settings.id, &names)?;
        let extent = match &manifest {
            Some(manifest) => manifest.extent(),
            // Before there were manifests.
            None => LogExtent { first: firsts.first().copied().unwrap_or(1), ..LogExtent::NEW },
        };
        let needed = [extent.first, extent.newest].into_iter().filter(|_| extent.newest > 0);
        if let Some(missing) = needed.into_iter().find(|first| !firsts.contains(first)) {
            return Err(corrupt(&LogSegment::name(missing), 0, "the file is missing"));
        }
        let (dropped, firsts) = firsts.split_at(firsts.partition_point(|it| *it < extent.first));
        let mut found = Vec::new();
        let mut next = extent.first;
        for first in firsts {
            let is_last = Some(first) == firsts.last();
            let is_newest = *first == extent.newest;
            let len_min = if is_last && is_newest { extent.newest_len } else { 0 };
            let segment = read_segment((&*disk, settings), (*first, next), is_last, visit)?;
            if segment.len < len_min {
                let words =
                    format!("the file ends here, and {len_min} bytes were set aside for it");
                return Err(corrupt(&LogSegment::name(*first), segment.len as usize, &words));
            }
            next = segment.next;
            found.push((*first, segment));
        }
        for first in dropped {
            disk.remove(&LogSegment::name(*first))?;
        }
        let spare = match names.iter().any(|name| name == SPARE) {
            true => find_spare(&*disk, settings)?,
            false => None,
        };
        let log = Self::go_on((disk, settings), manifest, (&found, next))?;
        Ok(Self { spare, ..log })
    }

    /// Goes on from what was found.
    fn go_on(
        (disk, settings): (Arc<dyn LogDisk>, LogSettings),
        manifest: Option<LogManifest>,
        (found, next): (&[(u64, SegmentContents)], u64),
    ) -> Result<Self> {
        disk.sync()?;
        let (mut file, mut end) = (None, 0);
        let mut extent = manifest.as_ref().map_or(LogExtent::NEW, LogManifest::extent);
        if let Some((newest, segment)) = found.last() {
            let last = disk.open(&LogSegment::name(*newest))?;
            clear(&*last, segment.end..segment.used)?;
            // It may have been read from memory alone, name and all.
            last.sync()?;
            let first = found.first().map_or(*newest, |(first, _)| *first);
            extent = LogExtent { first, newest: *newest, newest_len: segment.len };
            (file, end) = (Some(last), segment.end);
        }
        let manifest = match manifest {
            None => LogManifest::create(&*disk, settings.id, extent)?,
            Some(mut manifest) => {
                manifest.set(extent)?;
                manifest
            }
        };
        let mut segments = VecDeque::new();
        for (index, (first, segment)) in found.iter().enumerate() {
            let mut len = segment.len;
            if index + 1 < found.len() && segment.end < segment.len {
                disk.open(&LogSegment::name(*first))?.truncate(segment.end)?;
                len = segment.end;
            }
            segments.push_back(LogSegment { first: *first, len });
        }
        let (spare, full, is_recorded) = (None, None, true);
        Ok(Self { disk, settings, manifest, segments, file, end, next, spare, is_recorded, full })
    }

    /// Number that the next frame gets; all below are on flash.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Number of the oldest frame that the log has; [`next`](Self::next) if there is none.
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

    /// The log has no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first() == self.next
    }

    /// Bytes that are left in the segment in use.
    fn room_here(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.len.saturating_sub(self.end))
    }

    /// Bytes of frames that are sure to find space. Where the space that is set aside ends in the middle of a frame the rest of it is
    /// not used, so frames of up to `frame_len_max` bytes count.
    #[must_use]
    pub fn room(&self, frame_len_max: usize) -> u64 {
        let here = self.room_here();
        let header = HEADER_LEN as u64;
        let there = self.spare.as_ref().map_or(0, |(_, len)| len - header);
        if there == 0 { here } else { there + here.saturating_sub(frame_len_max as u64) }
    }

    /// Sets the next segment aside, unless it is.
    ///
    /// # Errors
    /// The disk's, most likely `NoSpace`. Nothing is lost by it: try again when there may be space.
    pub fn prepare(&mut self) -> Result<()> {
        let whole = self.settings.segment_len;
        match &mut self.spare {
            None => self.make_spare(whole),
            Some((_, len)) if *len >= whole => Ok(()),
            Some((file, len)) => match file.reserve(whole).and_then(|()| file.sync()) {
                Ok(()) => {
                    *len = whole;
                    Ok(())
                }
                Err(error) => {
                    // A part of it may be there.
                    file.truncate(*len)?;
                    Err(error)
                }
            },
        }
    }

    /// Sets a smaller next segment aside, for when there is no space for a whole one.
    ///
    /// # Errors
    /// The disk's.
    pub fn prepare_small(&mut self) -> Result<()> {
        match self.spare {
            Some(_) => Ok(()),
            None => self.make_spare(self.settings.segment_len / SMALL),
        }
    }

    /// Bytes of a segment.
    pub(crate) const fn segment_len(&self) -> u64 {
        self.settings.segment_len
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
    /// The disk's. The frames below [`next`](Self::next) are on flash; the same batch may be tried
    /// again, and is written anew from there. Bytes that a failed sync has left are not relied on.
    pub fn write(&mut self, batch: &mut FrameBatch) -> Result<()> {
        batch.finish(self.settings.id, self.next, self.next);
        while batch.written() < batch.len() {
            let at = batch.written();
            let (frames, len) = batch.fitting(at, self.room_here() as usize);
            if frames == 0 {
                self.rotate(batch.frame_len(at))?;
                continue;
            }
            self.record()?;
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
        let need = (HEADER_LEN + frame_len) as u64;
        if self.spare.as_ref().is_none_or(|(_, len)| *len < need) {
            self.spare = None;
            let whole = self.settings.segment_len.max(need);
            let small = (self.settings.segment_len / SMALL).max(need);
            match self.make_spare(whole) {
                Err(error) if error.kind() == ErrorKind::NoSpace => self.make_spare(small)?,
                made => made?,
            }
        }
        if let Some((file, _)) = &self.spare {
            file.write_at(0, &header(self.settings.id, self.next))?;
            file.sync()?;
        }
        self.disk.rename(SPARE, &LogSegment::name(self.next))?;
        let Some((file, len)) = self.spare.take() else { return Ok(()) };
        let before = self.file.replace(file);
        match (before, self.segments.back().map(|last| last.first)) {
            // One without frames is replaced.
            (_, Some(first)) if first == self.next => drop(self.segments.pop_back()),
            (Some(before), Some(first)) => self.full = Some((before, first, self.end)),
            _ => {}
        }
        self.segments.push_back(LogSegment { first: self.next, len });
        self.end = HEADER_LEN as u64;
        self.is_recorded = false;
        Ok(())
    }

    /// Has the manifest tell of the last segment.
    fn record(&mut self) -> Result<()> {
        if self.is_recorded {
            return Ok(());
        }
        // A name that the manifest tells of is on flash.
        self.disk.sync()?;
        let Some(last) = self.segments.back() else { return Ok(()) };
        let extent =
            LogExtent { newest: last.first, newest_len: last.len, ..self.manifest.extent() };
        self.manifest.set(extent)?;
        self.is_recorded = true;
        if let Some((file, first, end)) = self.full.take() {
            let segment = self.segments.iter_mut().find(|segment| segment.first == first);
            // When it fails the space is given back later, with the segment.
            if let Some(segment) = segment.filter(|_| file.truncate(end).is_ok()) {
                segment.len = end;
            }
        }
        Ok(())
    }

    /// Frames below `sequence` are not needed any more: removes the segments that have no others. The newest one stays, so that the
    /// numbers go on after it.
    ///
    /// # Errors
    /// The disk's; the segments are there, then, and can be removed later.
    pub fn drop_below(&mut self, sequence: u64) -> Result<()> {
        let kept = self.segments.iter().rfind(|segment| segment.first <= sequence);
        let Some(first) = kept.map(|segment| segment.first).filter(|it| *it > self.first()) else {
            return Ok(());
        };
        self.record()?;
        self.manifest.set(LogExtent { first, ..self.manifest.extent() })?;
        while self.first() < first {
            self.disk.remove(&LogSegment::name(self.first()))?;
            self.segments.pop_front();
        }
        self.disk.sync()
    }
}

/// Reads the segment that begins with frame `first`, where frame `next` is the next.
fn read_segment(
    (disk, settings): (&dyn LogDisk, LogSettings),
    (first, next): (u64, u64),
    is_last: bool,
    visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<SegmentContents> {
    if first != next {
        let missing = format!("frames {next} to {} are missing before it", first - 1);
        return Err(corrupt(&LogSegment::name(first), 0, &missing));
    }
    scan((disk, settings.id), first, (is_last, settings.segment_len_max()), visit)
}

/// The next segment, if an earlier life has set it aside: on a full disk there may be no space for another. It has no header; one that has may be about
/// to get its name.
fn find_spare(
    disk: &dyn LogDisk,
    settings: LogSettings,
) -> Result<Option<(Box<dyn LogFile>, u64)>> {
    let file = disk.open(SPARE)?;
    let len = file.len()?;
    let mut head = [1; HEADER_LEN];
    let is_read = file.read_at(0, &mut head)? == HEADER_LEN;
    let is_fresh = is_read && head == [0; HEADER_LEN] && len == settings.segment_len;
    if is_fresh && file.reserve(len).and_then(|()| file.sync()).is_ok() {
        return Ok(Some((file, len)));
    }
    disk.remove(SPARE)?;
    Ok(None)
}

/// Writes zeros where a torn tail was: the bytes that are written there next must not be followed
/// by a part of it.
fn clear(file: &dyn LogFile, range: Range<u64>) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let len = ZEROS_LEN.min(range.end - at);
        file.write_at(at, &vec![0; len as usize])?;
        at += len;
    }
    Ok(())
}
