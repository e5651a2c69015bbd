//! Answers that the kernel keeps of a mount are never older than the store's state.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Mounted, Store, on_each_store};
use samite_fs::{CallerContext, OpenFlags};

/// Looks at all that the next change will touch, often enough for the kernel to keep it.
fn look(paths: &[PathBuf]) {
    for _ in 0..3 {
        for path in paths {
            let _ = fs::symlink_metadata(path);
        }
    }
}

#[test]
fn what_one_mount_changes_the_next_call_in_another_sees() {
    on_each_store(|store| {
        let other = store.another_mount(true);
        fs::create_dir(store.path("d")).unwrap();
        for round in 0..60u32 {
            let here =
                |name: &str| if round % 2 == 0 { store.path(name) } else { other.path(name) };
            let there =
                |name: &str| if round % 2 == 0 { other.path(name) } else { store.path(name) };
            // Long enough for delegations to be granted again on the records that the last round
            // has changed.
            std::thread::sleep(Duration::from_millis(if round % 3 == 0 { 12 } else { 0 }));
            look(&["d", "d/f", "d/g", "d/s"].map(there));
            let links = fs::metadata(there("d")).unwrap().nlink();
            fs::write(here("d/f"), vec![b'x'; round as usize + 1]).unwrap();
            assert_eq!(fs::metadata(there("d/f")).unwrap().len(), u64::from(round) + 1);
            look(&["d/f", "d/g"].map(there));
            fs::set_permissions(here("d/f"), fs::Permissions::from_mode(0o600 + round % 8))
                .unwrap();
            assert_eq!(fs::metadata(there("d/f")).unwrap().mode() & 0o777, 0o600 + round % 8);
            look(&["d/f", "d/g"].map(there));
            fs::rename(here("d/f"), here("d/g")).unwrap();
            assert!(fs::symlink_metadata(there("d/f")).is_err());
            assert_eq!(fs::read(there("d/g")).unwrap().len(), round as usize + 1);
            fs::create_dir(here("d/s")).unwrap();
            assert_eq!(fs::metadata(there("d")).unwrap().nlink(), links + 1);
            look(&["d/s", "d/s/below"].map(there));
            fs::write(here("d/s/below"), b"").unwrap();
            assert!(there("d/s/below").exists());
            fs::remove_file(there("d/s/below")).unwrap();
            fs::remove_dir(there("d/s")).unwrap();
            assert!(!here("d/s").exists());
            fs::remove_file(there("d/g")).unwrap();
            assert!(!here("d/g").exists());
            assert_eq!(fs::read_dir(here("d")).unwrap().count(), 0);
        }
    });
}

#[test]
fn what_the_library_changes_the_next_call_in_a_mount_sees() {
    on_each_store(|store| {
        let ctx = CallerContext::root();
        let path = store.path("f");
        for round in 0..60u64 {
            std::thread::sleep(Duration::from_millis(if round % 3 == 0 { 12 } else { 0 }));
            look(std::slice::from_ref(&path));
            assert!(!path.exists());
            let file = store.fs.open_file(&ctx, b"/f", OpenFlags::creating(), 0o644).unwrap();
            assert!(path.exists());
            for len in 1..=5 {
                look(std::slice::from_ref(&path));
                file.write_at(b"12345", round + len).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().len(), round + len + 5);
            }
            // Chunks, whose size is where the writer is until it closes.
            file.write_at(&[7; 20_000], 0).unwrap();
            for len in [30_000, 70_000, 2_000_000] {
                look(std::slice::from_ref(&path));
                file.write_at(b"end", len).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().len(), len + 3);
            }
            file.close().unwrap();
            let open = fs::File::open(&path).unwrap();
            for len in [5, 500_000] {
                look(std::slice::from_ref(&path));
                assert!(open.metadata().is_ok());
                store.fs.truncate(&ctx, b"/f", len).unwrap();
                assert_eq!(open.metadata().unwrap().len(), len);
                assert_eq!(fs::metadata(&path).unwrap().len(), len);
            }
            drop(open);
            store.fs.unlink(&ctx, b"/f").unwrap();
        }
    });
}

/// Times and links of a directory, as each side sees them.
fn seen(store: &Store, other: &Mounted) -> [(i64, i64, u64); 3] {
    let of = |path: PathBuf| {
        let found = fs::metadata(path).unwrap();
        let time = |seconds: i64, nanoseconds: i64| seconds * 1_000_000_000 + nanoseconds;
        let mtime = time(found.mtime(), found.mtime_nsec());
        (mtime, time(found.ctime(), found.ctime_nsec()), found.nlink())
    };
    let attr = store.fs.stat(&CallerContext::root(), b"/d", true).unwrap();
    let library = (attr.mtime.0, attr.ctime.0, u64::from(attr.nlink));
    [of(store.path("d")), of(other.path("d")), library]
}

