//! The matrix in the README, in step with the suite.

use super::Failure;
use super::cli::put;
use crate::report::Report;
use std::path::Path;

const BEGIN: &str = "<!-- matrix:begin -->";
const END: &str = "<!-- matrix:end -->";

/// Writes the report's matrix between the markers of the README, or only checks it.
pub(crate) fn run(path: &Path, report: &Report, check: bool) -> Result<u8, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    let wanted = with_matrix(&text, &super::markdown::render(report))
        .map_err(|reason| Failure::Usage(format!("{}: {reason}", path.display())))?;
    if wanted == text {
        put("the README is in step with the report\n");
        return Ok(0);
    }
    if check {
        return Err(Failure::Differs(format!(
            "the matrix in {} is not that of the report; run the same command without --check",
            path.display()
        )));
    }
    std::fs::write(path, wanted).map_err(|e| Failure::file("write", path, &e))?;
    put("the matrix was put into the README\n");
    Ok(0)
}

fn with_matrix(text: &str, matrix: &str) -> Result<String, String> {
    let advice = || format!("put a line `{BEGIN}` and, below it, a line `{END}` where the matrix goes, once");
    let (before, rest) = text.split_once(BEGIN).ok_or_else(advice)?;
    let (_, after) = rest.split_once(END).ok_or_else(advice)?;
    if after.contains(BEGIN) || after.contains(END) {
        return Err(advice());
    }
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", matrix.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = with_matrix(&text, "| x |\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}\n| x |\n{END}\nb\n"));
        assert_eq!(with_matrix(&new, "| x |\n").unwrap(), new, "in step");
        assert!(with_matrix("no markers", "x").is_err());
        assert!(with_matrix(&format!("{text}{text}"), "x").is_err(), "twice");
    }
}
