//! Long series reduced to few points.

/// Largest number of points of a curve; more than a screen is wide.
pub(super) const POINTS_MAX: usize = 1000;

/// A curve in at most [`POINTS_MAX`] points, each for an equal number of values. A point has the
/// mean, the lowest and the highest of its values, so no peak is lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Thinned {
    /// Number of values behind each point. The last point may have fewer.
    pub(super) each: usize,
    /// The step of the first value behind each point.
    pub(super) steps: Vec<u64>,
    /// The mean of the finite values behind each point; NaN if there are none.
    pub(super) means: Vec<f64>,
    /// The lowest value behind each point. Empty if a point is one value.
    pub(super) lows: Vec<f64>,
    /// The highest value behind each point. Empty if a point is one value.
    pub(super) highs: Vec<f64>,
    /// Number of values that are not finite. No mean contains them.
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
        // Each value is divided before the sum, so that the sum does not overflow.
        thinned.means.push(of(finite().map(|value| value / count as f64).sum()));
        thinned.lows.push(of(finite().fold(f64::INFINITY, f64::min)));
        thinned.highs.push(of(finite().fold(f64::NEG_INFINITY, f64::max)));
    }
    thinned
}

/// Seven digits: the precision of f32, and half the size of the page.
fn rounded(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}
