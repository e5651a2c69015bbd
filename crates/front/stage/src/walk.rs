//! The walk over the source: makes directories, hands files to the copying threads, and ends with links and attributes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use samite_fs::FileKind;
use samite_types::{Error, ErrorKind, Result};

use crate::CopySummary;
use crate::beside::is_hidden;
use crate::copy::{CopyBuffer, FileJob, LargeFile, TreeCopy};
use crate::progress::add;
use crate::queue::{CopyQueue, QueueWork};
use crate::tree::{FileMeta, FileTree, SMALL_LEN, join};

/// The work that is left for the end of the walk.
#[derive(Default)]
struct DeferredMeta {
    /// Directories in the order in which they were made: parents first.
    directories: Vec<(Vec<u8>, FileMeta)>,
    /// Further names of files with several: (first name at the destination, job for a copy of its own).
    links: Vec<(Vec<u8>, FileJob)>,
    /// First name at the destination of each file with several names.
    names: HashMap<(u64, u64), Vec<u8>>,
    /// Small files that wait for a batch to be full.
    small: Vec<FileJob>,
}

/// Small files that travel together: at most this many times [`SMALL_LEN`] bytes.
const BATCH_LEN: usize = 64;

/// Work for a copying thread.
enum CopyJob {
    One(FileJob),
    Small(Vec<FileJob>),
}

/// Copies `from`, which is `root`, to `to`.
pub fn run<S: FileTree, D: FileTree>(
    copy: &TreeCopy<'_, S, D>,
    from: &[u8],
    to: &[u8],
    root: FileMeta,
) -> Result<CopySummary> {
    let begun = Instant::now();
    let queue: CopyQueue<CopyJob, LargeFile<S::File, D::File>> = CopyQueue::new();
    std::thread::scope(|scope| {
        for number in 0..copy.options.threads.max(1) {
            let name = format!("stage-{number}");
            let started =
                std::thread::Builder::new().name(name).spawn_scoped(scope, || work(copy, &queue));
            if let Err(error) = started {
                queue.close();
                return Err(Error::new(ErrorKind::Io, format!("start a thread: {error}")));
            }
        }
        let mut later = DeferredMeta::default();
        visit_all(copy, &queue, &mut later, from, to, root);
        queue.push(CopyJob::Small(std::mem::take(&mut later.small)));
        copy.progress.walked.store(true, Ordering::Release);
        queue.close();
        Ok(later)
    })
    .map(|later| {
        finish(copy, later);
        copy.progress.summary(begun.elapsed(), copy.is_lost(), copy.stopped_by())
    })
}

fn work<S: FileTree, D: FileTree>(
    copy: &TreeCopy<'_, S, D>,
    queue: &CopyQueue<CopyJob, LargeFile<S::File, D::File>>,
) {
    let mut buffer = CopyBuffer::new();
    while let Some(work) = queue.next() {
        match work {
            QueueWork::Help(large) => copy.help(&large, &mut buffer),
            QueueWork::Job(..) if copy.is_lost() => {}
            QueueWork::Job(CopyJob::One(_), _) if copy.stopped_by().is_some() => copy.untried(1),
            QueueWork::Job(CopyJob::Small(jobs), _) if copy.stopped_by().is_some() => {
                copy.untried(jobs.len());
            }
            QueueWork::Job(CopyJob::One(job), _busy) => {
                copy.file(&job, &mut buffer, |large| queue.offer(large));
            }
            QueueWork::Job(CopyJob::Small(jobs), _busy) => copy.small_files(&jobs, &mut buffer),
        }
    }
}

