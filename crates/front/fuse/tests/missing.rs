//! A mount that knows all names of a directory tells without asking that there is no such name.
//! When a client makes one, by whatever call, it is there for the next call.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Mounted, Store, on_each_store};
use samite_fs::{CallerContext, NAME_LEN_MAX, OpenFlags};

/// Names that are looked up in vain before others make one.
const LOOKS: u32 = 24;

/// The calls that make a name, and how they are named.
type Maker<'m> = (&'m str, &'m dyn Fn(&str));

fn exists(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// A mount with a directory in which it knows all names.
struct Knowing<'m> {
    mount: &'m Mounted,
    directory: &'static str,
    /// Names that it has made, and as many that it never makes.
    count: u32,
}

impl<'m> Knowing<'m> {
    fn new(mount: &'m Mounted, directory: &'static str) -> Self {
        Self { mount, directory, count: 0 }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.mount.path(&format!("{}/{name}", self.directory))
    }

    /// Makes files until names that are missing cost no request.
    fn know(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            self.count += 1;
            let made = self.path(&format!("own{}", self.count));
            drop(File::create_new(&made).unwrap());
            let before = self.mount.requests();
            let is_known = (0..LOOKS).all(|look| {
                assert!(!exists(&self.path(&format!("none{}.{look}", self.count))));
                self.mount.requests() == before
            });
            fs::remove_file(&made).unwrap();
            assert!(!exists(&made));
            if is_known {
                return;
            }
            assert!(Instant::now() < end, "names are never known");
        }
    }
}

#[test]
fn what_others_make_in_whatever_way_is_there_at_once() {
    on_each_store(|store| {
        let (here, there) = (store.another_mount(true), store.another_mount(true));
        let ctx = CallerContext::root();
        for name in ["d", "e"] {
            fs::create_dir(there.path(name)).unwrap();
        }
        let mut knowing = Knowing::new(&here, "d");
        let makers: [Maker<'_>; 8] = [
            ("file", &|name| fs::write(there.path(name), b"x").unwrap()),
            ("directory", &|name| fs::create_dir(there.path(name)).unwrap()),
            ("symbolic link", &|name| symlink("nowhere", there.path(name)).unwrap()),
            ("link", &|name| {
                fs::write(there.path("e/linked"), b"x").unwrap();
                fs::hard_link(there.path("e/linked"), there.path(name)).unwrap();
                fs::remove_file(there.path("e/linked")).unwrap();
            }),
            ("renamed", &|name| {
                fs::write(there.path("e/moved"), b"x").unwrap();
                fs::rename(there.path("e/moved"), there.path(name)).unwrap();
            }),
            ("renamed within", &|name| {
                fs::write(there.path("d/old"), b"x").unwrap();
                fs::rename(there.path("d/old"), there.path(name)).unwrap();
                assert!(!exists(&here.path("d/old")));
            }),
            ("by the library", &|name| {
                let path = format!("/{name}").into_bytes();
                let file = store.fs.open_file(&ctx, &path, OpenFlags::creating(), 0o644).unwrap();
                file.close().unwrap();
            }),
            ("directory by the library", &|name| {
                store.fs.mkdir(&ctx, &format!("/{name}").into_bytes(), 0o755).unwrap();
            }),
        ];
        for (what, make) in makers {
            for round in 0..3 {
                knowing.know();
                let name = format!("d/new{round}");
                assert!(!exists(&here.path(&name)));
                make(&name);
                assert!(exists(&here.path(&name)), "{what}");
                let is_directory = fs::symlink_metadata(there.path(&name)).unwrap().is_dir();
                knowing.know();
                let remove = |path: &Path| match is_directory {
                    true => fs::remove_dir(path).unwrap(),
                    false => fs::remove_file(path).unwrap(),
                };
                remove(&if round == 1 { here.path(&name) } else { there.path(&name) });
                assert!(!exists(&here.path(&name)) && !exists(&there.path(&name)), "{what}");
            }
        }
    });
}

#[test]
fn a_name_that_is_too_long_is_refused_also_where_all_names_are_known() {
    on_each_store(|store| {
        let here = store.another_mount(true);
        fs::create_dir(here.path("d")).unwrap();
        let mut knowing = Knowing::new(&here, "d");
        let (longest, too_long) = ("n".repeat(NAME_LEN_MAX), "n".repeat(NAME_LEN_MAX + 1));
        knowing.know();
        assert!(!exists(&knowing.path(&longest)));
        for result in [
            fs::symlink_metadata(knowing.path(&too_long)).map(drop),
            fs::remove_file(knowing.path(&too_long)),
            fs::write(knowing.path(&too_long), b"x"),
        ] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidFilename);
        }
        fs::write(knowing.path(&longest), b"x").unwrap();
        assert!(exists(&knowing.path(&longest)));
    });
}

