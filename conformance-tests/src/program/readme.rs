//! The tables in the README, in step with the suite.

use super::Failure;
use super::cli::put;
use crate::report::Report;
use std::path::Path;

/// The part between `<!-- matrix:begin -->` and `<!-- matrix:end -->`: of a run.
const MATRIX: &str = "matrix";
/// The part between `<!-- survival:begin -->` and `<!-- survival:end -->`: of `survive`.
const SURVIVAL: &str = "survival";

/// Writes the report's tables between their markers of the README, or only checks them.
pub(crate) fn run(path: &Path, report: &Report, check: bool) -> Result<u8, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    let mut wanted = text.clone();
    for (part, table) in parts(report) {
        wanted = with_part(&wanted, part, &table)
            .map_err(|reason| Failure::Usage(format!("{}: {reason}", path.display())))?;
    }
    if wanted == text {
        put("the README is in step with the report\n");
        return Ok(0);
    }
    if check {
        return Err(Failure::Differs(format!(
            "what {} shows is not that of the report; run the same command without --check",
            path.display()
        )));
    }
    std::fs::write(path, wanted).map_err(|e| Failure::file("write", path, &e))?;
    put("the report was put into the README\n");
    Ok(0)
}

/// What the report has for the README. One of `survive` has no matrix.
fn parts(report: &Report) -> Vec<(&'static str, String)> {
    let mut parts = Vec::new();
    if !report.cells.is_empty() || report.survival.is_empty() {
        parts.push((MATRIX, super::markdown::render(report)));
    }
    if !report.survival.is_empty() {
        parts.push((SURVIVAL, super::survive_table::markdown(report)));
    }
    parts
}

fn with_part(text: &str, part: &str, table: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- {part}:begin -->"), format!("<!-- {part}:end -->"));
    let advice = || format!("put a line `{begin}` and, below it, a line `{end}` where the {part} goes, once");
    let (before, rest) = text.split_once(&begin).ok_or_else(advice)?;
    let (_, after) = rest.split_once(&end).ok_or_else(advice)?;
    if after.contains(&begin) || after.contains(&end) {
        return Err(advice());
    }
    Ok(format!("{before}{begin}\n{}\n{end}{after}", table.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text =
            "a\n<!-- matrix:begin -->\nold\n<!-- matrix:end -->\nb\n<!-- survival:begin -->\n<!-- survival:end -->\n";
        let new = with_part(text, MATRIX, "| x |\n").unwrap();
        assert_eq!(new, text.replace("old", "| x |"));
        assert_eq!(with_part(&new, MATRIX, "| x |\n").unwrap(), new, "in step");
        let both = with_part(&new, SURVIVAL, "| y |\n").unwrap();
        assert!(
            both.contains("begin -->\n| x |\n<!-- matrix:end") && both.contains("begin -->\n| y |\n<!-- survival:end")
        );
        assert!(with_part("no markers", MATRIX, "x").is_err());
        assert!(with_part(&format!("{text}{text}"), MATRIX, "x").is_err(), "twice");
    }

    #[test]
    fn a_report_of_faults_leaves_the_matrix_alone() {
        let names = |report: &Report| parts(report).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&Report::default()), [MATRIX]);
        let text = r#"{"schema":1,"seed":0,"backends":[],"cells":[],"survival":[{"setup":"a/b","backend":"redis",
            "fault":"f","guarantee":"exclusion","outcome":"survives","finding":"","trials":1}]}"#;
        assert_eq!(names(&serde_json::from_str(text).unwrap()), [SURVIVAL]);
    }
}