fn visit_all<S: FileTree, D: FileTree>(
    copy: &TreeCopy<'_, S, D>,
    queue: &CopyQueue<CopyJob, LargeFile<S::File, D::File>>,
    later: &mut DeferredMeta,
    from: &[u8],
    to: &[u8],
    root: FileMeta,
) {
    // Directories whose entries are yet to be read. Depth first, so that there are one directory's
    // entries per level.
    let mut unread = Vec::new();
    visit(
        copy,
        queue,
        later,
        &mut unread,
        FileJob { from: from.into(), to: to.into(), meta: root },
    );
    while let Some((from, to)) = unread.pop() {
        if copy.is_lost() {
            return;
        }
        let mut entries = Vec::new();
        // The listed part is copied all the same.
        if let Err(error) = copy.source.list(&from, &mut entries) {
            copy.failed(&error);
        }
        // A fixed order makes runs alike and resuming predictable.
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (name, known) in entries {
            if copy.is_lost() {
                return;
            }
            let (from, to) = (join(&from, &name), join(&to, &name));
            match known.map_or_else(|| copy.source.meta(&from), Ok) {
                Ok(meta) => visit(copy, queue, later, &mut unread, FileJob { from, to, meta }),
                // Put in place, or removed as a fragment, since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound && is_hidden(&name) => {}
                Err(error) => copy.failed(&error),
            }
        }
    }
}

type Unread = Vec<(Vec<u8>, Vec<u8>)>;

fn visit<S: FileTree, D: FileTree>(
    copy: &TreeCopy<'_, S, D>,
    queue: &CopyQueue<CopyJob, LargeFile<S::File, D::File>>,
    later: &mut DeferredMeta,
    unread: &mut Unread,
    job: FileJob,
) {
    match job.meta.kind {
        FileKind::Directory if copy.stopped_by().is_some() => unread.push((job.from, job.to)),
        _ if copy.stopped_by().is_some() => copy.untried(1),
        FileKind::Directory => match copy.directory(&job) {
            Ok(()) => {
                add(&copy.progress.tally.directories, 1);
                later.directories.push((job.to.clone(), job.meta));
                unread.push((job.from, job.to));
            }
            Err(error) => copy.failed(&error),
        },
        FileKind::File => {
            if job.meta.nlink > 1 {
                if let Some(first) = later.names.get(&job.meta.id) {
                    later.links.push((first.clone(), job));
                    return;
                }
                later.names.insert(job.meta.id, job.to.clone());
            }
            add(&copy.progress.files_found, 1);
            add(&copy.progress.bytes_found, job.meta.size);
            if job.meta.size > SMALL_LEN {
                queue.push(CopyJob::One(job));
                return;
            }
            later.small.push(job);
            if later.small.len() == BATCH_LEN {
                queue.push(CopyJob::Small(std::mem::take(&mut later.small)));
            }
        }
        FileKind::Symlink => match copy.symlink(&job) {
            Ok(()) => add(&copy.progress.tally.symlinks, 1),
            Err(error) => copy.failed(&error),
        },
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            match copy.special(&job) {
                Ok(()) => add(&copy.progress.tally.special, 1),
                Err(error) => copy.failed(&error),
            }
        }
    }
}

/// Hard links, for which their files must be there; then directories, whose times the files would have changed.
fn finish<S: FileTree, D: FileTree>(copy: &TreeCopy<'_, S, D>, later: DeferredMeta) {
    let mut buffer = CopyBuffer::new();
    for (first, job) in &later.links {
        if copy.is_lost() {
            return;
        }
        if copy.stopped_by().is_some() {
            copy.untried(1);
            continue;
        }
        match copy.hard_link(first, job) {
            Ok(()) => add(&copy.progress.tally.hard_links, 1),
            Err(error)
                if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::CrossDevice) =>
            {
                copy.file(job, &mut buffer, |_| {});
                add(&copy.progress.tally.hard_links_copied, 1);
            }
            Err(error) => copy.failed(&error),
        }
    }
    for (path, meta) in later.directories.iter().rev() {
        if copy.is_lost() {
            return;
        }
        if let Err(error) = copy.destination.set_meta(path, meta, copy.options.keep_owner) {
            copy.failed(&error);
        }
    }
}
