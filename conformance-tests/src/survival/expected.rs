//! What is expected of each scene, committed before the run: a difference in either direction is red.

use super::cell::{Guarantee, Outcome};
use super::scene::Scene;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// What this workspace expects of its own backends.
const BUILT_IN: &str = include_str!("../../survival.toml");

/// One entry for each set-up and fault.
#[derive(Clone, Debug, Default)]
pub struct Expected(Vec<Entry>);

/// What is expected of one fault in one set-up, whatever the backend.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    setup: String,
    fault: String,
    /// Of which server this is expected, where it depends on its version; then there is an entry for each.
    #[serde(default)]
    which: Option<Which>,
    /// Where what happens is a matter of luck: how often it is tried until it is seen.
    #[serde(default = "once")]
    tries: u32,
    #[serde(default)]
    survives: Vec<Guarantee>,
    #[serde(default)]
    noticed: BTreeMap<Guarantee, String>,
    #[serde(default)]
    breaks: BTreeMap<Guarantee, String>,
    #[serde(default)]
    not_tried: BTreeMap<Guarantee, String>,
}

/// A property of the installed server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::enum_variant_names, reason = "each says of which server it is; etcd is the first")]
enum Which {
    /// A leader that was followed ends leases by its own count.
    EtcdEndsLiveLeases,
    /// It asks the others first.
    EtcdAsksFirst,
    /// The wall clock decides whether it is looked for leases that are over.
    EtcdQueuesByWallClock,
    /// A clock that does not jump does.
    EtcdQueuesBySteadyClock,
}

impl Which {
    fn is_installed(self) -> bool {
        match self {
            Self::EtcdEndsLiveLeases => super::etcd::ends_live_leases(),
            Self::EtcdAsksFirst => !super::etcd::ends_live_leases(),
            Self::EtcdQueuesByWallClock => super::etcd::queues_by_wall_clock(),
            Self::EtcdQueuesBySteadyClock => !super::etcd::queues_by_wall_clock(),
        }
    }
}

fn once() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    scene: Vec<Entry>,
}

impl Expected {
    /// The built-in table.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn built_in() -> Result<Self, String> {
        Self::parse(BUILT_IN, &super::scenes())
    }

    /// Reads a table for these scenes.
    ///
    /// # Errors
    /// When it is no table, names a scene that there is not, twice the same one, or not each guarantee once, with a reason where it does
    /// not survive.
    pub fn parse(text: &str, scenes: &[Scene]) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let known: BTreeSet<(&str, &str)> = scenes.iter().map(|scene| (scene.setup, scene.fault)).collect();
        let mut seen = BTreeSet::new();
        for entry in &file.scene {
            let place = (entry.setup.as_str(), entry.fault.as_str());
            if !known.contains(&place) {
                return Err(format!("there is no scene {} × {} (any more): remove it", entry.setup, entry.fault));
            }
            if !seen.insert((place, entry.which)) {
                return Err(format!("two entries for {} × {}", entry.setup, entry.fault));
            }
            entry.check().map_err(|why| format!("{} × {}: {why}", entry.setup, entry.fault))?;
        }
        if let Some(((setup, fault), _)) =
            seen.iter().find(|(place, which)| which.is_some() && seen.contains(&(*place, None)))
        {
            return Err(format!("two entries for {setup} × {fault}, one of them whichever server there is"));
        }
        let is_meant = |entry: &Entry| entry.which.is_none_or(Which::is_installed);
        let (scenes, _): (Vec<Entry>, Vec<Entry>) = file.scene.into_iter().partition(is_meant);
        Ok(Self(scenes))
    }

    /// What is expected of a scene; nothing where there is no entry.
    #[must_use]
    pub fn of(&self, scene: &Scene) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.setup == scene.setup && entry.fault == scene.fault)
    }
}

