//! `survive`: play the scenes, compare with what is expected, print.

use super::cli::put;
use super::opener::ByUrl;
use super::paint::Paint;
use super::progress::Progress;
use super::render::Pages;
use super::{Failure, layout, signals, survive_table};
use crate::report::{Missing, Report, SCHEMA};
use crate::survival::{Engine, Expected, Outcome, Outcomes, Scene, SurvivalCell, Trouble, scenes};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How many scenes are played at a time.
const AT_ONCE: usize = 3;

/// Options of `survive`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SurviveArgs {
    /// Only the set-ups whose id begins with this, such as `redis/` or `redis/aof-everysec`. Repeatable.
    #[arg(long = "setup", value_name = "PREFIX")]
    setups: Vec<String>,
    /// Only the faults whose id begins with this, such as `power-cut`. Repeatable.
    #[arg(long = "fault", value_name = "PREFIX")]
    faults: Vec<String>,
    /// What is expected, instead of the built-in table.
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
    /// How often each scene is played at least. What is a matter of luck is played more often by itself.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    trials: u32,
    /// Fail (exit status 3) when a scene lacks something here: a server's program, a compiler, the rights of root.
    #[arg(long)]
    require: bool,
    /// List the scenes and play none.
    #[arg(long)]
    list: bool,
    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    pages: Pages,
}

/// Plays the scenes that were asked for and returns the exit status.
pub(crate) fn run(args: &SurviveArgs) -> Result<u8, Failure> {
    for path in args.json.iter().chain(&args.markdown) {
        Failure::unless_writable(path)?;
    }
    args.pages.check()?;
    let expected = expected(args.expected.as_deref())?;
    let chosen = chosen(args)?;
    if args.list {
        put(&list(&chosen));
        return Ok(0);
    }
    let progress = Arc::new(Progress::new());
    let outcomes = play(args, &chosen, &expected, &progress)?;
    let report = report(args, &chosen, outcomes);
    publish(args, &report, &expected, &progress)?;
    Ok(status(&report))
}

fn expected(path: Option<&Path>) -> Result<Expected, Failure> {
    let usage = |name: String| move |reason: String| Failure::Usage(format!("{name}: {reason}"));
    match path {
        None => Expected::built_in().map_err(usage("the built-in survival.toml".to_owned())),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
            Expected::parse(&text, &scenes()).map_err(usage(path.display().to_string()))
        }
    }
}

fn chosen(args: &SurviveArgs) -> Result<Vec<Scene>, Failure> {
    let fits = |prefixes: &[String], id: &str| {
        prefixes.is_empty() || prefixes.iter().any(|prefix| id.starts_with(prefix.as_str()))
    };
    let chosen: Vec<Scene> = scenes()
        .into_iter()
        .filter(|scene| fits(&args.setups, scene.setup) && fits(&args.faults, scene.fault))
        .collect();
    if chosen.is_empty() {
        let itself = super::itself::command();
        return Err(Failure::Usage(format!("no scene fits; `{itself} survive --list` shows them all")));
    }
    Ok(chosen)
}

fn list(scenes: &[Scene]) -> String {
    let mut lines = Vec::new();
    let mut last = "";
    for scene in scenes {
        if scene.setup != last {
            last = scene.setup;
            lines.push(format!("{}: {}", scene.setup, scene.setup_means));
        }
        lines.push(format!("  {:<25} {:<11} {}", scene.fault, scene.backend.name(), scene.fault_means));
    }
    lines.join("\n") + "\n"
}

fn play(
    args: &SurviveArgs,
    scenes: &[Scene],
    expected: &Expected,
    progress: &Arc<Progress>,
) -> Result<Vec<Outcomes>, Failure> {
    let could_not = |what: &str, error: &std::io::Error| Failure::CouldNotRun(format!("{what}: {error}"));
    let files = files().map_err(|e| could_not("cannot make a temporary folder", &e))?;
    let (shown, total) = (Arc::clone(progress), scenes.len());
    let engine = Engine {
        opener: Arc::new(ByUrl),
        folder: files.as_ref().map(|folder| folder.path().to_owned()),
        trials: args.trials,
        at_once: AT_ONCE,
        progress: Arc::new(move |done, scene| shown.at(&format!("{done}/{total} scenes  {scene:?}"))),
    };
    progress.at("starting servers");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(AT_ONCE)
        .enable_all()
        .build()
        .map_err(|e| could_not("cannot start the runtime", &e))?;
    let result = runtime.block_on(signals::until_signal(async {
        tokio::select! {
            outcomes = engine.run(scenes, expected) => outcomes,
            never = progress.keep_showing() => match never {},
        }
    }));
    progress.end();
    // A server that is just being waited for ends with the wait.
    runtime.shutdown_timeout(Duration::from_secs(30));
    result
}

