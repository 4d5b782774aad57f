//! Long series in few points.

/// Points of a curve at most; more than a screen is wide.
pub(super) const POINTS_MAX: usize = 1000;

/// A curve in at most [`POINTS_MAX`] points, each for as many values as the others: their mean,
/// the lowest and the highest, so that no peak is lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Thinned {
    /// Values behind each point, but perhaps the last.
    pub(super) each: usize,
    /// The steps of the first values.
    pub(super) steps: Vec<u64>,
    /// NaN where no value is finite.
    pub(super) means: Vec<f64>,
    /// Empty where a point is one value.
    pub(super) lows: Vec<f64>,
    /// Empty where a point is one value.
    pub(super) highs: Vec<f64>,
    /// Values that are not finite; they are in no mean.
    pub(super) gap_count: usize,
}

pub(super) fn thin(points: &[(u64, f64)]) -> Thinned {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let mut thinned = Thinned { each, ..Thinned::default() };
    for part in points.chunks(each) {
        let finite = || part.iter().map(|&(_, value)| value).filter(|value| value.is_finite());
        let count = finite().count();
        thinned.gap_count += part.len() - count;
        thinned.steps.push(part[0].0);
        if each == 1 {
            thinned.means.push(if count == 1 { part[0].1 } else { f64::NAN });
            continue;
        }
        let of = |value: f64| if count == 0 { f64::NAN } else { rounded(value) };
        // Each part of the sum is small enough that no sum overflows.
        thinned.means.push(of(finite().map(|value| value / count as f64).sum()));
        thinned.lows.push(of(finite().fold(f64::INFINITY, f64::min)));
        thinned.highs.push(of(finite().fold(f64::NEG_INFINITY, f64::max)));
    }
    thinned
}

/// Seven digits: as many as a number of 32 bits has, and half the size of the page.
fn rounded(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}