impl Entry {
    /// The outcome of each guarantee. That of the control goes without saying.
    #[must_use]
    pub fn outcomes(&self) -> BTreeMap<Guarantee, Outcome> {
        let with = |outcome| move |guarantee: &Guarantee| (*guarantee, outcome);
        std::iter::once((Guarantee::NoGuard, Outcome::Breaks))
            .chain(self.survives.iter().map(with(Outcome::Survives)))
            .chain(self.noticed.keys().map(with(Outcome::Noticed)))
            .chain(self.breaks.keys().map(with(Outcome::Breaks)))
            .chain(self.not_tried.keys().map(with(Outcome::NotTried)))
            .collect()
    }

    /// How often the scene is played at most until it shows that.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.tries.max(1)
    }

    /// Why a guarantee does not survive.
    #[must_use]
    pub fn reason(&self, guarantee: Guarantee) -> Option<&str> {
        [&self.noticed, &self.breaks, &self.not_tried]
            .into_iter()
            .find_map(|reasons| reasons.get(&guarantee))
            .map(String::as_str)
    }

    fn check(&self) -> Result<(), String> {
        let lists = [&self.noticed, &self.breaks, &self.not_tried];
        let named: Vec<Guarantee> =
            self.survives.iter().chain(lists.iter().flat_map(|list| list.keys())).copied().collect();
        for guarantee in Guarantee::ALL {
            let count = named.iter().filter(|other| **other == guarantee).count();
            let goes_without_saying = guarantee == Guarantee::NoGuard;
            match count {
                1 => {}
                0 if goes_without_saying => {}
                0 => return Err(format!("it does not say what becomes of `{guarantee}`")),
                _ => return Err(format!("it says twice what becomes of `{guarantee}`")),
            }
        }
        let without = lists.iter().flat_map(|list| list.iter()).find(|(_, reason)| reason.trim().is_empty());
        without.map_or(Ok(()), |(guarantee, _)| Err(format!("`{guarantee}` has no reason")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"
        [[scene]]
        setup = "redis/none"
        fault = "kill-restart"
        survives = ["granting", "fence-reached", "fence-unreached"]
        noticed.token-order = "new"
        breaks.exclusion = "gone"
        breaks.lease-kept = "gone"
    "#;

    fn parse(text: &str) -> Result<Expected, String> {
        Expected::parse(text, &crate::survival::scenes())
    }

    #[test]
    fn each_guarantee_has_one_outcome_and_the_control_breaks() {
        let expected = parse(ENTRY).unwrap();
        let scenes = crate::survival::scenes();
        let scene = scenes.iter().find(|scene| (scene.setup, scene.fault) == ("redis/none", "kill-restart")).unwrap();
        let outcomes = expected.of(scene).unwrap().outcomes();
        assert_eq!(outcomes.len(), Guarantee::ALL.len());
        assert_eq!(outcomes.get(&Guarantee::NoGuard), Some(&Outcome::Breaks));
        assert_eq!(outcomes.get(&Guarantee::TokenOrder), Some(&Outcome::Noticed));
        assert_eq!(expected.of(scene).unwrap().reason(Guarantee::Exclusion), Some("gone"));
    }

    #[test]
    fn a_table_that_cannot_be_true_is_refused() {
        for (text, says) in [
            (ENTRY.replace("redis/none", "redis/nothing"), "no scene"),
            (format!("{ENTRY}{ENTRY}"), "two entries"),
            (ENTRY.replace("\"granting\", ", ""), "does not say what becomes of `granting`"),
            (ENTRY.replace("\"granting\"", "\"granting\", \"exclusion\""), "twice what becomes of `exclusion`"),
            (ENTRY.replace("\"gone\"", "\" \""), "has no reason"),
            (ENTRY.replace("granting", "grunting"), "unknown variant"),
        ] {
            let message = parse(&text).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn the_built_in_table_is_sound_and_complete() {
        let expected = Expected::built_in().unwrap();
        let missing: Vec<_> = crate::survival::scenes()
            .into_iter()
            .filter(|scene| expected.of(scene).is_none())
            .map(|scene| format!("{scene:?}"))
            .collect();
        assert_eq!(missing, Vec::<String>::new(), "scenes of which nothing is expected");
    }
}
