use lowtide_tensor::cuda::gate::{Argument, Grid, Signature};
use proptest::prelude::*;

use super::{Lab, Read, Words, Write, assert_close, divisor, noise};

/// Sizes of a max pooling; pairs are (height, width).
#[derive(Clone, Copy, Debug)]
struct Pool {
    planes: usize,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl Pool {
    fn out_size(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            let room = self.size[axis] + 2 * self.padding[axis] - reach;
            room / self.stride[axis] + 1
        })
    }

    /// The maximum of each output, its place in x and its position in the window.
    fn winners(&self, x: &[f32]) -> Vec<(f32, usize, u8)> {
        let ([height, width], [oh, ow]) = (self.size, self.out_size());
        let mut winners = Vec::new();
        for at in 0..self.planes * oh * ow {
            let (plane, row, column) = (at / (oh * ow), at / ow % oh, at % ow);
            let mut best: Option<(f32, usize, u8)> = None;
            for position in 0..self.kernel[0] * self.kernel[1] {
                let (i, j) = (position / self.kernel[1], position % self.kernel[1]);
                let (i, j) = (i * self.dilation[0], j * self.dilation[1]);
                let h = (row * self.stride[0] + i).checked_sub(self.padding[0]);
                let w = (column * self.stride[1] + j).checked_sub(self.padding[1]);
                let (Some(h), Some(w)) = (h, w) else { continue };
                if h >= height || w >= width {
                    continue;
                }
                let place = (plane * height + h) * width + w;
                let value = x[place];
                let is_better = best
                    .is_none_or(|(best, ..)| value > best || (value.is_nan() && !best.is_nan()));
                if is_better {
                    best = Some((value, place, position as u8));
                }
            }
            winners.push(best.expect("no window lies outside"));
        }
        winners
    }

    fn words(&self) -> Vec<u64> {
        let sizes = [self.size, self.out_size(), self.kernel].concat();
        let steps = [self.stride, self.padding, self.dilation].concat();
        let words = [vec![self.planes], sizes, steps].concat();
        let ([h, w], [oh, ow]) = (self.size, self.out_size());
        let divisors = [[h * w, w], [oh * ow, ow], self.stride, self.dilation];
        let words = words.into_iter().map(|word| word as u64);
        words.chain(divisors.into_iter().flatten().flat_map(divisor)).collect()
    }
}

fn pools() -> impl Strategy<Value = Pool> {
    let pair = |low: usize, high: usize| [low..high, low..high];
    let windows = (pair(1, 5), pair(1, 4), pair(0, 3), pair(0, 9));
    (0..4_usize, windows, pair(1, 4)).prop_map(|(planes, windows, dilation)| {
        let (kernel, stride, padding, extra) = windows;
        let padding = [0, 1].map(|axis| padding[axis].min(kernel[axis] / 2));
        let size = [0, 1].map(|axis| (kernel[axis] - 1) * dilation[axis] + 1 + extra[axis]);
        Pool { planes, size, kernel, stride, padding, dilation }
    })
}

#[test]
fn maxima_of_windows_and_their_gradients_are_those_of_their_twins() {
    let Some(lab) = Lab::open() else { return };
    let forward =
        Signature { name: "max_pool2d_f32", parameters: &[Write, Write, Read, Words(29)] };
    let parameters = &[Write, Read, Read, Words(29)];
    let backward = Signature { name: "max_pool2d_backward_f32", parameters };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) };
    proptest!(config, |(pool in pools(), has_nan in any::<bool>(), seed in 0..100_u64)| {
        // Whole numbers, so that ties are common.
        let mut x: Vec<f32> = noise(pool.planes * pool.size[0] * pool.size[1], seed)
            .into_iter()
            .map(f32::round)
            .collect();
        if let (true, Some(value)) = (has_nan, x.get_mut(seed as usize)) {
            *value = f32::NAN;
        }
        let winners = pool.winners(&x);
        let dy = noise(winners.len(), seed + 1);
        let (mut y, mut dx) = (Vec::new(), vec![0.0; x.len()]);
        for (&(value, place, _), &dy) in winners.iter().zip(&dy) {
            y.push(f64::from(value));
            dx[place] += f64::from(dy);
        }
        let positions: Vec<u8> = winners.iter().map(|winner| winner.2).collect();
        let words = pool.words();
        let (x, dy, sizes) = (lab.floats(&x), lab.floats(&dy), Argument::Words(&words));
        lab.in_each_order(|| {
            let (found, stood) = (lab.room(4 * y.len()), lab.room(y.len()));
            let arguments = [found.write(), stood.write(), x.read(), sizes];
            lab.run("max_pool2d_f32", forward, Grid::row(2, 32), &arguments);
            assert_close(&lab.floats_of(&found), &y, 0, 0.0);
            assert_eq!(lab.bytes_of(&stood), positions);

            let found = lab.room(4 * dx.len());
            let arguments = [found.write(), dy.read(), stood.read(), sizes];
            lab.run("max_pool2d_f32", backward, Grid::row(3, 32), &arguments);
            assert_close(&lab.floats_of(&found), &dx, 16, 2.0);
        });
    });
}
