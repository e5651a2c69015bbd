//! `tidy.toml`: the layer table, and what is allowed with a reason.

use std::path::Path;

use serde::Deserialize;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TidyConfig {
    pub limits: LengthLimits,
    pub preload: PreloadCrate,
    #[serde(rename = "layer")]
    pub layers: Vec<CrateLayer>,
    #[serde(default, rename = "arrow")]
    pub arrows: Vec<AllowedArrow>,
    #[serde(default, rename = "ban")]
    pub bans: Vec<BannedPackage>,
    #[serde(default, rename = "long_file")]
    pub long_files: Vec<LongFile>,
    #[serde(default, rename = "long_function")]
    pub long_functions: Vec<LongFunction>,
    #[serde(default, rename = "std_io")]
    pub std_io: Vec<StdIo>,
    #[serde(default)]
    pub names: Names,
    #[serde(default, rename = "same_name")]
    pub same_names: Vec<SameName>,
    #[serde(default, rename = "private_word")]
    pub private_words: Vec<PrivateWord>,
    #[serde(default, rename = "word_use")]
    pub word_uses: Vec<WordUse>,
    #[serde(default)]
    pub circles: Circles,
}

/// What `cargo xtask measure` may find at most.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    /// Types whose name is one word, in percent of their definitions.
    pub one_word_percent_max: f64,
    /// Names that several types have, in percent of names.
    pub repeated_percent_max: f64,
}

impl Default for Names {
    fn default() -> Self {
        Self { one_word_percent_max: 100.0, repeated_percent_max: 100.0 }
    }
}

/// A name that several types may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SameName {
    pub name: String,
    pub reason: String,
}

/// A word that is not to be used in names; `instead` is what the field says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateWord {
    pub word: String,
    pub instead: String,
}

/// A private word that means something else in this name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordUse {
    /// The type, function or module.
    pub name: String,
    pub reason: String,
}

/// Most modules that an import circle of a crate may have, by the crate's folder; six where none is said.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Circles(pub std::collections::BTreeMap<String, usize>);

/// Lengths that need no reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthLimits {
    pub file_lines: usize,
    pub function_lines: usize,
}

/// The crate that runs inside other programs. It, and all that it links, performs no I/O through libc.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreloadCrate {
    #[serde(rename = "crate")]
    pub krate: String,
}

/// One layer: the crates of a folder. They use each other and those of the layers before it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrateLayer {
    /// The folder in `crates`, or that of a crate beside it.
    pub folder: String,
    /// Holds tools of the tests: any crate may use them as a dev-dependency.
    #[serde(default)]
    pub test: bool,
}

/// A dependency that does not point down, allowed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedArrow {
    pub from: String,
    pub to: String,
    pub reason: String,
}

/// A dependency that is not to be had.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BannedPackage {
    pub name: String,
    pub reason: String,
    /// Only as a direct dependency of ours; others may bring it in.
    #[serde(default)]
    pub direct: bool,
}

/// A file that may be long, up to a length.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongFile {
    pub path: String,
    pub lines_max: usize,
    pub reason: String,
}

/// A function that may be long, up to a length.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongFunction {
    pub path: String,
    pub name: String,
    pub lines_max: usize,
    pub reason: String,
}

/// A file, or a directory of files, that may use the standard library's I/O although the preloaded library links its crate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdIo {
    pub path: String,
    pub reason: String,
}

impl TidyConfig {
    /// Reads the file; every exception must say why.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("read {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let reasons = (config.arrows.iter().map(|entry| (&entry.from, &entry.reason)))
            .chain(config.bans.iter().map(|entry| (&entry.name, &entry.reason)))
            .chain(config.long_files.iter().map(|entry| (&entry.path, &entry.reason)))
            .chain(config.long_functions.iter().map(|entry| (&entry.path, &entry.reason)))
            .chain(config.std_io.iter().map(|entry| (&entry.path, &entry.reason)))
            .chain(config.same_names.iter().map(|entry| (&entry.name, &entry.reason)))
            .chain(config.word_uses.iter().map(|entry| (&entry.name, &entry.reason)));
        for (what, reason) in reasons {
            if reason.trim().len() < 10 {
                return Err(format!("the entry of {what} gives no reason"));
            }
        }
        Ok(config)
    }

    /// The layer of a folder, and its level: 0 is the lowest.
    pub fn layer(&self, folder: &str) -> Option<(usize, &CrateLayer)> {
        self.layers.iter().enumerate().find(|(_, layer)| layer.folder == folder)
    }
}

#[cfg(test)]
pub mod tests {
    use super::TidyConfig;

    /// A configuration for the tests of the checks; `more` goes at its end.
    pub fn sample(more: &str) -> TidyConfig {
        TidyConfig::parse(&format!(
            "limits = {{ file_lines = 10, function_lines = 4 }}
            preload = {{ crate = 'top' }}
            [[layer]]
            folder = 'base'
            [[layer]]
            folder = 'front'
            [[layer]]
            folder = 'test'
            test = true
            {more}"
        ))
        .expect("the sample parses")
    }

    #[test]
    fn an_exception_without_a_reason_is_refused() {
        let text = "limits = { file_lines = 1, function_lines = 1 }
            preload = { crate = 'x' }
            layer = []
            [[long_file]]
            path = 'a.rs'
            lines_max = 5
            reason = ' '";
        assert!(TidyConfig::parse(text).expect_err("refused").contains("a.rs gives no reason"));
    }
}