#[test]
fn everybody_sees_the_same_directory_after_each_change_in_it() {
    on_each_store(|store| {
        let (ctx, other) = (CallerContext::root(), store.another_mount(true));
        fs::create_dir(store.path("d")).unwrap();
        let mut last = seen(store, &other)[0];
        for round in 0..90u32 {
            std::thread::sleep(Duration::from_millis(if round % 4 == 0 { 12 } else { 0 }));
            let is_first = round % 3 == 0;
            let here = |name: &str| if is_first { store.path(name) } else { other.path(name) };
            for step in 0..7 {
                let before = last.2;
                let links = match (step, round % 3) {
                    (0, 2) => {
                        let how = OpenFlags::creating();
                        store.fs.open_file(&ctx, b"/d/f", how, 0o644).unwrap().close().unwrap();
                        before
                    }
                    (0, _) => {
                        fs::write(here("d/f"), b"").unwrap();
                        before
                    }
                    (1, 2) => {
                        store.fs.mkdir(&ctx, b"/d/s", 0o755).unwrap();
                        before + 1
                    }
                    (1, _) => {
                        fs::create_dir(here("d/s")).unwrap();
                        before + 1
                    }
                    (2, _) => {
                        fs::hard_link(here("d/f"), here("d/h")).unwrap();
                        before
                    }
                    (3, _) => {
                        fs::rename(here("d/s"), here("d/t")).unwrap();
                        before
                    }
                    (4, _) => {
                        assert!(fs::remove_dir(here("d")).is_err());
                        fs::remove_file(here("d/h")).unwrap();
                        before
                    }
                    (5, 2) => {
                        store.fs.rmdir(&ctx, b"/d/t").unwrap();
                        before - 1
                    }
                    (5, _) => {
                        fs::remove_dir(here("d/t")).unwrap();
                        before - 1
                    }
                    (_, 2) => {
                        store.fs.unlink(&ctx, b"/d/f").unwrap();
                        before
                    }
                    _ => {
                        fs::remove_file(here("d/f")).unwrap();
                        before
                    }
                };
                let now = seen(store, &other);
                assert_eq!(now, [now[0]; 3], "round {round}, step {step}");
                assert_eq!(now[0].2, links, "round {round}, step {step}");
                assert!(now[0] > last || now[0].0 > last.0, "round {round}, step {step}");
                last = now[0];
            }
        }
    });
}

#[test]
fn files_made_and_removed_cost_a_request_for_each_name_made_and_removed() {
    /// Of each kind.
    const FILES: u64 = 200;
    on_each_store(|store| {
        // Nobody else uses it: the work of others is not in its metrics.
        let mount = store.another_mount(true);
        fs::create_dir(mount.path("d")).unwrap();
        let names: Vec<PathBuf> =
            (0..FILES).map(|number| mount.path(&format!("d/{number}"))).collect();
        let cost = |what: &dyn Fn(&Path)| {
            let before = mount.requests();
            names.iter().for_each(|name| what(name));
            mount.requests() - before
        };
        // Delegations are granted once the mount listens for recalls.
        let (warm, end) = (mount.path("d/warm"), Instant::now() + Duration::from_secs(10));
        loop {
            drop(fs::File::create_new(&warm).unwrap());
            let before = mount.requests();
            assert!(fs::metadata(&warm).is_ok());
            let is_kept = mount.requests() == before;
            fs::remove_file(&warm).unwrap();
            if is_kept {
                break;
            }
            assert!(Instant::now() < end, "nothing is ever promised");
        }
        let made = cost(&|name| drop(fs::File::create_new(name).unwrap()));
        let found = cost(&|name| assert_eq!(fs::metadata(name).unwrap().len(), 0));
        let removed = cost(&|name| fs::remove_file(name).unwrap());
        println!(
            "requests for {FILES} files: {made} to make, {found} to find, {removed} to remove"
        );
        // Delegations run out once a second, and are then asked for anew.
        assert!(made < FILES + FILES / 4, "{made} to make");
        assert!(found < FILES / 2, "{found} to find");
        assert!(removed < FILES + FILES / 2, "{removed} to remove");
    });
}

fn stats_in(path: &Path, time: Duration) -> u64 {
    let end = Instant::now() + time;
    let mut count = 0;
    while Instant::now() < end {
        assert_eq!(fs::metadata(path).unwrap().len(), 4);
        count += 1;
    }
    count
}

#[test]
fn what_the_kernel_keeps_needs_no_request() {
    on_each_store(|store| {
        let uncached = store.another_mount(false);
        fs::create_dir(store.path("d")).unwrap();
        fs::write(store.path("d/f"), b"four").unwrap();
        let time = Duration::from_millis(300);
        let [with, without] =
            [store.path("d/f"), uncached.path("d/f")].map(|path| stats_in(&path, time));
        println!("stat in 0.3 s: {with} with caching, {without} without");
        assert!(with > 3 * without, "{with} and {without}");
    });
}

