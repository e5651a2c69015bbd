//! The walk over the source: makes directories, hands files to the copying threads, and ends with links and attributes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use samite_fs::FileKind;
use samite_types::{Error, ErrorKind, Result};

use crate::Summary;
use crate::beside::is_hidden;
use crate::copy::{Buffer, Copy, FileJob, Large};
use crate::progress::add;
use crate::queue::{Queue, Work};
use crate::tree::{Meta, SMALL_LEN, Tree, join};

/// What is left for the end of the walk.
#[derive(Default)]
struct Later {
    /// Directories in the order in which they were made: parents first.
    directories: Vec<(Vec<u8>, Meta)>,
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
enum Job {
    One(FileJob),
    Small(Vec<FileJob>),
}

/// Copies `from`, which is `root`, to `to`.
pub fn run<S: Tree, D: Tree>(
    copy: &Copy<'_, S, D>,
    from: &[u8],
    to: &[u8],
    root: Meta,
) -> Result<Summary> {
    let begun = Instant::now();
    let queue: Queue<Job, Large<S::File, D::File>> = Queue::new();
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
        let mut later = Later::default();
        visit_all(copy, &queue, &mut later, from, to, root);
        queue.push(Job::Small(std::mem::take(&mut later.small)));
        copy.progress.walked.store(true, Ordering::Release);
        queue.close();
        Ok(later)
    })
    .map(|later| {
        finish(copy, later);
        copy.progress.summary(begun.elapsed(), copy.is_lost(), copy.stopped_by())
    })
}

fn work<S: Tree, D: Tree>(copy: &Copy<'_, S, D>, queue: &Queue<Job, Large<S::File, D::File>>) {
    let mut buffer = Buffer::new();
    while let Some(work) = queue.next() {
        match work {
            Work::Help(large) => copy.help(&large, &mut buffer),
            Work::Job(..) if copy.is_lost() => {}
            Work::Job(Job::One(_), _) if copy.stopped_by().is_some() => copy.untried(1),
            Work::Job(Job::Small(jobs), _) if copy.stopped_by().is_some() => {
                copy.untried(jobs.len());
            }
            Work::Job(Job::One(job), _busy) => {
                copy.file(&job, &mut buffer, |large| queue.offer(large));
            }
            Work::Job(Job::Small(jobs), _busy) => copy.small_files(&jobs, &mut buffer),
        }
    }
}

fn visit_all<S: Tree, D: Tree>(
    copy: &Copy<'_, S, D>,
    queue: &Queue<Job, Large<S::File, D::File>>,
    later: &mut Later,
    from: &[u8],
    to: &[u8],
    root: Meta,
) {
    // Directories whose entries are yet to be read. Depth first, so that this holds one directory's worth per level.
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
        // What could be listed is copied all the same.
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

fn visit<S: Tree, D: Tree>(
    copy: &Copy<'_, S, D>,
    queue: &Queue<Job, Large<S::File, D::File>>,
    later: &mut Later,
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
                queue.push(Job::One(job));
                return;
            }
            later.small.push(job);
            if later.small.len() == BATCH_LEN {
                queue.push(Job::Small(std::mem::take(&mut later.small)));
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
fn finish<S: Tree, D: Tree>(copy: &Copy<'_, S, D>, later: Later) {
    let mut buffer = Buffer::new();
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
