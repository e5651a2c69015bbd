//! `cargo xtask layers`: the layer graph in ARCHITECTURE.md, made of `tidy.toml` and `cargo metadata`.

use std::fmt::Write as _;
use std::path::Path;

use crate::tidy::{CrateUse, TidyConfig, WorkspaceMetadata};

/// The page that shows the graph.
pub const PAGE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- layers: begin, by cargo xtask layers -->";
const END: &str = "<!-- layers: end -->";
/// Longest line of the graph.
const LINE_MAX: usize = 96;

/// Writes the graph into the page.
pub fn run(root: &Path) -> Result<String, Vec<String>> {
    write(root).map_err(|problem| vec![problem])
}

fn write(root: &Path) -> Result<String, String> {
    let config = TidyConfig::load(&root.join("tidy.toml"))?;
    let graph = graph(&config, &WorkspaceMetadata::load(root)?);
    let path = root.join(PAGE);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("read {PAGE}: {error}"))?;
    let (before, _, after) = split(&text).ok_or_else(no_marks)?;
    let text = format!("{before}{BEGIN}\n{graph}{END}{after}");
    std::fs::write(&path, text).map_err(|error| format!("write {PAGE}: {error}"))?;
    Ok(format!("layers: {PAGE} has the graph"))
}

/// A problem, if the page shows another graph than there is.
pub fn check(config: &TidyConfig, metadata: &WorkspaceMetadata, page: &str) -> Option<String> {
    let Some((_, shown, _)) = split(page) else { return Some(no_marks()) };
    let is_right = shown.trim() == graph(config, metadata).trim();
    (!is_right).then(|| format!("{PAGE}: the layer graph is old; cargo xtask layers writes it"))
}

fn no_marks() -> String {
    format!("{PAGE}: no place for the layer graph, between {BEGIN} and {END}")
}

fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (shown, after) = rest.split_once(END)?;
    Some((before, shown, after))
}

/// Each layer, highest first: its crates, and those that each of them uses.
fn graph(config: &TidyConfig, metadata: &WorkspaceMetadata) -> String {
    let short = |name: &str| name.strip_prefix("samite-").unwrap_or(name).to_owned();
    let mut text = String::from("```text\n");
    let indent = config.layers.iter().map(|layer| layer.folder.len()).max().unwrap_or_default() + 1;
    for layer in config.layers.iter().rev() {
        let mut line = format!("{:<indent$}", layer.folder);
        let crates: Vec<_> =
            metadata.folders.iter().filter(|(_, at)| **at == layer.folder).collect();
        for (index, (krate, _)) in crates.iter().enumerate() {
            let uses = metadata.members.get(*krate).into_iter().flatten();
            let uses = uses.filter(|(name, kind)| {
                *kind == CrateUse::Normal && metadata.members.contains_key(name)
            });
            let uses: Vec<_> = uses.map(|(name, _)| short(name)).collect();
            let arrow = if uses.is_empty() { String::new() } else { " → ".to_owned() };
            let end = if index + 1 < crates.len() { "  ·" } else { "" };
            let part = format!(" {}{arrow}{}{end}", short(krate), uses.join(" "));
            let (room, len) = (LINE_MAX - line.chars().count(), part.chars().count());
            if len <= room {
                line.push_str(&part);
            } else if indent + len <= LINE_MAX {
                let _ = writeln!(text, "{line}");
                line = " ".repeat(indent) + &part;
            } else {
                push_wrapped(&mut text, &mut line, &part, indent);
            }
        }
        let _ = writeln!(text, "{line}");
    }
    text.push_str("```\n");
    text
}

/// Adds a crate that is longer than a line, word by word.
fn push_wrapped(text: &mut String, line: &mut String, part: &str, indent: usize) {
    for word in part.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > LINE_MAX {
            let _ = writeln!(text, "{line}");
            *line = " ".repeat(indent + 2);
        }
        line.push(' ');
        line.push_str(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sample_config;

    #[test]
    fn a_crate_that_uses_many_is_wrapped() {
        let (mut text, mut line) = (String::new(), "node    ".to_owned());
        let part = format!(" node → {}", "another ".repeat(20));
        push_wrapped(&mut text, &mut line, &part, 8);
        let all = format!("{text}{line}");
        assert!(all.starts_with("node     node → another another"), "{all}");
        assert_eq!(all.matches("another").count(), 20);
        assert!(all.lines().all(|line| line.chars().count() <= LINE_MAX), "{all}");
        assert!(all.lines().skip(1).all(|line| line.starts_with("           another")), "{all}");
    }

    #[test]
    fn a_page_with_another_graph_is_told() {
        let config = sample_config("");
        let mut metadata = WorkspaceMetadata::default();
        let top = [("low".to_owned(), CrateUse::Normal), ("kit".to_owned(), CrateUse::Dev)];
        metadata.members.insert("top".into(), top.into_iter().collect());
        for (name, folder) in
            [("top", "front"), ("low", "base"), ("beside", "base"), ("kit", "test")]
        {
            metadata.members.entry(name.into()).or_default();
            metadata.folders.insert(name.into(), folder.into());
        }
        let graph = graph(&config, &metadata);
        assert!(graph.contains("test   kit\nfront  top → low\nbase   beside  · low\n"), "{graph}");
        let page = |graph: &str| format!("# Page\n{BEGIN}\n{graph}{END}\n");
        assert_eq!(check(&config, &metadata, &page(&graph)), None);
        assert!(check(&config, &metadata, &page("")).is_some());
        assert!(check(&config, &metadata, "# Page\n").is_some());
    }
}
