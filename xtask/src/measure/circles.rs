//! Import circles: modules of one crate of which each reaches every other by `use`.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::counts;
use super::names::is_for_tests;
use crate::tidy::SourceFile;

/// The largest circle of a crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImportCircle {
    /// Its modules: paths from the crate's root, ordered.
    pub modules: Vec<String>,
    /// How many modules the crate has, without its root.
    pub of: usize,
}

/// For each module of a crate those that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The largest circle of each crate, by the crate's folder.
pub fn circles(files: &[SourceFile]) -> BTreeMap<String, ImportCircle> {
    let mut crates: BTreeMap<&str, Vec<(String, &SourceFile)>> = BTreeMap::new();
    for file in files.iter().filter(|file| counts(file)) {
        if let Some((krate, path)) = file.path.split_once("/src/") {
            crates.entry(krate).or_default().push((module(path), file));
        }
    }
    let of = |modules: Vec<(String, &SourceFile)>| {
        let graph = graph(&modules);
        ImportCircle { modules: largest(&graph), of: graph.len() }
    };
    crates.into_iter().map(|(krate, modules)| (krate.to_owned(), of(modules))).collect()
}

/// The module of a file; empty: the crate's root.
fn module(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if matches!(path, "lib" | "main") { String::new() } else { path.replace('/', "::") }
}

fn graph(modules: &[(String, &SourceFile)]) -> Graph {
    let all: BTreeSet<&str> = modules.iter().map(|(module, _)| module.as_str()).collect();
    let mut graph = Graph::new();
    for (module, file) in modules {
        // What the root takes in is for other crates.
        if module.is_empty() {
            continue;
        }
        let mut finder = UseFinder { here: module, found: BTreeSet::new() };
        if let Ok(parsed) = syn::parse_file(&file.text) {
            finder.visit_file(&parsed);
        }
        let uses = finder.found.iter().filter_map(|path| used(&all, path));
        graph.insert(module.clone(), uses.filter(|used| used != module).collect());
    }
    graph
}

/// The module that a path from the crate's root leads into; `None`: the root itself.
fn used(all: &BTreeSet<&str>, path: &[String]) -> Option<String> {
    let prefixes = (1..=path.len()).rev().map(|len| path[..len].join("::"));
    prefixes.into_iter().find(|prefix| all.contains(prefix.as_str()))
}

/// The modules of the largest circle: those that a module reaches and that reach it.
fn largest(graph: &Graph) -> Vec<String> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (module.as_str(), reached(graph, module))).collect();
    let circle = |module: &&str| -> Vec<String> {
        let others = reach[*module].iter().filter(|other| reach[**other].contains(*module));
        others.map(|other| (*other).to_owned()).collect()
    };
    reach.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

fn reached<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(module) = waiting.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if found.insert(next.as_str()) {
                waiting.push(next);
            }
        }
    }
    found
}

struct UseFinder<'a> {
    here: &'a str,
    found: BTreeSet<Vec<String>>,
}

impl UseFinder<'_> {
    /// Makes a path one from the crate's root.
    fn note(&mut self, path: &[String]) {
        let mut here: Vec<String> = self.here.split("::").map(str::to_owned).collect();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("crate") => (here, rest) = (Vec::new(), &path[1..]),
            Some("self") => rest = &path[1..],
            Some("super") => {
                while rest.first().is_some_and(|first| first == "super") {
                    here.pop();
                    rest = &rest[1..];
                }
            }
            // A module within this one, or another crate: that is no module here.
            _ => {}
        }
        here.extend_from_slice(rest);
        self.found.insert(here);
    }

    fn tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(before, tree));
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                before.push(ident.to_string());
                self.note(before);
                before.pop();
            }
            syn::UseTree::Glob(_) => self.note(before),
        }
    }
}

impl<'ast> Visit<'ast> for UseFinder<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&mut Vec::new(), &item.tree);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // `super` means something else in a module within a file.
        if !is_for_tests(&item.attrs) && item.content.is_none() {
            visit::visit_item_mod(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sample;

    #[test]
    fn the_largest_circle_is_found() {
        let files = [
            sample("crates/a/src/lib.rs", "use crate::one::One;"),
            sample("crates/a/src/one.rs", "use crate::two::{Two, deep::Deep};"),
            sample("crates/a/src/two.rs", "use std::fmt;"),
            sample("crates/a/src/two/deep.rs", "use super::super::one::One; use super::Two;"),
            sample(
                "crates/a/src/three.rs",
                "use crate::Root;\n#[cfg(test)] mod tests { use crate::one; }",
            ),
        ];
        let circles = circles(&files);
        let modules = ["one", "two::deep"].map(String::from).to_vec();
        assert_eq!(circles["crates/a"], ImportCircle { modules, of: 4 });
    }
}
