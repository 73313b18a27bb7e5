//! Places for labels: in rows below their marks, so that no two overlap and, where it can be, no line to a mark crosses another label.

/// A label that wants to be near `x`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) x: f64,
    pub(super) width: f64,
}

/// Where a label is: its row, from 0, and its left end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spot {
    pub(super) row: usize,
    pub(super) from: f64,
}

/// Room between two labels in a row, and between a label and a line that passes.
const APART: f64 = 8.0;
const BESIDE: f64 = 3.0;
/// What a row further down costs, and a crossing.
const ROW: f64 = 10.0;
const CROSSING: f64 = 27.0;
/// What it costs to be in the way of a label that has no spot yet.
const IN_THE_WAY: f64 = 6.0;

/// A spot for each wish, between `left` and `right`.
pub(super) fn place(wishes: &[Wish], left: f64, right: f64) -> Vec<Spot> {
    let by_x = {
        let mut order: Vec<usize> = (0..wishes.len()).collect();
        order.sort_by(|one, other| x(wishes, *one).total_cmp(&x(wishes, *other)));
        order
    };
    let middle = f64::midpoint(left, right);
    let (first, second): (Vec<usize>, Vec<usize>) = by_x.iter().partition(|at| x(wishes, **at) < middle);
    // From both ends to the middle, from one end to the other, or from the middle to both ends.
    let reversed = |part: &[usize]| part.iter().rev().copied().collect::<Vec<_>>();
    let orders = [
        by_x.clone(),
        reversed(&by_x),
        [reversed(&first), second.clone()].concat(),
        [second.clone(), reversed(&first)].concat(),
        [first.clone(), reversed(&second)].concat(),
    ];
    let tried = orders.iter().map(|order| in_order(wishes, order, (left, right)));
    tried.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, spots)| spots).unwrap_or_default()
}

fn x(wishes: &[Wish], at: usize) -> f64 {
    wishes.get(at).map_or(0.0, |wish| wish.x)
}

/// Places one after the other, each where it costs least.
fn in_order(wishes: &[Wish], order: &[usize], (left, right): (f64, f64)) -> (f64, Vec<Spot>) {
    let mut placed: Vec<(usize, Wish, Spot)> = Vec::new();
    let mut total = 0.0;
    for (done, at) in order.iter().enumerate() {
        let Some(wish) = wishes.get(*at).copied() else { continue };
        let coming: Vec<f64> = order.iter().skip(done.saturating_add(1)).map(|at| x(wishes, *at)).collect();
        let most = (right - wish.width).max(left);
        let sides = [wish.x - BESIDE, wish.x + BESIDE - wish.width].map(|from| from.clamp(left, most));
        let mut best: Option<(f64, Spot)> = None;
        for row in 0..=placed.len() {
            for (side, from) in sides.iter().enumerate() {
                let spot = Spot { row, from: *from };
                let Some(crossings) = crossings(&placed, wish, spot) else { continue };
                let in_the_way = coming.iter().filter(|x| covers(spot, wish.width, **x)).count();
                let cost = ROW * super::number(row)
                    + CROSSING * super::number(crossings)
                    + IN_THE_WAY * super::number(in_the_way)
                    + super::number(side);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, spot));
                }
            }
        }
        // The row below all others is always free.
        if let Some((cost, spot)) = best {
            total += cost;
            placed.push((*at, wish, spot));
        }
    }
    placed.sort_by_key(|(at, ..)| *at);
    (total, placed.into_iter().map(|(_, _, spot)| spot).collect())
}

/// How many lines would cross labels; `None` where labels would overlap.
fn crossings(placed: &[(usize, Wish, Spot)], wish: Wish, spot: Spot) -> Option<usize> {
    let mut count = 0_usize;
    for (_, other, there) in placed {
        let apart = spot.from + wish.width + APART <= there.from || there.from + other.width + APART <= spot.from;
        if there.row == spot.row && !apart {
            return None;
        }
        let own_line_crosses = there.row < spot.row && covers(*there, other.width, wish.x);
        let is_crossed = there.row > spot.row && covers(spot, wish.width, other.x);
        count = count.saturating_add(usize::from(own_line_crosses || is_crossed));
    }
    Some(count)
}

/// Whether a line down from `x` would touch the label.
fn covers(spot: Spot, width: f64, x: f64) -> bool {
    x > spot.from - BESIDE + 0.5 && x < spot.from + width + BESIDE - 0.5
}

/// About how wide a text is, a little too wide rather than too narrow: fonts differ.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let em: f64 = text.chars().map(em).sum();
    em * size * 1.04
}

fn em(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | 'I' => 0.32,
        'f' | 't' | 'r' | ' ' | '(' | ')' | '[' | ']' | '/' | '-' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.92,
        'A'..='Z' => 0.70,
        c if u32::from(c) < 0x2000 => 0.60,
        _ => 1.0,
    }
}

/// The text, cut so that it is not wider than that.
pub(super) fn cut(text: &str, size: f64, most: f64) -> String {
    if width(text, size) <= most {
        return text.to_owned();
    }
    let mut room = most - width("…", size);
    let kept: String = text
        .chars()
        .take_while(|c| {
            room -= em(*c) * size * 1.04;
            room >= 0.0
        })
        .collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(wishes: &[Wish], spots: &[Spot]) -> bool {
        let all: Vec<_> = wishes.iter().zip(spots).collect();
        all.iter().enumerate().any(|(at, (wish, spot))| {
            all.iter().skip(at.saturating_add(1)).any(|(other, there)| {
                spot.row == there.row && spot.from < there.from + other.width && there.from < spot.from + wish.width
            })
        })
    }

    #[test]
    fn labels_never_overlap_and_stay_inside() {
        for (count, step, width) in
            [(1, 1.0, 50.0), (9, 10.0, 200.0), (9, 0.0, 300.0), (40, 13.0, 90.0), (3, 290.0, 600.0)]
        {
            let wishes: Vec<Wish> = (0..count).map(|n| Wish { x: 100.0 + f64::from(n) * step, width }).collect();
            let spots = place(&wishes, 100.0, 900.0);
            assert_eq!(spots.len(), wishes.len());
            assert!(!overlaps(&wishes, &spots), "{wishes:?} {spots:?}");
            assert!(spots.iter().all(|spot| spot.from >= 100.0 && spot.from + width <= 900.0), "{spots:?}");
        }
    }

    #[test]
    fn a_staircase_crosses_nothing() {
        let wishes: Vec<Wish> = (0..4).map(|n| Wish { x: 800.0 + 20.0 * f64::from(n), width: 200.0 }).collect();
        let spots = place(&wishes, 100.0, 900.0);
        let placed: Vec<_> = wishes.iter().zip(&spots).map(|(wish, spot)| (0, *wish, *spot)).collect();
        for (_, wish, spot) in &placed {
            let others: Vec<_> =
                placed.iter().filter(|(_, other, _)| (other.x - wish.x).abs() > 0.1).copied().collect();
            assert_eq!(crossings(&others, *wish, *spot), Some(0), "{spots:?}");
        }
    }

    #[test]
    fn a_cut_text_fits() {
        assert_eq!(cut("short", 12.0, 100.0), "short");
        let long = "a stale write that was sent long after its lease had ended";
        let text = cut(long, 12.0, 120.0);
        assert!(text.ends_with('…') && width(&text, 12.0) <= 120.0, "{text}");
        assert!(width("中中", 12.0) > width("ab", 12.0));
    }
}
