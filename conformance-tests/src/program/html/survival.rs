//! What survives a server fault: a table for each store, and the evidence of each cell.

use super::entry::{Entry, Tone};
use crate::program::markup::{escaped, push};
use crate::program::survive::is_mismatch;
use crate::survival::{Guarantee, Outcome, SurvivalCell};

/// The cells with what the page says of each.
pub(super) type Entries<'a> = [(&'a SurvivalCell, Entry<'a>)];

/// How an outcome is coloured, and its word: in capitals where it is not the expected one.
pub(super) fn tone(cell: &SurvivalCell) -> Tone {
    match cell.outcome {
        _ if is_mismatch(cell) => Tone::Bad,
        Outcome::Survives => Tone::Good,
        Outcome::Noticed => Tone::Plain,
        Outcome::Breaks => Tone::Note,
        Outcome::NotTried => Tone::None,
    }
}

/// One table for each store: rows are set-ups, backends and faults, columns are guarantees.
pub(super) fn tables(entries: &Entries<'_>) -> String {
    let mut out = String::new();
    let store = |cell: &SurvivalCell| cell.setup.split('/').next().unwrap_or_default().to_owned();
    let mut stores: Vec<String> = Vec::new();
    for (cell, _) in entries {
        if !stores.contains(&store(cell)) {
            stores.push(store(cell));
        }
    }
    for name in stores {
        let here: Vec<&(&SurvivalCell, Entry<'_>)> = entries.iter().filter(|(cell, _)| store(cell) == name).collect();
        let columns: Vec<Guarantee> = Guarantee::ALL
            .into_iter()
            .filter(|column| here.iter().any(|(cell, _)| cell.guarantee == *column))
            .collect();
        push!(
            out,
            "<h3>{}</h3>\n<div class=\"wide\"><table class=\"matrix\"><thead><tr><th>set-up</th><th>fault</th>",
            escaped(&name)
        );
        push!(out, "<th>backend</th>");
        for column in &columns {
            push!(out, "<th>{}</th>", escaped(column.name()));
        }
        out.push_str("</tr></thead><tbody>\n");
        let mut rows: Vec<(&str, &str, &str)> = Vec::new();
        for (cell, _) in &here {
            let row = (cell.setup.as_str(), cell.fault.as_str(), cell.backend.as_str());
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        for (setup, fault, backend) in rows {
            let [setup_text, fault_text, backend_text] = [setup, fault, backend].map(escaped);
            push!(out, "<tr><th scope=\"row\">{setup_text}</th><td>{fault_text}</td><td>{backend_text}</td>");
            for column in &columns {
                let is_it = |cell: &SurvivalCell| {
                    (cell.setup.as_str(), cell.fault.as_str(), cell.backend.as_str(), cell.guarantee)
                        == (setup, fault, backend, *column)
                };
                let links: Vec<String> =
                    here.iter().filter(|(cell, _)| is_it(cell)).map(|(_, entry)| entry.link(&entry.word)).collect();
                push!(out, "<td>{}</td>", links.join(" "));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
    }
    out
}
