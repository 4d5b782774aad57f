//! Scores of a model: sums over samples, with their names.

use std::borrow::Cow;

use lowtide_nn::Better;
use serde::{Deserialize, Serialize};

/// Sums over evaluated samples. The scores of parts add up to the score of the whole, so a score
/// does not depend on the cut of its samples into batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the losses.
    pub loss_sum: f64,
    /// The number of targets that count, or the sum of their weights.
    pub count: f64,
    metrics: Vec<Metric>,
}

impl Score {
    /// A score with the loss only.
    pub fn new(loss_sum: f64, count: f64) -> Score {
        Score { loss_sum, count, metrics: Vec::new() }
    }

    /// Adds a metric, or replaces the metric of the same name.
    #[must_use]
    pub fn with(mut self, metric: Metric) -> Score {
        match self.metrics.iter_mut().find(|other| other.name == metric.name) {
            Some(other) => *other = metric,
            None => self.metrics.push(metric),
        }
        self
    }

    /// Loss per target; NaN without targets.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.count
    }

    /// The metrics besides the loss, in the order of the task.
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// The value of the metric `name`, or of `loss`; `None` if there is no such metric.
    pub fn value(&self, name: &str) -> Option<f64> {
        let metric = self.metrics.iter().find(|metric| metric.name == name);
        metric.map(Metric::value).or_else(|| (name == "loss").then(|| self.loss()))
    }

    /// The fraction of right predictions, `value("accuracy")`. NaN without targets or without such
    /// a metric.
    pub fn accuracy(&self) -> f64 {
        self.value("accuracy").unwrap_or(f64::NAN)
    }

    /// The names and values of all metrics, the loss first.
    pub fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        let metrics = self.metrics.iter().map(|metric| (metric.name(), metric.value()));
        std::iter::once(("loss", self.loss())).chain(metrics)
    }

    /// Adds the score of other samples.
    pub fn add(&mut self, other: Score) {
        self.loss_sum += other.loss_sum;
        self.count += other.count;
        for metric in other.metrics {
            match self.metrics.iter_mut().find(|own| own.name == metric.name) {
                Some(own) => own.add(&metric),
                None => self.metrics.push(metric),
            }
        }
    }
}

/// A metric that is made of sums: one ratio, or the mean of several (one for each class).
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    name: Cow<'static, str>,
    unit: Cow<'static, str>,
    better: Better,
    form: Form,
    ratios: Vec<Ratio>,
}

/// A sum over a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    /// The sum that is divided.
    pub part: f64,
    /// The sum that divides `part`.
    pub whole: f64,
}

/// The function that is applied to the mean of the ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Form {
    Mean,
    Root,
    Exponential,
}

impl Metric {
    /// A fraction `part / whole` from 0 to 1, such as an accuracy or a recall.
    pub fn fraction(name: impl Into<Cow<'static, str>>, part: f64, whole: f64) -> Metric {
        Metric::fractions(name, vec![Ratio { part, whole }])
    }

    /// The mean of several fractions; fractions of 0 / 0 are left out. Examples are the mean over
    /// classes of intersection over union, or of F1 = 2 · hits / (predicted + actual).
    pub fn fractions(name: impl Into<Cow<'static, str>>, ratios: Vec<Ratio>) -> Metric {
        let (name, form) = (name.into(), Form::Mean);
        Metric { name, unit: Cow::Borrowed(""), better: Better::Higher, form, ratios }
    }

    /// A sum of errors divided by their count, in a unit, such as a mean absolute error.
    pub fn mean_error(
        name: impl Into<Cow<'static, str>>,
        unit: &'static str,
        sum: f64,
        count: f64,
    ) -> Metric {
        let (name, unit) = (name.into(), Cow::Borrowed(unit));
        let ratios = vec![Ratio { part: sum, whole: count }];
        Metric { name, unit, better: Better::Lower, form: Form::Mean, ratios }
    }

    /// The root of a sum of squares divided by their count, in a unit.
    pub fn root_mean_square(
        name: impl Into<Cow<'static, str>>,
        unit: &'static str,
        squares: f64,
        count: f64,
    ) -> Metric {
        Metric { form: Form::Root, ..Metric::mean_error(name, unit, squares, count) }
    }

    /// `exp(loss_sum / count)`, for a loss in nats.
    pub fn perplexity(loss_sum: f64, count: f64) -> Metric {
        Metric { form: Form::Exponential, ..Metric::mean_error("perplexity", "", loss_sum, count) }
    }

    /// Sets whether higher or lower values are better, for example for a fraction of mistakes.
    #[must_use]
    pub fn better(mut self, better: Better) -> Metric {
        self.better = better;
        self
    }

    /// The name of the metric in progress, metrics and report.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The unit of the value; empty for a plain number.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The direction of better values: higher or lower.
    pub fn is_better_when(&self) -> Better {
        self.better
    }

    /// The value; NaN without targets.
    pub fn value(&self) -> f64 {
        let counting = self.ratios.iter().filter(|ratio| ratio.whole != 0.0);
        let (sum, count) = counting
            .fold((0.0, 0.0), |(sum, count), ratio| (sum + ratio.part / ratio.whole, count + 1.0));
        let mean: f64 = sum / count;
        match self.form {
            Form::Mean => mean,
            Form::Root => mean.sqrt(),
            Form::Exponential => mean.exp(),
        }
    }