#[test]
fn what_a_mount_makes_and_moves_itself_is_there_and_gone() {
    on_each_store(|store| {
        let here = store.another_mount(true);
        for name in ["d", "e"] {
            fs::create_dir(here.path(name)).unwrap();
        }
        let (mut knowing, mut other) = (Knowing::new(&here, "d"), Knowing::new(&here, "e"));
        for round in 0..6 {
            knowing.know();
            other.know();
            let [a, b, out] = ["d/a", "d/b", "e/out"].map(|name| here.path(name));
            fs::write(&a, b"x").unwrap();
            fs::rename(&a, &b).unwrap();
            assert!(!exists(&a) && exists(&b));
            fs::rename(&b, &out).unwrap();
            assert!(!exists(&b) && exists(&out));
            fs::hard_link(&out, &a).unwrap();
            fs::rename(&out, &b).unwrap();
            assert!(exists(&a) && exists(&b) && !exists(&out));
            fs::remove_file(&a).unwrap();
            assert!(File::create_new(&b).is_err() && exists(&b) && !exists(&a));
            fs::remove_file(&b).unwrap();
            assert!(!exists(&b) && fs::remove_file(&b).is_err());
            // Names that are removed by handle, and in a directory that goes and comes again.
            fs::create_dir(&a).unwrap();
            fs::write(a.join("below"), b"").unwrap();
            fs::remove_dir_all(&a).unwrap();
            assert!(!exists(&a));
            fs::create_dir(&a).unwrap();
            assert!(exists(&a) && !exists(&a.join("below")), "round {round}");
            fs::remove_dir(&a).unwrap();
        }
    });
}

#[test]
fn a_directory_that_others_replace_has_the_names_of_the_new_one() {
    on_each_store(|store| {
        let (here, there) = (store.another_mount(true), store.another_mount(true));
        for round in 0..4 {
            fs::create_dir(there.path("d")).unwrap();
            Knowing::new(&here, "d").know();
            assert!(!exists(&here.path("d/f")));
            if round % 2 == 0 {
                fs::remove_dir(there.path("d")).unwrap();
                fs::create_dir(there.path("d")).unwrap();
                fs::write(there.path("d/f"), b"x").unwrap();
            } else {
                fs::create_dir(there.path("new")).unwrap();
                fs::write(there.path("new/f"), b"x").unwrap();
                fs::rename(there.path("new"), there.path("d")).unwrap();
            }
            assert!(exists(&here.path("d/f")));
            fs::remove_dir_all(here.path("d")).unwrap();
        }
    });
}

#[test]
fn others_names_are_seen_while_both_make_some() {
    const NAMES: u32 = 300;
    on_each_store(|store| {
        let (here, there) = (store.another_mount(true), store.another_mount(true));
        fs::create_dir(here.path("d")).unwrap();
        let mut knowing = Knowing::new(&here, "d");
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let there = &there;
            scope.spawn(move || {
                for number in 0..NAMES {
                    drop(File::create_new(there.path(&format!("d/new{number}"))).unwrap());
                    tell.send(number).unwrap();
                    // Now and then it leaves the time that it takes to grant a delegation anew.
                    let pause = if number % 20 == 0 { 40 } else { 0 };
                    std::thread::sleep(Duration::from_millis(pause));
                }
            });
            let mut number = 0;
            while number < NAMES {
                assert!(!exists(&knowing.path("none")));
                exists(&knowing.path(&format!("new{}", number + 1)));
                while let Ok(made) = told.try_recv() {
                    assert!(exists(&knowing.path(&format!("new{made}"))), "{made}");
                    number = made + 1;
                }
                knowing.count += 1;
                drop(File::create_new(knowing.path(&format!("own{}", knowing.count))).unwrap());
            }
        });
        let listed = fs::read_dir(here.path("d")).unwrap().count() as u32;
        assert_eq!(listed, NAMES + knowing.count);
        (0..NAMES).for_each(|number| assert!(exists(&knowing.path(&format!("new{number}")))));
    });
}

#[test]
fn who_dies_knowing_all_names_delays_others_by_its_leases_and_no_longer() {
    let Some(store) = Store::mounted(1, 2) else { return };
    fs::create_dir(store.path("d")).unwrap();
    let other = store.another_mount(true);
    Knowing::new(&other, "d").know();
    // It gives nothing back any more.
    drop(other);
    let start = Instant::now();
    fs::write(store.path("d/new"), b"x").unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(exists(&store.path("d/new")));
}

#[test]
fn a_directory_with_too_many_names_is_asked_about() {
    const NAMES: usize = 5000;
    let Some(store) = Store::mounted(1, 2) else { return };
    let ctx = CallerContext::root();
    store.fs.mkdir(&ctx, "/d", 0o755).unwrap();
    let paths: Vec<String> = (0..NAMES).map(|number| format!("/d/old{number}")).collect();
    for path in &paths {
        store.fs.mknod(&ctx, path.as_str(), 0o644, 0).unwrap();
    }
    let here = store.another_mount(true);
    for number in 0..20 {
        assert!(exists(&here.path(&format!("d/old{number}"))));
        assert!(!exists(&here.path(&format!("d/none{number}"))));
        drop(File::create_new(here.path(&format!("d/own{number}"))).unwrap());
    }
    assert!(paths.iter().all(|path| exists(&here.path(&path[1..]))));
}
