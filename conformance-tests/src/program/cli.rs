//! The command line.

use super::ask::{AskedBackend, RunArgs, SoakArgs};
use super::render::Pages;
use super::{Failure, USAGE};
use crate::CaseInfo;
use crate::report::Report;
use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The conformance suite of Leasehold: the two-worker test and the lifecycle cases, on real servers, judged against what each
/// backend declares.
///
/// Without a subcommand it runs the cases that are quick, on everything that is compiled in and installed.
#[derive(Debug, Parser)]
#[command(
    name = "lease-conformance",
    version,
    args_conflicts_with_subcommands = true,
    max_term_width = 118,
    after_help = "Exit status: 0 declared equals observed and expected; 1 a broken promise, a control that did not land, or a \
                  verdict that differs from the expected one; 2 only unclaimed guarantees; 3 something that was asked for \
                  could not be run; 64 usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the cases, and the backends that can be run here.
    List,
    /// Run the suite: every case, unless it is told otherwise.
    Run(RunArgs),
    /// Let several workers hold, renew, release and write under random faults, and check their histories together. Exit status as of a run.
    Soak(SoakArgs),
    /// Play server faults in different set-ups and say which guarantee of a lease survives which. Exit status as of a run.
    Survive(super::survive::SurviveArgs),
    /// Say what a case does and what it proves.
    Explain {
        /// The case's id, or the beginning of some.
        case: String,
    },
    /// Print the public failures that the cases stand for, and what keeps each cured, as Markdown.
    Scenarios,
    /// Print a report that an earlier run wrote with `--json`, or write pages and pictures of it.
    Render {
        /// The report.
        report: PathBuf,
        /// In which form it is printed, where no file is asked for.
        #[arg(long, default_value = "terminal")]
        format: Format,
        /// Write the matrix as Markdown.
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
        #[command(flatten)]
        pages: Pages,
    },
    /// Compare the verdicts of two reports. Exit status 1 when they differ.
    Diff {
        /// The earlier report.
        before: PathBuf,
        /// The later report.
        after: PathBuf,
    },
    /// Put the matrix of a report into a README, between its markers.
    Readme {
        /// The README.
        readme: PathBuf,
        /// The report.
        #[arg(long)]
        report: PathBuf,
        /// Change nothing; exit status 1 when the README is not in step with the report.
        #[arg(long)]
        check: bool,
    },
    /// Be a worker of the two-worker test. The program starts these itself.
    #[command(hide = true)]
    Worker,
    /// Write to a file without committing, and wait to be killed. The program starts these itself.
    #[command(hide = true)]
    WriteAndWait { url: String },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Terminal,
    Markdown,
}

/// Does what the arguments say and returns the exit status.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> Result<u8, Failure> {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version arrive here as well, for standard output.
            let is_answer = !error.use_stderr();
            drop(error.print());
            return Ok(if is_answer { 0 } else { USAGE });
        }
    };
    match cli.command {
        None => {
            let mut args = cli.run;
            args.quick = args.cases.is_empty();
            super::run::run(&args)
        }
        Some(Command::Run(args)) => super::run::run(&args),
        Some(Command::Soak(args)) => super::soak::run(&args),
        Some(Command::Survive(args)) => super::survive::run(&args),
        Some(Command::List) => {
            list();
            Ok(0)
        }
        Some(Command::Explain { case }) => explain(&case),
        Some(Command::Scenarios) => {
            put(&super::scenarios::markdown(&super::scenarios::scenarios()?));
            Ok(0)
        }
        Some(Command::Render { report, format, markdown, pages }) => {
            render(&report, format, markdown.as_deref(), &pages)
        }
        Some(Command::Diff { before, after }) => Ok(super::diff::print(&load(&before)?, &load(&after)?)),
        Some(Command::Readme { readme, report, check }) => super::readme::run(&readme, &load(&report)?, check),
        Some(Command::Worker) => super::opener::work(),
        Some(Command::WriteAndWait { url }) => super::stores::write_and_wait(&url),
    }
}

fn list() {
    put("Cases:\n");
    for case in crate::cases() {
        put(&format!("  {:<52} {}\n", case.id, case.title));
    }
    put("\nBackends:\n");
    for backend in super::Backend::ALL {
        let state = AskedBackend::by_name(backend).missing().unwrap_or_else(|| "ready".to_owned());
        put(&format!("  {:<12} {state}\n", backend.name()));
    }
}

/// The cases whose id begins with `prefix`; none is an error.
pub(crate) fn cases_of(prefix: &str) -> Result<Vec<&'static CaseInfo>, Failure> {
    let found: Vec<_> = crate::cases().iter().filter(|case| case.id.starts_with(prefix)).collect();
    if found.is_empty() {
        let itself = super::itself::command();
        return Err(Failure::Usage(format!("no case begins with `{prefix}`; `{itself} list` shows them all")));
    }
    Ok(found)
}

fn explain(prefix: &str) -> Result<u8, Failure> {
    for case in cases_of(prefix)? {
        let rule = super::matrix::rule_text(case.rule);
        let scenarios = super::scenarios::of_case(case.id)?;
        let apart = if scenarios.is_empty() { "" } else { "\n" };
        put(&format!("{}\n  {}\n  {rule}\n\n{}\n\n{scenarios}{apart}", case.id, case.title, case.explain));
    }
    Ok(0)
}

fn render(report: &Path, format: Format, markdown: Option<&Path>, pages: &Pages) -> Result<u8, Failure> {
    if let Some(path) = markdown {
        Failure::unless_writable(path)?;
    }
    pages.check()?;
    let report = load(report)?;
    let mut written = Vec::new();
    if let Some(path) = markdown {
        std::fs::write(path, super::markdown::render(&report)).map_err(|e| Failure::file("write", path, &e))?;
        written.push(format!("matrix in {}", path.display()));
    }
    written.extend(pages.write(&report, &[])?);
    if !written.is_empty() {
        put(&format!("{}\n", written.join("; ")));
        return Ok(0);
    }
    match format {
        Format::Terminal => {
            let (paint, width) = (super::paint::Paint::for_stdout(), super::layout::width_of_stdout());
            if !report.cells.is_empty() || report.survival.is_empty() {
                put(&super::terminal::render(&report, &[], paint, width));
            }
            if !report.survival.is_empty() {
                put(&super::survive_table::render(&report, paint, width));
            }
        }
        Format::Markdown => put(&super::markdown::render(&report)),
    }
    Ok(0)
}

fn load(path: &Path) -> Result<Report, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|e| Failure::Usage(format!("{} is no report of this suite: {e}", path.display())))?;
    if report.schema != crate::report::SCHEMA {
        return Err(Failure::Usage(format!(
            "{} has schema {}, this program reads {}",
            path.display(),
            report.schema,
            crate::report::SCHEMA
        )));
    }
    Ok(report)
}

/// Writes to standard output; nobody may be reading any more, which is no failure of the suite.
pub(crate) fn put(text: &str) {
    drop(std::io::stdout().write_all(text.as_bytes()));
}
