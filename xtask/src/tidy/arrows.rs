//! Which crate may use which: arrows between ours point down, and some of others' are not to be had.

use super::config::{BannedPackage, TidyConfig};
use super::metadata::{CrateUse, WorkspaceMetadata};

/// Arrows between the crates of the workspace.
pub fn check(config: &TidyConfig, metadata: &WorkspaceMetadata) -> Vec<String> {
    let mut problems = Vec::new();
    let mut used = vec![false; config.arrows.len()];
    for (from, uses) in &metadata.members {
        let layer = |name: &str| metadata.folders.get(name).and_then(|folder| config.layer(folder));
        let Some((above, upper)) = layer(from) else {
            problems.push(format!("{from}: its folder is no layer of tidy.toml"));
            continue;
        };
        for (to, how) in uses {
            if !metadata.members.contains_key(to) {
                continue;
            }
            let Some((below, lower)) = layer(to) else { continue };
            if below <= above || (lower.test && *how == CrateUse::Dev) {
                continue;
            }
            let allowed =
                config.arrows.iter().position(|arrow| arrow.from == *from && arrow.to == *to);
            match allowed {
                Some(index) => used[index] = true,
                None => problems.push(format!(
                    "{from} ({}) depends on {to} ({}): arrows point down",
                    upper.folder, lower.folder
                )),
            }
        }
    }
    for (arrow, _) in config.arrows.iter().zip(&used).filter(|(_, used)| !**used) {
        problems.push(format!(
            "tidy.toml: arrow {} -> {} allows nothing any more",
            arrow.from, arrow.to
        ));
    }
    for layer in &config.layers {
        if !metadata.folders.values().any(|folder| *folder == layer.folder) {
            problems.push(format!("tidy.toml: layer {} has no crate", layer.folder));
        }
    }
    problems
}

/// Dependencies that have a known better replacement.
pub fn check_bans(config: &TidyConfig, metadata: &WorkspaceMetadata) -> Vec<String> {
    let mut problems = Vec::new();
    for ban in &config.bans {
        problems.extend(direct_users(ban, metadata).map(|user| {
            format!("{user}: depends on {}, which is banned: {}", ban.name, ban.reason)
        }));
        if !ban.direct && metadata.packages.contains(&ban.name) {
            problems.push(format!(
                "{} is in the default build and banned: {} (cargo tree -i {})",
                ban.name, ban.reason, ban.name
            ));
        }
    }
    problems
}

fn direct_users<'a>(
    ban: &'a BannedPackage,
    metadata: &'a WorkspaceMetadata,
) -> impl Iterator<Item = &'a String> {
    let uses_it = |uses: &&std::collections::BTreeSet<(String, CrateUse)>| {
        uses.iter().any(|(name, _)| *name == ban.name)
    };
    metadata.members.iter().filter(move |(_, uses)| uses_it(uses)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::sample;
    use super::*;

    fn metadata(arrows: &[(&str, &str, CrateUse)]) -> WorkspaceMetadata {
        let mut metadata = WorkspaceMetadata::default();
        for (name, folder) in
            [("low", "base"), ("beside", "base"), ("top", "front"), ("kit", "test")]
        {
            metadata.members.insert(name.into(), [].into());
            metadata.folders.insert(name.into(), folder.into());
        }
        for (from, to, how) in arrows {
            metadata.members.entry((*from).into()).or_default().insert(((*to).into(), *how));
            metadata.packages.insert((*to).into());
        }
        metadata
    }

    #[test]
    fn arrows_point_down() {
        let config = sample("");
        let down = metadata(&[
            ("top", "low", CrateUse::Normal),
            ("low", "beside", CrateUse::Normal),
            ("low", "kit", CrateUse::Dev),
        ]);
        assert_eq!(check(&config, &down), Vec::<String>::new());
        for bad in [
            ("low", "top", CrateUse::Normal),
            ("low", "top", CrateUse::Dev),
            ("top", "kit", CrateUse::Normal),
        ] {
            assert_eq!(check(&config, &metadata(&[bad])).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn an_arrow_may_be_allowed_and_a_stale_one_is_told() {
        let config = sample("[[arrow]]\nfrom = 'low'\nto = 'top'\nreason = 'because of this'");
        assert_eq!(check(&config, &metadata(&[("low", "top", CrateUse::Normal)])).len(), 0);
        assert!(check(&config, &metadata(&[]))[0].contains("allows nothing"));
    }

    #[test]
    fn a_crate_without_a_layer_is_told() {
        let mut metadata = metadata(&[]);
        metadata.members.insert("new".into(), [].into());
        assert!(check(&sample(""), &metadata)[0].contains("new: its folder is no layer"));
    }

    #[test]
    fn banned_dependencies_are_told() {
        let config = sample("[[ban]]\nname = 'bad'\nreason = 'unmaintained since'");
        assert_eq!(check_bans(&config, &metadata(&[])).len(), 0);
        let problems = check_bans(&config, &metadata(&[("top", "bad", CrateUse::Normal)]));
        assert!(problems[0].contains("unmaintained since"), "{problems:?}");
    }

    #[test]
    fn a_direct_ban_lets_others_bring_it_in() {
        let config = sample("[[ban]]\nname = 'bad'\nreason = 'std has it'\ndirect = true");
        let mut metadata = metadata(&[]);
        metadata.packages.insert("bad".into());
        assert_eq!(check_bans(&config, &metadata).len(), 0);
    }
}
