//! Tables for a terminal: comfy-table lays them out, without borders that only cost room.

use comfy_table::{ContentArrangement, LineStyle, Table, TableStyle};

/// The widest line of a table, where it is not a terminal that is narrower.
pub(crate) const WIDTH: u16 = 118;

/// The width to lay out for on standard output.
pub(crate) fn width_of_stdout() -> u16 {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col);
    // A terminal that does not know its width says 0; one that is narrower than any table wraps by itself.
    if columns == 0 { WIDTH } else { columns.clamp(60, WIDTH) }
}

const RULE: LineStyle = LineStyle::none().fill('─').junction('─');

/// An empty table with a rule above, below, and under its header.
pub(crate) fn table(width: u16) -> Table {
    let style = TableStyle::new().top_border(RULE).header_separator(RULE).bottom_border(RULE);
    let mut table = Table::new();
    table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table
}

/// The table's text, without spaces at the ends of lines.
pub(crate) fn text(table: &Table) -> String {
    let mut out = String::new();
    for line in table.lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The table's text with headings that span several columns, above its header. `bands` has one heading for each column; equal neighbours
/// share one.
pub(crate) fn with_bands(table: &Table, bands: &[&str]) -> String {
    let mut lines: Vec<String> = text(table).lines().map(ToOwned::to_owned).collect();
    let rule = lines.first().cloned().unwrap_or_default();
    let at = usize::from(!rule.is_empty());
    let rows = band_rows(&spans(table, bands));
    let place = at.min(lines.len());
    lines.splice(place..place, rows);
    lines.join("\n") + "\n"
}

/// Each heading with the width that its columns have together.
fn spans<'a>(table: &Table, bands: &[&'a str]) -> Vec<(&'a str, usize)> {
    let mut spans: Vec<(&str, usize)> = Vec::new();
    for ((band, column), content) in bands.iter().zip(table.column_iter()).zip(table.column_max_content_widths()) {
        let width = usize::from(content.saturating_add(column.padding_width()));
        match spans.last_mut() {
            Some((last, total)) if last == band => *total = total.saturating_add(width).saturating_add(SEPARATOR),
            _ => spans.push((band, width.saturating_add(SEPARATOR))),
        }
    }
    spans
}

/// Columns are one space apart, besides their padding.
const SEPARATOR: usize = 1;

/// The headings, each broken so that it stays within its width; as many rows as the tallest needs, set at the bottom.
fn band_rows(spans: &[(&str, usize)]) -> Vec<String> {
    let broken: Vec<(Vec<String>, usize)> =
        spans.iter().map(|(band, width)| (broken(band, width.saturating_sub(2)), *width)).collect();
    let height = broken.iter().map(|(lines, _)| lines.len()).max().unwrap_or_default();
    (0..height)
        .map(|row| {
            let part = |(lines, width): &(Vec<String>, usize)| {
                let above = height.saturating_sub(lines.len());
                let text = row.checked_sub(above).and_then(|line| lines.get(line)).map_or("", String::as_str);
                format!("{text:<width$}")
            };
            broken.iter().map(part).collect::<String>().trim_end().to_owned()
        })
        .collect()
}

/// The text, broken between words so that it fits.
pub(crate) fn wrapped(text: &str, width: u16) -> String {
    broken(text, usize::from(width)).join("\n")
}

fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.len().saturating_add(word.len()) < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_spans_its_columns_and_breaks_within_them() {
        let mut table = table(WIDTH);
        table.set_header(["backend", "x", "same", "other"]).add_row(["redis", "1", "2", "3"]);
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        let text = with_bands(&table, &["", "a b", "wide one", "wide one"]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines.get(1..5).unwrap(),
            ["         a", "         b  wide one", "backend  x  same  other", "────────────────────────"],
            "{text}"
        );
    }
}
