//! Mixup and CutMix: mixing the samples of a batch in pairs.

use crate::dataset::{BatchSlot, Dataset, SampleSlot};
use crate::draws::Draws;
use crate::element::{Element, ElementType, Field};
use crate::error::{DataError, SampleError};

const PURPOSE: u64 = u64::from_be_bytes(*b"mixing\0\0");

/// A way to mix two samples. The share of a sample in the mixture is drawn from the Beta
/// distribution with both parameters `alpha`, which is above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mixing {
    /// The weighted mean of two images: H. Zhang and others, "mixup: Beyond Empirical Risk
    /// Minimization", ICLR 2018.
    Mixup {
        /// Parameter of the Beta distribution, usually 0.2 to 1.
        alpha: f64,
    },
    /// A rectangle of one image pasted into the other: S. Yun and others, "CutMix: Regularization
    /// Strategy to Train Strong Classifiers with Localizable Features", ICCV 2019.
    Cutmix {
        /// Parameter of the Beta distribution, usually 1.
        alpha: f64,
    },
}

/// A dataset of images and labels whose batches are mixed as torchvision's `MixUp` and `CutMix` do.
/// Each sample is mixed with the previous sample of the batch, and the first sample with the last.
/// All samples of a batch are mixed with one share.
///
/// Two fields are added: `labels.other`, i64 `[]`, is the label of the other sample, and
/// `labels.weight`, f32 `[]`, is the share of the sample's own label. The loss is
/// `weight * loss(labels) + (1 - weight) * loss(labels.other)`. The random numbers depend on the
/// loader's seed, the epoch and the batch.
#[derive(Debug)]
pub struct Mixed<D> {
    dataset: D,
    mixing: Mixing,
    fields: Vec<Field>,
    images: usize,
    labels: usize,
}

impl<D: Dataset> Mixed<D> {
    /// Mixes the fields `images`, f32 `[C, H, W]`, and `labels`, i64 `[]`, of a dataset.
    ///
    /// # Errors
    /// [`DataError::InvalidMixing`] for an `alpha` that is not above 0 and finite, or a dataset
    /// without these two fields.
    pub fn new(dataset: D, mixing: Mixing) -> Result<Self, DataError> {
        let (Mixing::Mixup { alpha } | Mixing::Cutmix { alpha }) = mixing;
        let refused = |reason| Err(DataError::InvalidMixing { reason });
        if !alpha.is_finite() || alpha <= 0.0 {
            return refused("alpha is not above 0 and finite");
        }
        let mut fields = dataset.fields().to_vec();
        let place = |name: &str, element: ElementType, rank: usize| {
            fields.iter().position(|field| {
                let is_plain = field.ragged.is_none() && field.shape.len() == rank;
                &*field.name == name && field.element == element && is_plain
            })
        };
        let Some(images) = place("images", ElementType::F32, 3) else {
            return refused("there is no field images of f32 [C, H, W]");
        };
        let Some(labels) = place("labels", ElementType::I64, 0) else {
            return refused("there is no field labels of i64 []");
        };
        fields.push(Field::new("labels.other", ElementType::I64, &[]));
        fields.push(Field::new("labels.weight", ElementType::F32, &[]));
        Ok(Self { dataset, mixing, fields, images, labels })
    }

    /// The dataset whose batches are mixed.
    #[must_use]
    pub fn dataset(&self) -> &D {
        &self.dataset
    }
}

impl<D: Dataset> Dataset for Mixed<D> {
    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        self.dataset.write(index, slot)
    }

    fn changes_batches(&self) -> bool {
        true
    }

    fn finish_batch(&self, batch: &mut BatchSlot<'_>) {
        self.dataset.finish_batch(batch);
        let other = self.fields.len() - 2;
        let mut labels = batch.values::<i64>(self.labels).to_vec();
        labels.rotate_right(1);
        batch.values::<i64>(other).copy_from_slice(&labels);
        let mut draws = batch.draws(PURPOSE);
        let shape = &self.fields[self.images].shape;
        let size = [shape[1], shape[2]];
        let images = batch.values::<f32>(self.images);
        let image_len: usize = shape.iter().product();
        let weight = match self.mixing {
            Mixing::Mixup { alpha } => {
                let weight = beta(alpha, &mut draws) as f32;
                with_previous(images, image_len, |own, previous| {
                    for (own, &previous) in own.iter_mut().zip(previous) {
                        *own = weight * *own + (1.0 - weight) * previous;
                    }
                });
                weight
            }
            Mixing::Cutmix { alpha } => {
                let share = beta(alpha, &mut draws);
                let [top, bottom, left, right] = pasted_rectangle(share, size, &mut draws);
                with_previous(images, image_len, |own, previous| {
                    for line in 0..own.len() / size[1].max(1) {
                        if (top..bottom).contains(&(line % size[0])) {
                            let part = line * size[1] + left..line * size[1] + right;
                            own[part.clone()].copy_from_slice(&previous[part]);
                        }
                    }
                });
                let pasted = ((bottom - top) * (right - left)) as f32;
                1.0 - pasted / ((size[0] * size[1]).max(1) as f32)
            }
        };
        batch.values::<f32>(other + 1).fill(weight);
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.dataset.visit_memory(visit);
    }
}