#[test]
fn a_mount_that_dies_delays_a_change_by_its_leases_and_no_longer() {
    let Some(store) = Store::mounted(1, 2) else { return };
    fs::write(store.path("f"), b"old").unwrap();
    let other = store.another_mount(true);
    look(&[other.path("f")]);
    // It gives nothing back any more.
    drop(other);
    let start = Instant::now();
    fs::write(store.path("f"), b"new!").unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(fs::metadata(store.path("f")).unwrap().len(), 4);
}

#[test]
fn a_listing_brings_the_attributes_along() {
    on_each_store(|store| {
        let ctx = CallerContext::root();
        let mut other = store.another_mount(true);
        store.fs.mkdir(&ctx, b"/d", 0o755).unwrap();
        let count = 1000;
        for number in 0..count {
            let path = format!("/d/{number}");
            let file =
                store.fs.open_file(&ctx, path.as_bytes(), OpenFlags::creating(), 0o644).unwrap();
            file.write_at(&vec![b'x'; number], 0).unwrap();
            file.close().unwrap();
        }
        store.fs.mkdir(&ctx, b"/d/below", 0o700).unwrap();
        store.fs.link(&ctx, b"/d/7", b"/d/again", false).unwrap();
        // Delegations are granted again on records that have just been changed.
        std::thread::sleep(Duration::from_millis(50));
        let list = |mount: &dyn Fn(&str) -> PathBuf| {
            let mut seen = Vec::new();
            for entry in fs::read_dir(mount("d")).unwrap() {
                let entry = entry.unwrap();
                let meta = entry.metadata().unwrap();
                assert_eq!(meta.ino(), std::os::unix::fs::DirEntryExt::ino(&entry));
                seen.push((entry.file_name().into_string().unwrap(), meta.len(), meta.mode()));
            }
            seen.sort();
            seen
        };
        let measure = |mount: &Mounted| {
            let before = mount.requests();
            let seen = list(&|name| mount.path(name));
            (seen, mount.requests() - before)
        };
        let (mut seen, mut requests) = measure(&other);
        // On a busy machine delegations run out before their records are asked for again: a mount
        // that has seen nothing yet tries again.
        for _ in 0..5 {
            if requests >= count as u64 / 4 {
                other = store.another_mount(true);
                (seen, requests) = measure(&other);
            }
        }
        assert_eq!(seen.len(), count + 2);
        for (name, len, mode) in &seen {
            match name.as_str() {
                "below" => assert_eq!(mode & 0o7777, 0o700),
                "again" => assert_eq!(*len, 7),
                number => assert_eq!(*len, number.parse::<u64>().unwrap()),
            }
        }
        assert!(requests < count as u64 / 4, "{requests} requests for {count} files");
        // And nothing of it is older than the store's state.
        fs::write(store.path("d/3"), b"changed").unwrap();
        fs::remove_file(store.path("d/4")).unwrap();
        assert_eq!(fs::metadata(other.path("d/3")).unwrap().len(), 7);
        assert!(!other.path("d/4").exists());
        assert_eq!(list(&|name| store.path(name)).len(), count + 1);
    });
}

#[test]
fn a_directory_that_others_moved_is_moved_on() {
    on_each_store(|store| {
        let ctx = CallerContext::root();
        for dir in ["a", "b", "c"] {
            fs::create_dir(store.path(dir)).unwrap();
        }
        fs::create_dir(store.path("a/x")).unwrap();
        fs::write(store.path("a/x/file"), b"in it").unwrap();
        let homes = ["a", "b", "c"];
        for round in 0..30 {
            let (home, next) = (homes[round % 3], homes[(round + 1) % 3]);
            // The kernel has it here, with what is in it.
            look(&["x", "x/file"].map(|name| store.path(&format!("{home}/{name}"))));
            let [from, to] = [home, next].map(|dir| format!("/{dir}/x"));
            let flags = samite_fs::RenameFlags::default();
            store.fs.rename(&ctx, from.as_bytes(), to.as_bytes(), flags).unwrap();
            // Back to where the kernel had it, or to the third place: two steps from there.
            let goal = homes[(round + 2 * (round % 2)) % 3];
            let [from, to] = [next, goal].map(|dir| store.path(&format!("{dir}/x")));
            fs::rename(&from, &to).unwrap();
            assert_eq!(fs::read(to.join("file")).unwrap(), b"in it");
            assert!(!from.exists());
            fs::rename(to, store.path(&format!("{next}/x"))).unwrap();
        }
    });
}
