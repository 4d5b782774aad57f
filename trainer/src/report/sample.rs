//! Long series made short enough to draw: thinning that keeps the extremes, and a running mean.

use std::ops::Range;

/// Columns of a picture: about one for each pixel of a wide plot.
const COLUMNS: usize = 800;

/// Cuts `0..len` into ranges that are one column of the picture each; none is empty.
pub(super) fn columns(len: usize) -> Vec<Range<usize>> {
    let count = len.min(COLUMNS);
    (0..count).map(|column| column * len / count..(column + 1) * len / count).collect()
}

/// Indices of the points to draw, ascending: all of a short series, else the first, the last, and
/// the lowest and the highest of each column.
pub(super) fn thin(values: &[f64]) -> Vec<usize> {
    let by_value = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
    let mut kept = Vec::new();
    kept.extend(values.first().map(|_| 0));
    for column in columns(values.len()) {
        kept.extend(column.clone().min_by(by_value));
        kept.extend(column.max_by(by_value));
    }
    kept.extend(values.len().checked_sub(1));
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// Values over which [`smooth`] averages in a series of this length: about a fortieth of it.
pub(super) fn smooth_window_len(len: usize) -> usize {
    2 * (len / 80) + 1
}

/// The mean of the values around each, as many before it as after it: fewer towards both ends, so
/// that the mean does not lag behind a falling loss.
pub(super) fn smooth(values: &[f64]) -> Vec<f64> {
    let reach_max = smooth_window_len(values.len()) / 2;
    let mean = |index: usize| {
        let reach = reach_max.min(index).min(values.len() - 1 - index);
        let window = &values[index - reach..=index + reach];
        window.iter().sum::<f64>() / window.len() as f64
    };
    (0..values.len()).map(mean).collect()
}