/// Calls `mix` with each row and the unmixed row before it. The first row is mixed with the last.
fn with_previous<T: Element>(rows: &mut [T], row_len: usize, mix: impl Fn(&mut [T], &[T])) {
    if row_len == 0 || rows.len() < row_len {
        return;
    }
    // Rows are mixed from the last to the first, so that the previous row is still unmixed. A copy
    // of the last row is kept for the first row.
    let last = rows[rows.len() - row_len..].to_vec();
    let mut rest = rows;
    while let Some(before) = rest.len().checked_sub(row_len) {
        let (previous, own) = rest.split_at_mut(before);
        match previous.len().checked_sub(row_len) {
            Some(start) => mix(own, &previous[start..]),
            None => mix(own, &last),
        }
        rest = previous;
        if rest.is_empty() {
            break;
        }
    }
}

/// A random number of the Beta distribution with both parameters `alpha`.
fn beta(alpha: f64, draws: &mut Draws) -> f64 {
    if alpha == 1.0 {
        return draws.unit();
    }
    loop {
        let [u, v] = [draws.unit(), draws.unit()];
        if alpha > 1.0 {
            // Rejection sampling. The density has its maximum at 1/2.
            if v < (4.0 * u * (1.0 - u)).powf(alpha - 1.0) {
                return u;
            }
        } else {
            // M. D. Joehnk, "Erzeugung von betaverteilten und gammaverteilten Zufallszahlen",
            // Metrika 8, 1964.
            let [x, y] = [u, v].map(|u| u.powf(1.0 / alpha));
            if x + y <= 1.0 && x + y > 0.0 {
                return x / (x + y);
            }
            if x + y == 0.0 {
                // Both powers are too small for f64, and one of them is much larger than the other.
                return f64::from(u > v);
            }
        }
    }
}

/// Top, bottom, left and right of the rectangle that the other image fills, as in torchvision's
/// `CutMix`. The centre lies anywhere in the image, and the rectangle is clipped to the image.
fn pasted_rectangle(share: f64, [height, width]: [usize; 2], draws: &mut Draws) -> [usize; 4] {
    let [x, y] = [width, height].map(|side| draws.below(side.max(1)));
    let half = 0.5 * (1.0 - share).sqrt();
    let span = |middle: usize, side: usize| {
        let half = (half * side as f64) as usize;
        [middle.saturating_sub(half), (middle + half).min(side)]
    };
    let ([top, bottom], [left, right]) = (span(y, height), span(x, width));
    [top, bottom, left, right]
}

#[cfg(test)]
mod tests {
    use super::{Draws, beta, with_previous};

    #[test]
    fn beta_has_its_mean_and_variance() {
        for alpha in [0.2, 0.5, 1.0, 2.0, 8.0] {
            let mut draws = Draws::new(1, 2, 3, 4);
            let numbers: Vec<f64> = (0..20_000).map(|_| beta(alpha, &mut draws)).collect();
            assert!(numbers.iter().all(|x| (0.0..=1.0).contains(x)));
            let mean = numbers.iter().sum::<f64>() / 20_000.0;
            let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: mean {mean}");
            let expected = 0.25 / (2.0 * alpha + 1.0);
            assert!((variance / expected - 1.0).abs() < 0.05, "{alpha}: {variance}");
        }
        let tiny = beta(1e-6, &mut Draws::new(1, 2, 3, 4));
        assert!(tiny == 0.0 || tiny == 1.0);
    }

    #[test]
    fn rows_meet_the_one_before_as_it_was() {
        for count in 0..5 {
            let mut rows: Vec<i64> = (0..2 * count).collect();
            with_previous(&mut rows, 2, |own, previous| {
                own[0] = 100 * own[0] + previous[0];
            });
            let expected: Vec<i64> = (0..count)
                .flat_map(|at| [200 * at + 2 * ((at + count - 1) % count), 2 * at + 1])
                .collect();
            assert_eq!(rows, expected);
        }
    }
}
