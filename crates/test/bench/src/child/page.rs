//! A page that two processes share, as a floor: the time to hand a message over when no kernel
//! carries it.

use std::fs::OpenOptions;
use std::hint;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use samite_types::{Error, ErrorKind, Result};

use super::failed;

/// Spins before the processor is offered to others: on one core the two sides must take turns.
const SPINS: u32 = 4096;
/// Offers without a message after which the serving side sleeps, some milliseconds: it must not take a core from what is measured in
/// the next turn.
const OFFERS: u32 = 200;
const MESSAGE_LEN: usize = 64;

/// How a side waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageWait {
    /// Sleeps in the kernel until woken.
    Futex,
    /// Looks again and again.
    Spin,
}

impl FromStr for PageWait {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "futex" => Ok(Self::Futex),
            "spin" => Ok(Self::Spin),
            _ => Err(Error::new(ErrorKind::Invalid, format!("{text:?} is no way to wait"))),
        }
    }
}

/// One direction: a number that grows with each message, and the message.
#[repr(C, align(64))]
struct PageDirection {
    number: AtomicU32,
    message: [AtomicU8; MESSAGE_LEN],
}

#[repr(C)]
struct PageLayout {
    there: PageDirection,
    back: PageDirection,
    stop: AtomicU32,
    /// The spinning server has gone to sleep.
    sleeps: AtomicU32,
}

/// The page, mapped.
pub struct SharedPage {
    layout: &'static PageLayout,
    wait: PageWait,
}

impl SharedPage {
    /// Maps the file at `path`, which is made as long as needed.
    pub fn open(path: &Path, wait: PageWait) -> Result<Self> {
        let what = format!("map {}", path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed(&what))?;
        file.set_len(size_of::<PageLayout>() as u64).map_err(failed(&what))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that is as long as the layout.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<PageLayout>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .map_err(|errno| Error::io(&what, errno))?;
        // SAFETY: the mapping is aligned to a page, never unmapped, at least as long as the layout, and any bytes are a
        // valid layout, which is made of atomics only.
        let layout = unsafe { &*address.cast::<PageLayout>() };
        Ok(Self { layout, wait })
    }

    /// Sends message `number` and waits for the answer to it.
    pub fn call(&self, number: u32) {
        send(&self.layout.there, number, self.wait);
        if self.wait == PageWait::Spin && self.layout.sleeps.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&self.layout.there.number, futex::Flags::empty(), 1);
        }
        while self.layout.back.number.load(Ordering::Acquire) != number {
            pause(&self.layout.back, number.wrapping_sub(1), self.wait);
        }
        receive(&self.layout.back);
    }

    fn serve(&self) {
        let parent = rustix::process::getppid();
        let mut number = 0;
        let mut offers = 0;
        loop {
            let next = self.layout.there.number.load(Ordering::Acquire);
            if next != number {
                number = next;
                offers = 0;
                receive(&self.layout.there);
                send(&self.layout.back, number, self.wait);
                continue;
            }
            if self.layout.stop.load(Ordering::Relaxed) != 0 || rustix::process::getppid() != parent
            {
                return;
            }
            if offers < OFFERS {
                offers += u32::from(self.wait == PageWait::Spin);
                pause(&self.layout.there, number, self.wait);
            } else {
                self.layout.sleeps.store(1, Ordering::SeqCst);
                pause(&self.layout.there, number, PageWait::Futex);
                self.layout.sleeps.store(0, Ordering::SeqCst);
                offers = 0;
            }
        }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        self.layout.stop.store(1, Ordering::Relaxed);
        let _ = futex::wake(&self.layout.there.number, futex::Flags::empty(), 1);
    }
}

fn send(way: &PageDirection, number: u32, wait: PageWait) {
    for byte in &way.message {
        byte.store(number as u8, Ordering::Relaxed);
    }
    way.number.store(number, Ordering::SeqCst);
    if wait == PageWait::Futex {
        let _ = futex::wake(&way.number, futex::Flags::empty(), 1);
    }
}

fn receive(way: &PageDirection) {
    for byte in &way.message {
        hint::black_box(byte.load(Ordering::Relaxed));
    }
}

/// Waits for a while for the number to be another than `seen`.
fn pause(way: &PageDirection, seen: u32, wait: PageWait) {
    match wait {
        PageWait::Futex => {
            let second = futex::Timespec { tv_sec: 1, tv_nsec: 0 };
            // Woken, timed out or changed already: the caller looks again.
            let _ = futex::wait(&way.number, futex::Flags::empty(), seen, Some(&second));
        }
        PageWait::Spin => {
            for _ in 0..SPINS {
                if way.number.load(Ordering::Relaxed) != seen {
                    return;
                }
                hint::spin_loop();
            }
            rustix::thread::sched_yield();
        }
    }
}

/// The other side: answers every message until told to stop.
pub fn serve(wait: PageWait, path: &Path) -> Result<()> {
    let page = SharedPage::open(path, wait)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).map_err(failed("say that it is ready"))?;
    page.serve();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cross_the_page_both_ways() {
        for wait in [PageWait::Futex, PageWait::Spin] {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            let other = SharedPage::open(file.path(), wait).expect("maps");
            let page = SharedPage::open(file.path(), wait).expect("maps");
            let thread = std::thread::spawn(move || other.serve());
            for number in 1..=100 {
                page.call(number);
                if number == 50 {
                    // The other side goes to sleep meanwhile, however it waits.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
            drop(page);
            thread.join().expect("the other side ends when told");
        }
    }
}
