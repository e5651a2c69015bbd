//! Words and calls that have no place: unfinished work without an issue, and I/O through libc inside other programs.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use super::config::TidyConfig;
use super::sources::SourceFile;

/// Marks of unfinished work; spelled so that this file does not find itself.
const MARKS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
const MACROS: [&str; 2] = ["todo", "unimplemented"];

/// Modules of the standard library that reach libc symbols which the preloaded library hooks.
const HOOKED_MODULES: [&[&str]; 6] = [
    &["std", "fs"],
    &["std", "net"],
    &["std", "process", "Command"],
    &["std", "os", "unix", "net"],
    &["std", "io", "stdout"],
    &["std", "io", "stderr"],
];
/// Parts of those modules that are plain values.
const PLAIN: [&[&str]; 7] = [
    &["std", "net", "AddrParseError"],
    &["std", "net", "IpAddr"],
    &["std", "net", "Ipv4Addr"],
    &["std", "net", "Ipv6Addr"],
    &["std", "net", "SocketAddr"],
    &["std", "net", "SocketAddrV4"],
    &["std", "net", "SocketAddrV6"],
];
const PRINTING: [&str; 5] = ["print", "println", "eprint", "eprintln", "dbg"];

/// All of it. `hooked`: the crates that run inside other programs.
pub fn check(config: &TidyConfig, files: &[SourceFile], hooked: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut used = vec![false; config.std_io.len()];
    for file in files {
        problems.extend(unfinished(file));
        if !file.is_rust() {
            continue;
        }
        // The length check has told of files that do not parse.
        let Ok(parsed) = syn::parse_file(&file.text) else { continue };
        let in_hooked_crate = !file.is_test() && crate_of(&file.path, hooked);
        let mut finder = WordFinder { in_hooked_crate, found: Vec::new() };
        finder.visit_file(&parsed);
        for found in finder.found {
            let allowed = config.std_io.iter().position(|entry| file.path.starts_with(&entry.path));
            match allowed {
                Some(index) if found.io => used[index] = true,
                _ => problems.push(format!("{}:{}: {}", file.path, found.line, found.what)),
            }
        }
    }
    for (entry, _) in config.std_io.iter().zip(&used).filter(|(_, used)| !**used) {
        problems.push(format!("tidy.toml: std_io {} allows nothing (any more)", entry.path));
    }
    problems
}

/// Whether the file belongs to one of `crates`: `crates/LAYER/NOUN/src/…` is `samite-NOUN`.
fn crate_of(path: &str, crates: &BTreeSet<String>) -> bool {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["crates", _, noun, "src", ..] => crates.contains(&format!("samite-{noun}")),
        _ => false,
    }
}

fn unfinished(file: &SourceFile) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for mark in MARKS {
            let Some(at) = line.find(mark) else { continue };
            let rest = &line[at + mark.len()..];
            let numbered = rest.strip_prefix("(#").is_some_and(|rest| {
                rest.split_once(')').is_some_and(|(number, _)| number.parse::<u32>().is_ok())
            });
            if !numbered {
                let path = &file.path;
                problems.push(format!("{path}:{}: {mark} without an issue: {mark}(#N)", index + 1));
            }
        }
    }
    problems
}

struct FoundWord {
    line: usize,
    what: String,
    /// It is about I/O, which `tidy.toml` may allow.
    io: bool,
}

struct WordFinder {
    in_hooked_crate: bool,
    found: Vec<FoundWord>,
}

impl WordFinder {
    fn path(&mut self, line: usize, segments: &[String]) {
        let starts = |module: &&&[&str]| {
            segments.len() >= module.len() && module.iter().zip(segments).all(|(a, b)| a == b)
        };
        if let Some(module) = HOOKED_MODULES.iter().find(starts)
            && !PLAIN.iter().any(|plain| starts(&plain))
            && self.in_hooked_crate
        {
            let what = format!(
                "{} in a crate that the preloaded library links: its libc calls would meet our own hooks; use rustix",
                module.join("::")
            );
            self.found.push(FoundWord { line, what, io: true });
        }
    }

    fn use_tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.use_tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(before, tree);
                }
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                before.push(ident.to_string());
                self.path(ident.span().start().line, before);
                before.pop();
            }
            syn::UseTree::Glob(glob) => {
                self.path(glob.star_token.spans[0].start().line, before);
            }
        }
    }
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
    })
}

impl<'ast> Visit<'ast> for WordFinder {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let before = self.in_hooked_crate;
        self.in_hooked_crate &= !is_test_only(&module.attrs);
        visit::visit_item_mod(self, module);
        self.in_hooked_crate = before;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(first) = path.segments.first() {
            let segments: Vec<_> =
                path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.path(first.ident.span().start().line, &segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(last) = call.path.segments.last() {
            let name = last.ident.to_string();
            let line = last.ident.span().start().line;
            if MACROS.contains(&name.as_str()) {
                self.found.push(FoundWord {
                    line,
                    what: format!("{name}! is unfinished work"),
                    io: false,
                });
            }
            if self.in_hooked_crate && PRINTING.contains(&name.as_str()) {
                let what = format!(
                    "{name}! in a crate that the preloaded library links: it would print into the program's output"
                );
                self.found.push(FoundWord { line, what, io: true });
            }
        }
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::sample as config;
    use super::super::sources::sample;
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        check(&config(""), &[sample(path, text)], &["samite-fs".to_owned()].into())
    }

    #[test]
    fn io_through_libc_is_told_where_the_preload_links() {
        for bad in [
            "use std::fs;",
            "use std::{io, fs::File};",
            "fn f() { std::fs::read(p); }",
            "use std::os::unix::net::UnixStream;",
            "fn f() { println!(); }",
        ] {
            assert_eq!(problems("crates/client/fs/src/a.rs", bad).len(), 1, "{bad}");
            assert_eq!(problems("crates/front/stage/src/a.rs", bad).len(), 0, "{bad}");
            assert_eq!(problems("crates/client/fs/tests/a.rs", bad).len(), 0, "{bad}");
        }
        let plain = "use std::io::Write; use rustix::fs; use std::net::{IpAddr, SocketAddr};";
        assert_eq!(problems("crates/client/fs/src/a.rs", plain).len(), 0);
        assert_eq!(
            problems("crates/client/fs/src/a.rs", "#[cfg(test)] mod tests { use std::fs; }").len(),
            0
        );
    }

    #[test]
    fn a_place_may_be_allowed_with_a_reason() {
        let allowing =
            config("[[std_io]]\npath = 'crates/client/fs/src/a.rs'\nreason = 'node side only'");
        let hooked = ["samite-fs".to_owned()].into();
        let files = [sample("crates/client/fs/src/a.rs", "use std::net::TcpListener;")];
        assert_eq!(check(&allowing, &files, &hooked), Vec::<String>::new());
        assert_eq!(check(&allowing, &[], &hooked).len(), 1);
    }

    #[test]
    fn unfinished_work_needs_an_issue() {
        let mark = MARKS[0];
        assert_eq!(problems("docs/a.md", &format!("{mark}: later")).len(), 1);
        assert_eq!(problems("docs/a.md", &format!("{mark}(#12): later")).len(), 0);
        let call = format!("fn f() {{ {}!() }}", MACROS[0]);
        assert_eq!(problems("crates/front/stage/src/a.rs", &call).len(), 1);
    }
}
