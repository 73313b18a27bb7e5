//! `soak`: workers under random faults on each backend, and what their histories show.

use super::ask::SoakArgs;
use super::itself;
use super::paint::{Paint, Tone};
use super::plan::Plan;
use super::progress::Progress;
use super::run::{Job, own_file, provided};
use super::{Failure, cli};
use crate::report::{Cell, Report, Verdict};
use crate::soak::Soak;
use crate::subject::{Place, Subject};
use std::sync::Arc;
use std::time::Duration;

/// Soaks every backend that was asked for and returns the exit status.
pub(crate) fn run(args: &SoakArgs) -> Result<u8, Failure> {
    if let Some(path) = &args.json {
        Failure::unless_writable(path)?;
    }
    let plan = Plan::new(&args.as_run())?;
    let progress = Arc::new(Progress::new());
    let report = provided(&plan, Job::Soak(args), &progress)?;
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report).map_err(|e| Failure::CouldNotRun(e.to_string()))?;
        std::fs::write(path, json + "\n").map_err(|e| Failure::file("write", path, &e))?;
    }
    cli::put(&text(&report, args, Paint::for_stdout()));
    Ok(report.exit_status())
}

/// The soak of one backend. The workers write to the last place: the separate one, where there is one.
pub(super) fn one(
    subject: Arc<dyn Subject>,
    places: &[Arc<dyn Place>],
    seed: u64,
    args: &SoakArgs,
    progress: &Arc<Progress>,
    label: String,
) -> Result<Soak, Failure> {
    // A store that only this process can reach has its destination here as well.
    let place = if subject.worker_url().is_none() { places.first() } else { places.last() };
    let place = place.ok_or_else(|| Failure::CouldNotRun("there is no destination to write to".to_owned()))?;
    let progress = Arc::clone(progress);
    Ok(Soak::new(subject)
        .place(Arc::clone(place))
        .worker_program(own_file()?, ["worker".to_owned()])
        .seed(seed)
        .time(Duration::from_secs(args.seconds))
        .workers(args.workers.into())
        .progress(move |what| progress.at(&format!("{label}  {what}"))))
}

fn text(report: &Report, args: &SoakArgs, paint: Paint) -> String {
    let mut lines = Vec::new();
    for cell in &report.cells {
        let tone = if cell.verdict == Verdict::Kept { Tone::Good } else { Tone::Bad };
        lines.push(format!("\n{}: {}", cell.backend, paint.text(tone, cell.verdict.name())));
        lines.extend(cell.finding.iter().map(|finding| format!("  {finding}")));
        lines.extend(figures(cell));
        lines.push(format!(
            "  repeat: {} soak --backend {} --seconds {} --workers {} --seed {}",
            itself::command(),
            cell.backend,
            args.seconds,
            args.workers,
            report.seed
        ));
    }
    let missing = report.missing.iter();
    lines.extend(missing.map(|missing| format!("\nnot run: {}: {}", missing.backend, missing.reason)));
    lines.join("\n") + "\n"
}

fn figures(cell: &Cell) -> Vec<String> {
    let figures = cell.evidence.iter().filter(|(name, _)| *name != "faults");
    let mut lines: Vec<String> =
        figures.map(|(name, value)| format!("    {}: {}", name.replace('_', " "), plain(value))).collect();
    let faults = cell.evidence.get("faults").and_then(serde_json::Value::as_object);
    let times = |seen: &serde_json::Value| seen.get("times").and_then(serde_json::Value::as_u64).unwrap_or_default();
    let faults = faults.into_iter().flatten();
    lines.extend(faults.map(|(kind, seen)| format!("    fault, {kind}: {} times", times(seen))));
    lines
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}
