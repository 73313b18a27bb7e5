//! The end: what each scene has shown, side by side.

use crate::euros;
use crate::scenes::{Count, Payment, Scene};
use crate::timeline::{Paint, Tone};

pub(crate) fn print(shown: &[(&Scene, Count)], paint: Paint) {
    let rows: Vec<_> = shown.iter().map(|(scene, books)| row(scene, books)).collect();
    let heads = ["scene", "invoice rows", "charged", "what protected"];
    // The last column may be as long as it is.
    let widths: Vec<_> = (0..3)
        .map(|at| rows.iter().map(|row| row[at].0.chars().count()).chain([heads[at].len()]).max().unwrap_or_default())
        .collect();
    let line = |cells: Vec<String>| cells.join("   ").trim_end().to_owned();
    let wide = |at: usize, text: &str| format!("{text:<width$}", width = widths.get(at).copied().unwrap_or_default());
    println!("\n{}", paint.strong(&line(heads.iter().enumerate().map(|(at, head)| wide(at, head)).collect())));
    for row in rows {
        // The width first: colour has characters too.
        let cells = row.iter().enumerate().map(|(at, (text, tone))| paint.tone(*tone, &wide(at, text)));
        println!("{}", line(cells.collect()));
    }
}

fn row(scene: &Scene, books: &Count) -> [(String, Tone); 4] {
    let tone = |number| if number > 1 { Tone::Bad } else { Tone::Good };
    let charged = if scene.payment == Payment::None {
        ("no payment in it".into(), Tone::Faint)
    } else {
        (format!("{} × {}", books.charges, each(books.charged, books.charges)), tone(books.charges))
    };
    [
        (format!("{}  {}", scene.number, scene.title.to_lowercase()), Tone::Plain),
        (format!("{} × {}", books.bills, each(books.billed, books.bills)), tone(books.bills)),
        charged,
        (scene.protected.into(), Tone::Plain),
    ]
}

fn each(cents: i64, number: i64) -> String {
    euros(cents.checked_div(number).unwrap_or_default())
}
