//! What is played: who takes part, with which tokens and programs.

use crate::model::{FIRST, Ground, SECOND, Step, grant_id, token};
use lease_core::{FencingToken, GrantId};

/// The actors of a schedule with their programs; actor 0 is the stale one where there is one.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) tokens: Vec<FencingToken>,
    pub(crate) programs: Vec<Vec<Step>>,
    pub(crate) base: Option<(u64, GrantId)>,
    /// Whether the own mutations meet in one row, so that they can be in one another's way by themselves.
    pub(crate) one_row: bool,
}

impl Scene {
    pub(crate) fn ground(&self, may_fail: bool) -> Ground {
        Ground { tokens: self.tokens.clone(), base: self.base, may_fail }
    }

    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.programs.iter().map(Vec::len).collect()
    }

    pub(crate) fn with_base(mut self) -> Self {
        self.base = Some((1, grant_id(1)));
        self
    }

    pub(crate) fn on_one_row(mut self) -> Self {
        self.one_row = true;
        self
    }

    /// The same with one more step at the end of each program.
    pub(crate) fn with_after(mut self) -> Self {
        for program in &mut self.programs {
            program.push(Step::After);
        }
        self
    }
}

fn scene(name: &'static str, tokens: Vec<FencingToken>, programs: &[&[Step]]) -> Scene {
    let programs = programs.iter().map(|program| program.to_vec()).collect();
    Scene { name, tokens, programs, base: None, one_row: false }
}

/// The stale one's token and the new one's.
fn stale_and_new() -> Vec<FencingToken> {
    vec![token(FIRST, 3, 3), token(FIRST, 7, 7)]
}

use Step::{Admit, Adopt, Again, Begin, BeginAdmit, BeginRead, Commit, Read, RollBack, Seal, Write};

const OLD: &[Step] = &[BeginRead, Admit, Write, Commit];
const NEW: &[Step] = &[BeginAdmit, Write, Again, Commit];
const SEALS: &[Step] = &[BeginAdmit, Commit];

/// Each statement a step of its own.
pub(crate) fn each_statement() -> Scene {
    scene(
        "each statement",
        stale_and_new(),
        &[&[Begin, Read, Admit, Write, Commit], &[Begin, Admit, Write, Again, Commit]],
    )
}

pub(crate) fn both_commit() -> Scene {
    scene("both commit", stale_and_new(), &[OLD, NEW])
}

pub(crate) fn conflict() -> Scene {
    scene("one value of two grants", vec![token(FIRST, 5, 3), token(FIRST, 5, 7)], &[OLD, NEW])
}

pub(crate) fn one_grant() -> Scene {
    scene("one grant twice", vec![token(FIRST, 5, 3), token(FIRST, 5, 3)], &[OLD, NEW])
}

/// Each seals in one call and again in another.
pub(crate) fn both_seal_twice() -> Scene {
    scene("both seal twice", stale_and_new(), &[&[Seal, Seal], &[Seal, Seal]])
}

/// `adopt` beside a writer of the old authority, and one of the new.
pub(crate) fn adopted() -> Vec<Scene> {
    let (of_first, of_second) = (token(FIRST, 3, 3), token(SECOND, 1, 1));
    let adopting = of_second.clone();
    vec![
        scene("adopt, writer of the old", vec![of_first.clone(), adopting.clone()], &[OLD, &[Adopt]]),
        scene("adopt, writer of the new", vec![of_second, adopting.clone()], &[OLD, &[Adopt]]),
        scene(
            "adopt, two writers",
            vec![of_first, token(FIRST, 7, 7), adopting],
            &[OLD, &[BeginAdmit, Write, Commit], &[Adopt]],
        ),
    ]
}

/// Those that every store with transactions plays at each of its isolation levels.
pub(crate) fn all() -> Vec<Scene> {
    let reading: &[Step] = &[BeginRead, Admit, Write, Commit];
    let old_gives_up: &[Step] = &[BeginRead, Admit, Write, RollBack];
    let new_gives_up: &[Step] = &[BeginAdmit, Write, Again, RollBack];
    let mut all = vec![
        each_statement(),
        both_commit().with_base(),
        both_commit().on_one_row(),
        conflict(),
        one_grant(),
        scene("both read first", stale_and_new(), &[OLD, reading]).on_one_row(),
        scene("the stale one rolls back", stale_and_new(), &[old_gives_up, NEW]),
        scene("the new one rolls back", stale_and_new(), &[OLD, new_gives_up]).with_base(),
        scene("conflict, the new one rolls back", vec![token(FIRST, 5, 3), token(FIRST, 5, 7)], &[OLD, new_gives_up]),
        both_seal_twice(),
        scene("seal beside a write", stale_and_new(), &[OLD, SEALS]),
        scene("write beside a seal", stale_and_new(), &[SEALS, NEW]).with_base(),
    ];
    all.extend(adopted());
    all
}
