//! From milliseconds to places: linear, but where much happens at once the time between two events has a least width.

/// The least width between two instants.
const LEAST: f64 = 18.0;
/// Instants that are closer than this are one.
const SAME_MS: f64 = 0.02;

/// Where an instant is drawn.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Instants with their places, both growing.
    points: Vec<(f64, f64)>,
    /// The parts that are wider than the rest of the axis would make them.
    pub(super) stretched: Vec<(f64, f64)>,
}

impl Scale {
    /// From the first of the instants at `left` to the last at `right`.
    pub(super) fn new(mut instants: Vec<f64>, left: f64, right: f64) -> Self {
        instants.retain(|at| at.is_finite());
        instants.sort_by(f64::total_cmp);
        instants.dedup_by(|later, earlier| *later - *earlier < SAME_MS);
        let gaps: Vec<f64> =
            instants.windows(2).map(|pair| pair.last().unwrap_or(&0.0) - pair.first().unwrap_or(&0.0)).collect();
        let least = LEAST.min((right - left) / (2.0 * super::number(gaps.len()).max(1.0)));
        let per_ms = per_ms(&gaps, least, right - left);
        let mut at = left;
        let mut points: Vec<(f64, f64)> = instants.first().map(|first| (*first, left)).into_iter().collect();
        let mut stretched = Vec::new();
        for (gap, end) in gaps.iter().zip(instants.iter().skip(1)) {
            let width = (gap * per_ms).max(least);
            if width > gap * per_ms * 1.05 {
                stretched.push((at, at + width));
            }
            at += width;
            points.push((*end, at));
        }
        Self { points, stretched }
    }

    /// The place of an instant.
    pub(super) fn x(&self, ms: f64) -> f64 {
        let Some(first) = self.points.first() else { return 0.0 };
        if ms <= first.0 {
            return first.1;
        }
        for pair in self.points.windows(2) {
            if let [(from, left), (until, right)] = pair
                && ms <= *until
            {
                return left + (right - left) * (ms - from) / (until - from).max(f64::MIN_POSITIVE);
            }
        }
        self.points.last().map_or(first.1, |last| last.1)
    }

    /// The instants with their places.
    pub(super) fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// How wide a millisecond is where nothing is stretched, so that all gaps together have the width.
fn per_ms(gaps: &[f64], least: f64, width: f64) -> f64 {
    let total: f64 = gaps.iter().sum();
    let mut per_ms = width / total.max(f64::MIN_POSITIVE);
    for _ in gaps {
        let is_short = |gap: &&f64| **gap * per_ms < least;
        let short = super::number(gaps.iter().filter(is_short).count());
        let rest: f64 = gaps.iter().filter(|gap| !is_short(gap)).sum();
        let next = (width - short * least).max(0.0) / rest.max(f64::MIN_POSITIVE);
        if (next - per_ms).abs() <= per_ms * 1e-9 {
            break;
        }
        per_ms = next;
    }
    per_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_apart_is_linear_and_what_is_close_keeps_its_distance_and_order() {
        let even = Scale::new(vec![0.0, 50.0, 100.0], 10.0, 210.0);
        assert!(even.stretched.is_empty() && (even.x(25.0) - 60.0).abs() < 1e-6, "{even:?}");

        let crowded = Scale::new(vec![0.0, 1.0, 1.5, 2_000.0, 2_000.3, 2_001.0], 0.0, 800.0);
        let places: Vec<f64> = crowded.points().iter().map(|(_, x)| *x).collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] > LEAST - 1e-6), "{places:?}");
        assert!((places[5] - 800.0).abs() < 1e-6 && crowded.stretched.len() == 4, "{crowded:?}");
        let between = crowded.x(1_000.0);
        assert!(between > places[2] && between < places[3]);
    }

    #[test]
    fn there_is_a_place_for_everything_whatever_the_numbers() {
        let same = Scale::new(vec![5.0, 5.0, 5.001], 0.0, 100.0);
        assert_eq!((same.x(5.0), same.x(-1.0), same.x(9.0)), (0.0, 0.0, 0.0));
        let none = Scale::new(vec![f64::NAN, f64::INFINITY], 0.0, 100.0);
        assert!(none.x(1.0).abs() < 1e-9);
        let many = Scale::new((0..500).map(f64::from).map(|n| n * n * n).collect(), 0.0, 600.0);
        assert!(many.points().iter().all(|(_, x)| (0.0..=600.1).contains(x)), "{:?}", many.points().last());
        assert!(many.points().windows(2).all(|pair| pair[1].1 > pair[0].1));
        let huge = Scale::new(vec![-1e300, 0.0, 1e300], 0.0, 600.0);
        assert!(huge.x(0.0).is_finite() && huge.x(1e300) <= 600.1, "{huge:?}");
    }
}