/// A folder for the destinations, in memory where the system has such a place: they are not what fails here. None without `SQLite`.
fn files() -> std::io::Result<Option<tempfile::TempDir>> {
    if !cfg!(feature = "sqlite") {
        return Ok(None);
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix("leasehold-survive-");
    let in_memory = if std::env::var_os("TMPDIR").is_some() { None } else { builder.tempdir_in("/dev/shm").ok() };
    in_memory.map_or_else(|| builder.tempdir(), Ok).map(Some)
}

fn report(args: &SurviveArgs, scenes: &[Scene], outcomes: Vec<Outcomes>) -> Report {
    let mut report = Report { schema: SCHEMA, ..Report::default() };
    for (scene, outcomes) in scenes.iter().zip(outcomes) {
        report.survival.extend(outcomes.cells);
        if let Some(trouble) = outcomes.trouble {
            // What a machine lacks is a note unless it is required; anything else is no reason to be content.
            let required = args.require || !matches!(trouble, Trouble::Missing(_));
            report.missing.push(Missing { backend: format!("{scene:?}"), reason: trouble.to_string(), required });
        }
    }
    report
}

fn publish(args: &SurviveArgs, report: &Report, expected: &Expected, progress: &Progress) -> Result<(), Failure> {
    put(&survive_table::render(report, Paint::for_stdout(), layout::width_of_stdout()));
    put(&survive_table::mismatches(report, expected, Paint::for_stdout()));
    let mut end = vec![format!("\n{} cells in {}", report.survival.len(), progress.elapsed().trim())];
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(report).map_err(|e| Failure::CouldNotRun(e.to_string()))?;
        std::fs::write(path, json + "\n").map_err(|e| Failure::file("write", path, &e))?;
        end.push(format!("report in {}", path.display()));
    }
    if let Some(path) = &args.markdown {
        std::fs::write(path, survive_table::markdown(report)).map_err(|e| Failure::file("write", path, &e))?;
        end.push(format!("tables in {}", path.display()));
    }
    end.extend(args.pages.write(report, &[])?);
    put(&format!("{}\n", end.join("; ")));
    Ok(())
}

/// 1 when something that was played is not what was expected, 3 when something that was asked for was not played.
fn status(report: &Report) -> u8 {
    if report.survival.iter().any(is_mismatch) {
        1
    } else if report.missing.iter().any(|missing| missing.required) {
        3
    } else {
        0
    }
}

/// Whether a cell was played and is not what was expected.
pub(super) fn is_mismatch(cell: &SurvivalCell) -> bool {
    let was_played = cell.trials > 0 || cell.outcome != Outcome::NotTried;
    was_played && !cell.is_expected()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survival::Guarantee;
    use std::collections::BTreeMap;

    fn cell(outcome: Outcome, expected: Option<Outcome>, trials: u32) -> SurvivalCell {
        SurvivalCell {
            setup: "redis/none".into(),
            backend: "redis".into(),
            fault: "kill-restart".into(),
            guarantee: Guarantee::Exclusion,
            outcome,
            expected,
            finding: String::new(),
            trials,
            witness: BTreeMap::new(),
            evidence: BTreeMap::new(),
            timeline: None,
        }
    }

    fn report(cell: SurvivalCell, missing: Option<bool>) -> Report {
        let missing = missing.map(|required| Missing { backend: String::new(), reason: String::new(), required });
        Report { survival: vec![cell], missing: missing.into_iter().collect(), ..Report::default() }
    }

    #[test]
    fn a_difference_in_either_direction_is_red_and_what_was_not_played_is_another_red() {
        let (survives, breaks, not_tried) = (Outcome::Survives, Outcome::Breaks, Outcome::NotTried);
        for (outcome, expected, trials, missing, status) in [
            (survives, Some(survives), 1, None, 0),
            (breaks, Some(breaks), 1, None, 0),
            (breaks, Some(survives), 1, None, 1),
            (survives, Some(breaks), 1, None, 1),
            (survives, None, 1, None, 1),
            (not_tried, Some(survives), 1, None, 1),
            (not_tried, Some(survives), 0, Some(true), 3),
            (not_tried, Some(survives), 0, Some(false), 0),
        ] {
            let report = report(cell(outcome, expected, trials), missing);
            assert_eq!(super::status(&report), status, "{outcome} {expected:?} {trials} {missing:?}");
        }
    }
}
