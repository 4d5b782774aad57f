//! Scales, ticks, paths and the frame that every plot of the page shares.

use super::escape;

/// Plots are drawn on a grid of this many units and stretched: below half a pixel on most screens.
pub(super) const WIDTH: i64 = 2000;
/// See [`WIDTH`].
pub(super) const HEIGHT: i64 = 1000;

/// A range of values that spans the plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Scale {
    /// The range `low..=high`, widened by one where it would be empty.
    pub(super) fn new(low: f64, high: f64) -> Self {
        if high > low { Self { low, high } } else { Self { low: low - 0.5, high: low + 0.5 } }
    }

    fn fraction(self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Position from the left in drawing units.
    pub(super) fn x(self, value: f64) -> i64 {
        (self.fraction(value) * WIDTH as f64).round() as i64
    }

    /// Position from the top in drawing units.
    pub(super) fn y(self, value: f64) -> i64 {
        ((1.0 - self.fraction(value)) * HEIGHT as f64).round() as i64
    }

    /// Position from the left in percent.
    pub(super) fn left(self, value: f64) -> f64 {
        100.0 * self.fraction(value)
    }

    /// Position from the top in percent.
    pub(super) fn top(self, value: f64) -> f64 {
        100.0 - self.left(value)
    }

    /// Multiples of 1, 2 or 5 times a power of ten, about `count` of them, and their decimals.
    pub(super) fn ticks(self, count: usize, step_min: f64) -> (Vec<f64>, usize) {
        let rough = ((self.high - self.low) / count as f64).max(step_min);
        let magnitude = 10f64.powf(rough.log10().floor());
        let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * magnitude >= 0.8 * rough);
        let step = factor.unwrap_or(10.0) * magnitude;
        let decimals = (-step.log10()).ceil().clamp(0.0, 12.0) as usize;
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        ((first..=last).map(|index| index as f64 * step).collect(), decimals)
    }
}

/// Multiples of a power of two up to `high_bytes`: four to eight of them.
pub(super) fn byte_ticks(high_bytes: u64) -> Vec<u64> {
    let step = (high_bytes / 4).max(1);
    let step = 1u64 << step.ilog2();
    (0..=high_bytes / step).map(|index| index * step).collect()
}

/// A line from point to point; one point alone is a line of no length, which a round cap shows.
pub(super) fn line_path(points: impl IntoIterator<Item = (i64, i64)>) -> String {
    let points: Vec<String> = points.into_iter().map(|(x, y)| format!("{x} {y}")).collect();
    let dot = if points.len() == 1 { "h0" } else { "" };
    if points.is_empty() { String::new() } else { format!("M{}{dot}", points.join("L")) }
}

/// A line that holds each height until the next point, and the last one to the right edge.
pub(super) fn step_path(xs: &[i64], ys: &[i64]) -> String {
    let Some((&x, &y)) = xs.first().zip(ys.first()) else {
        return String::new();
    };
    let mut path = format!("M{x} {y}");
    let mut last = y;
    for (x, y) in xs.iter().zip(ys).skip(1) {
        // Only changes are written: most categories rest most of the time.
        if *y != last {
            path.push_str(&format!("H{x}V{y}"));
            last = *y;
        }
    }
    path + &format!("H{WIDTH}")
}

/// The frame of a plot: grid, drawing and labels.
pub(super) struct Plot<'a> {
    /// One of the heights that the style sheet knows, such as `tall`.
    pub(super) class: &'a str,
    /// What the picture shows, for those who do not see it.
    pub(super) alt: String,
    pub(super) x: Scale,
    pub(super) y: Scale,
    /// Values and labels of the axes.
    pub(super) x_ticks: Vec<(f64, String)>,
    pub(super) y_ticks: Vec<(f64, String)>,
    /// SVG on the grid of [`WIDTH`] and [`HEIGHT`].
    pub(super) drawing: String,
    /// HTML placed over the drawing.
    pub(super) overlay: String,
}

impl Plot<'_> {
    pub(super) fn to_html(&self) -> String {
        let mut grid = String::new();
        let mut labels = String::new();
        for (value, label) in &self.y_ticks {
            grid.push_str(&format!("M0 {}H{WIDTH}", self.y.y(*value)));
            let top = self.y.top(*value);
            labels.push_str(&format!("<span class=\"y\" style=\"top:{top:.2}%\">{label}</span>"));
        }
        for (index, (value, label)) in self.x_ticks.iter().enumerate() {
            let left = self.x.left(*value);
            // Narrow screens show every second label.
            let class = if index % 2 == 1 && self.x_ticks.len() > 4 { "x second" } else { "x" };
            labels += &format!("<span class=\"{class}\" style=\"left:{left:.2}%\">{label}</span>");
        }
        format!(
            "<div class=\"plot {class}\" tabindex=\"0\">\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{alt}\">\n<path class=\"grid\" d=\"{grid}\"/>\n{drawing}</svg>\n\
             {labels}{overlay}<i class=\"cursor\"></i>\n</div>\n",
            class = self.class,
            alt = escape(&self.alt),
            drawing = self.drawing,
            overlay = self.overlay,
        )
    }
}

/// Segments of a strip narrower than this many percent are left out.
const SEGMENT_MIN: f64 = 0.2;
/// Segments narrower than this many percent carry no text.
const SEGMENT_TEXT_MIN: f64 = 4.0;

/// A band of labelled segments: each holds from its start to the next one.
pub(super) fn strip(name: &str, scale: Scale, starts: &[(f64, String)]) -> String {
    let mut segments = Vec::new();
    for (index, (start, label)) in starts.iter().enumerate() {
        let left = scale.left(*start);
        let right = starts.get(index + 1).map_or(100.0, |(next, _)| scale.left(*next));
        let width = right - left;
        if width < SEGMENT_MIN {
            continue;
        }
        let class = if segments.len() % 2 == 1 { " class=\"odd\"" } else { "" };
        let label = escape(label);
        let text = if width < SEGMENT_TEXT_MIN { "" } else { &label };
        segments.push(format!(
            "<span{class} style=\"left:{left:.2}%;width:{width:.2}%\" title=\"{label}\">{text}\
             </span>"
        ));
    }
    if segments.is_empty() {
        return String::new();
    }
    let (name, segments) = (escape(name), segments.concat());
    format!("<div class=\"strip\"><span class=\"name\">{name}</span>{segments}</div>\n")
}

/// One entry of a legend: a swatch of the given class and a text.
pub(super) fn key(class: &str, text: &str) -> String {
    format!("<span class=\"key\"><i class=\"{class}\"></i>{}</span>", escape(text))
}

/// What stands in the place of a picture without data.
pub(super) fn no_data(text: &str) -> String {
    format!("<p class=\"empty\">{}</p>\n", escape(text))
}
