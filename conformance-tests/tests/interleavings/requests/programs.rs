//! What the writers do: the programs whose merges are played.

use super::Op::{self, Adopt, Land, Prepare, Read, Seal, Write};
use super::Scene;
use crate::model::{FIRST, SECOND, token};
use lease_core::FencingToken;

pub(super) fn pairs() -> [Vec<FencingToken>; 3] {
    [
        vec![token(FIRST, 3, 3), token(FIRST, 7, 7)],
        vec![token(FIRST, 5, 3), token(FIRST, 5, 7)],
        vec![token(FIRST, 5, 3), token(FIRST, 5, 3)],
    ]
}

pub(super) fn scenes_of(programs: &[&[Op]], tokens: impl IntoIterator<Item = Vec<FencingToken>>) -> Vec<Scene> {
    let programs: Vec<_> = programs.iter().map(|program| program.to_vec()).collect();
    tokens.into_iter().map(|tokens| Scene { tokens, programs: programs.clone() }).collect()
}

/// What each store plays.
pub(super) fn scenes() -> Vec<Scene> {
    let mut all = scenes_of(&[&[Read, Seal, Write, Write], &[Seal, Read, Write, Write]], pairs());
    let adopting = token(SECOND, 1, 1);
    let newer = [token(FIRST, 7, 7), token(SECOND, 2, 2)];
    let tokens = newer.map(|newer| vec![token(FIRST, 3, 3), newer, adopting.clone()]);
    all.extend(scenes_of(&[&[Read, Write, Write], &[Seal, Write], &[Adopt]], tokens));
    all
}

/// The same for the caller's own transaction, prepared by an older read.
pub(super) fn own_scenes() -> Vec<Scene> {
    let mut all = scenes_of(&[&[Prepare, Land, Land], &[Prepare, Land, Write]], pairs());
    let tokens = vec![token(FIRST, 3, 3), token(FIRST, 7, 7), token(SECOND, 1, 1)];
    all.extend(scenes_of(&[&[Prepare, Land], &[Seal, Write], &[Adopt]], [tokens]));
    all
}

/// All programs of three requests for both writers.
pub(super) fn all_programs() -> Vec<Scene> {
    let ops = [Read, Seal, Write];
    let mut programs = Vec::new();
    for a in ops {
        for b in ops {
            programs.extend(ops.map(|c| vec![a, b, c]));
        }
    }
    let both = programs.iter().flat_map(|one| programs.iter().map(|two| [one.as_slice(), two.as_slice()]));
    both.flat_map(|both| scenes_of(&both, pairs())).collect()
}