    fn add(&mut self, other: &Metric) {
        if self.ratios.len() < other.ratios.len() {
            self.ratios.resize(other.ratios.len(), Ratio::default());
        }
        for (own, other) in self.ratios.iter_mut().zip(&other.ratios) {
            own.part += other.part;
            own.whole += other.whole;
        }
    }
}

/// Encodes scores for other ranks: JSON with the bits of the floats, which may be infinite or NaN.
pub(crate) fn encoded(scores: &[Score]) -> Vec<u8> {
    let scores: Vec<ScoreWords> = scores.iter().map(ScoreWords::of).collect();
    serde_json::to_vec(&scores).expect("plain values")
}

/// Decodes scores that were [encoded]; `None` for other bytes.
pub(crate) fn decoded(bytes: &[u8]) -> Option<Vec<Score>> {
    let scores: Vec<ScoreWords> = serde_json::from_slice(bytes).ok()?;
    Some(scores.into_iter().map(ScoreWords::into_score).collect())
}

#[derive(Serialize, Deserialize)]
struct ScoreWords {
    loss_sum: u64,
    count: u64,
    metrics: Vec<MetricWords>,
}

#[derive(Serialize, Deserialize)]
struct MetricWords {
    name: String,
    unit: String,
    is_better_higher: bool,
    form: Form,
    ratios: Vec<[u64; 2]>,
}

impl ScoreWords {
    fn of(score: &Score) -> Self {
        let metrics = score.metrics.iter().map(|metric| MetricWords {
            name: metric.name.to_string(),
            unit: metric.unit.to_string(),
            is_better_higher: metric.better == Better::Higher,
            form: metric.form,
            ratios: metric.ratios.iter().map(|r| [r.part, r.whole].map(f64::to_bits)).collect(),
        });
        ScoreWords {
            loss_sum: score.loss_sum.to_bits(),
            count: score.count.to_bits(),
            metrics: metrics.collect(),
        }
    }

    fn into_score(self) -> Score {
        let ratio = |[part, whole]: [u64; 2]| Ratio {
            part: f64::from_bits(part),
            whole: f64::from_bits(whole),
        };
        let metric = |words: MetricWords| Metric {
            name: words.name.into(),
            unit: words.unit.into(),
            better: if words.is_better_higher { Better::Higher } else { Better::Lower },
            form: words.form,
            ratios: words.ratios.into_iter().map(ratio).collect(),
        };
        Score {
            loss_sum: f64::from_bits(self.loss_sum),
            count: f64::from_bits(self.count),
            metrics: self.metrics.into_iter().map(metric).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(pairs: &[(f64, f64)]) -> Vec<Ratio> {
        pairs.iter().map(|&(part, whole)| Ratio { part, whole }).collect()
    }

    #[test]
    fn parts_add_up_to_the_whole_under_their_names() {
        let part = |hits: f64, count: f64| {
            Score::new(2.0 * count, count)
                .with(Metric::fraction("accuracy", hits, count))
                .with(Metric::root_mean_square("error", "m", 9.0 * count, count))
        };
        let mut whole = Score::default();
        whole.add(part(1.0, 4.0));
        whole.add(part(5.0, 6.0));
        assert_eq!(whole.accuracy(), 0.6);
        assert_eq!(
            (whole.loss(), whole.value("loss"), whole.value("error")),
            (2.0, Some(2.0), Some(3.0))
        );
        assert_eq!(whole.value("recall"), None);
        let names: Vec<&str> = whole.values().map(|(name, _)| name).collect();
        assert_eq!(names, ["loss", "accuracy", "error"]);
    }

    #[test]
    fn what_other_ranks_read_is_what_was_scored() {
        let odd = Score::new(f64::INFINITY, 0.1)
            .with(Metric::mean_error("error", "m", -0.0, 3.0))
            .with(Metric::perplexity(1e-320, f64::MAX))
            .with(Metric::fractions("iou", ratios(&[(1.0, 3.0), (0.0, 0.0)])));
        let scores = [odd, Score::default(), Score::new(0.1 + 0.2, 1.0)];
        assert_eq!(decoded(&encoded(&scores)).unwrap(), scores);
        let nan = decoded(&encoded(&[Score::new(f64::NAN, 1.0)])).unwrap();
        assert_eq!(nan[0].loss_sum.to_bits(), f64::NAN.to_bits());
        assert_eq!(decoded(b"[1]"), None);
    }

    #[test]
    fn classes_without_targets_are_left_out_of_the_mean() {
        let mut iou =
            Score::new(0.0, 1.0).with(Metric::fractions("iou", ratios(&[(1.0, 2.0), (0.0, 0.0)])));
        assert_eq!(iou.value("iou"), Some(0.5));
        iou.add(
            Score::new(0.0, 1.0)
                .with(Metric::fractions("iou", ratios(&[(1.0, 2.0), (0.0, 0.0), (1.0, 1.0)]))),
        );
        assert_eq!(iou.value("iou"), Some(0.75));
    }

    #[test]
    fn nothing_to_count_is_not_a_number() {
        let none = Score::default().with(Metric::perplexity(0.0, 0.0));
        assert!(none.loss().is_nan() && none.accuracy().is_nan());
        assert!(none.value("perplexity").is_some_and(f64::is_nan));
        let some = Metric::perplexity(2.0 * 3.0_f64.ln(), 2.0);
        assert!((some.value() - 3.0).abs() < 1e-12);
    }
}
