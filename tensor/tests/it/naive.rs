//! Slow and obvious reference code for the operations: `Vec<f64>` and index arithmetic.

use lowtide_tensor::{Conv2dGeometry, MaxPool, Pool2dGeometry, SizeRounding};

/// An array in row-major order; nothing is ever strided here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub(crate) dims: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

/// The index of the `place`-th element of an array of this shape.
pub(crate) fn index_of(dims: &[usize], mut place: usize) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (at, &dim) in index.iter_mut().zip(dims).rev() {
        *at = place % dim;
        place /= dim;
    }
    index
}

impl Array {
    pub(crate) fn new(dims: &[usize], values: Vec<f64>) -> Self {
        assert_eq!(dims.iter().product::<usize>(), values.len());
        Array { dims: dims.to_vec(), values }
    }

    /// The array whose element at each index is `value(index)`.
    pub(crate) fn from_fn(dims: &[usize], value: impl Fn(&[usize]) -> f64) -> Self {
        let len = dims.iter().product();
        let values = (0..len).map(|place| value(&index_of(dims, place))).collect();
        Array { dims: dims.to_vec(), values }
    }

    /// Multiples of 1/8 between -15/8 and 15/8. Sums and products of a few thousand such numbers
    /// are exact in f32, so every order of summation gives the same bits.
    pub(crate) fn pattern(dims: &[usize], seed: usize) -> Self {
        let len: usize = dims.iter().product();
        let value = |i: usize| ((i * 29 + seed * 7 + i / 11) % 31) as f64 / 8.0 - 1.875;
        Array::new(dims, (0..len).map(value).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn at(&self, index: &[usize]) -> f64 {
        assert_eq!(index.len(), self.dims.len());
        let place = index.iter().zip(&self.dims).fold(0, |place, (&at, &dim)| {
            assert!(at < dim, "{index:?} in {:?}", self.dims);
            place * dim + at
        });
        self.values[place]
    }

    pub(crate) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Array::new(&self.dims, self.values.iter().map(|&x| f(x)).collect())
    }

    pub(crate) fn reshape(&self, dims: &[usize]) -> Self {
        Array::new(dims, self.values.clone())
    }

    pub(crate) fn permute(&self, axes: &[usize]) -> Self {
        let dims: Vec<usize> = axes.iter().map(|&axis| self.dims[axis]).collect();
        Array::from_fn(&dims, |index| {
            let mut from = vec![0; index.len()];
            axes.iter().zip(index).for_each(|(&axis, &at)| from[axis] = at);
            self.at(&from)
        })
    }

    pub(crate) fn narrow(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut dims = self.dims.clone();
        dims[axis] = len;
        Array::from_fn(&dims, |index| {
            let mut from = index.to_vec();
            from[axis] += start;
            self.at(&from)
        })
    }

    pub(crate) fn slice(&self, axis: usize, start: usize, step: usize) -> Self {
        let mut dims = self.dims.clone();
        dims[axis] = (start..self.dims[axis]).step_by(step).count();
        Array::from_fn(&dims, |index| {
            let mut from = index.to_vec();
            from[axis] = start + from[axis] * step;
            self.at(&from)
        })
    }

    pub(crate) fn diagonal(&self, offset: isize, a: usize, b: usize) -> Self {
        let pairs: Vec<(usize, usize)> = (0..self.dims[a])
            .flat_map(|i| (0..self.dims[b]).map(move |j| (i, j)))
            .filter(|&(i, j)| j as isize - i as isize == offset)
            .collect();
        let kept: Vec<usize> =
            (0..self.dims.len()).filter(|&axis| axis != a && axis != b).collect();
        let mut dims: Vec<usize> = kept.iter().map(|&axis| self.dims[axis]).collect();
        dims.push(pairs.len());
        Array::from_fn(&dims, |index| {
            let mut from = vec![0; self.dims.len()];
            kept.iter().zip(index).for_each(|(&axis, &at)| from[axis] = at);
            (from[a], from[b]) = pairs[index[kept.len()]];
            self.at(&from)
        })
    }

    pub(crate) fn unfold(&self, axis: usize, len: usize, step: usize) -> Self {
        let mut dims = self.dims.clone();
        dims[axis] = (0..self.dims[axis] + 1 - len).step_by(step).count();
        dims.push(len);
        Array::from_fn(&dims, |index| {
            let mut from = index[..index.len() - 1].to_vec();
            from[axis] = from[axis] * step + index[index.len() - 1];
            self.at(&from)
        })
    }

    pub(crate) fn select(&self, axis: usize, at: usize) -> Self {
        let mut dims = self.dims.clone();
        dims.remove(axis);
        self.narrow(axis, at, 1).reshape(&dims)
    }

    /// Broadcasts the array: trailing dimensions are aligned, and dimensions of length 1 repeat.
    pub(crate) fn expand(&self, dims: &[usize]) -> Self {
        let added = dims.len() - self.dims.len();
        Array::from_fn(dims, |index| {
            let from = index[added..].iter().zip(&self.dims);
            self.at(&from.map(|(&at, &dim)| if dim == 1 { 0 } else { at }).collect::<Vec<_>>())
        })
    }

    /// Applies `f` to both arrays, each stretched to `dims`.
    pub(crate) fn zip(&self, other: &Array, dims: &[usize], f: impl Fn(f64, f64) -> f64) -> Self {
        let (a, b) = (self.expand(dims), other.expand(dims));
        Array::new(dims, a.values.iter().zip(&b.values).map(|(&a, &b)| f(a, b)).collect())
    }

    pub(crate) fn sum(&self, axes: &[usize]) -> Self {
        let kept: Vec<usize> = (0..self.dims.len()).filter(|axis| !axes.contains(axis)).collect();
        let dims: Vec<usize> = kept.iter().map(|&axis| self.dims[axis]).collect();
        let mut sums = Array::new(&dims, vec![0.0; dims.iter().product()]);
        for (place, value) in self.values.iter().enumerate() {
            let index = index_of(&self.dims, place);
            let to = kept.iter().fold(0, |to, &axis| to * self.dims[axis] + index[axis]);
            sums.values[to] += value;
        }
        sums
    }

    /// Reduces `axes`: `f` gets the elements over `axes` in row-major order, for each index of the
    /// other axes.
    pub(crate) fn reduce(&self, axes: &[usize], f: impl Fn(&[f64]) -> f64) -> Self {
        let is_reduced = |axis: &usize| axes.contains(axis);
        let (last, kept): (Vec<usize>, Vec<usize>) = (0..self.dims.len()).partition(is_reduced);
        let turned = self.permute(&[&kept[..], &last].concat());
        let (dims, rest) = turned.dims.split_at(kept.len());
        let len: usize = rest.iter().product();
        let count: usize = dims.iter().product();
        let values = (0..count).map(|k| f(&turned.values[k * len..(k + 1) * len])).collect();
        Array::new(dims, values)
    }

    /// The position of the first largest element along the last dimension.
    pub(crate) fn argmax(&self) -> Self {
        let (&row_len, dims) = self.dims.split_last().expect("a dimension");
        let best = |row: &[f64]| {
            (0..row_len).fold(0, |best, at| if row[at] > row[best] { at } else { best }) as f64
        };
        Array::new(dims, self.values.chunks(row_len).map(best).collect())
    }

    /// The product by the rules of `torch.matmul`: vectors are rows or columns, batch dimensions
    /// broadcast.
    pub(crate) fn matmul(&self, other: &Array) -> Self {
        let [left, right] = [&self.dims, &other.dims];
        let a = if left.len() == 1 { self.reshape(&[1, left[0]]) } else { self.clone() };
        let b = if right.len() == 1 { other.reshape(&[right[0], 1]) } else { other.clone() };
        let (a_outer, b_outer) = (a.dims.len() - 2, b.dims.len() - 2);
        let outer = a_outer.max(b_outer);
        let dim = |dims: &[usize], own: usize, axis: usize| {
            (axis + own).checked_sub(outer).map_or(1, |axis| dims[axis])
        };
        let batch: Vec<usize> = (0..outer)
            .map(|axis| match [dim(&a.dims, a_outer, axis), dim(&b.dims, b_outer, axis)] {
                [1, other] => other,
                [own, _] => own,
            })
            .collect();
        let (inner, m, n) = (a.dims[a_outer + 1], a.dims[a_outer], b.dims[b_outer + 1]);
        let a = a.expand(&[&batch[..], &[m, inner]].concat());
        let b = b.expand(&[&batch[..], &[inner, n]].concat());
        let y = Array::from_fn(&[&batch[..], &[m, n]].concat(), |at| {
            let (batch, at) = at.split_at(outer);
            let a_at = |k| a.at(&[batch, &[at[0], k]].concat());
            let b_at = |k| b.at(&[batch, &[k, at[1]]].concat());
            (0..inner).map(|k| a_at(k) * b_at(k)).sum()
        });
        let rows = if left.len() == 1 { vec![] } else { vec![m] };
        let cols = if right.len() == 1 { vec![] } else { vec![n] };
        y.reshape(&[batch, rows, cols].concat())
    }
}

/// Calls `visit(output, input, tap)` for every product of a convolution: indices into
/// `[B, O, H', W']`, `[B, I, H, W]` and `[O, I / groups, KH, KW]`.
fn conv2d_products(
    y: &[usize],
    x: &[usize],
    w: &[usize],
    geometry: Conv2dGeometry,
    mut visit: impl FnMut([usize; 4], [usize; 4], [usize; 4]),
) {
    let Conv2dGeometry { stride, padding, dilation, groups } = geometry;
    for place in 0..y.iter().product() {
        let [n, o, p, q] = index_of(y, place)[..] else { unreachable!("four dimensions") };
        let first_channel = o / (w[0] / groups) * w[1];
        for tap in 0..w[1..].iter().product() {
            let [c, kh, kw] = index_of(&w[1..], tap)[..] else { unreachable!("three dimensions") };
            let place = |axis: usize, out: usize, k: usize| {
                (out * stride[axis] + k * dilation[axis])
                    .checked_sub(padding[axis])
                    .filter(|&at| at < x[2 + axis])
            };
            if let (Some(row), Some(col)) = (place(0, p, kh), place(1, q, kw)) {
                visit([n, o, p, q], [n, first_channel + c, row, col], [o, c, kh, kw]);
            }
        }
    }
}

fn place(dims: &[usize], index: [usize; 4]) -> usize {
    index.iter().zip(dims).fold(0, |place, (at, dim)| place * dim + at)
}

pub(crate) fn conv2d_out_dims(x: &[usize], w: &[usize], geometry: Conv2dGeometry) -> Vec<usize> {
    let len = |axis: usize| {
        let reach = geometry.dilation[axis] * (w[2 + axis] - 1) + 1;
        (x[2 + axis] + 2 * geometry.padding[axis] - reach) / geometry.stride[axis] + 1
    };
    vec![x[0], w[0], len(0), len(1)]
}

pub(crate) fn conv2d(x: &Array, w: &Array, b: Option<&Array>, geometry: Conv2dGeometry) -> Array {
    let dims = conv2d_out_dims(&x.dims, &w.dims, geometry);
    let mut y = Array::from_fn(&dims, |at| b.map_or(0.0, |b| b.values[at[1]]));
    conv2d_products(&dims, &x.dims, &w.dims, geometry, |to, from, tap| {
        y.values[place(&dims, to)] += x.at(&from) * w.at(&tap);
    });
    y
}

/// The gradients of x and w.
pub(crate) fn conv2d_backward(
    dy: &Array,
    x: &Array,
    w: &Array,
    geometry: Conv2dGeometry,
) -> [Array; 2] {
    let [mut dx, mut dw] = [x.map(|_| 0.0), w.map(|_| 0.0)];
    conv2d_products(&dy.dims, &x.dims, &w.dims, geometry, |to, from, tap| {
        dx.values[place(&x.dims, from)] += dy.at(&to) * w.at(&tap);
        dw.values[place(&w.dims, tap)] += dy.at(&to) * x.at(&from);
    });
    [dx, dw]
}

/// The largest value of each window, and the gradient of x for `dy(output index)`.
pub(crate) fn max_pool2d(
    x: &Array,
    geometry: Pool2dGeometry,
    options: MaxPool,
    dy: impl Fn(&[usize]) -> f64,
) -> [Array; 2] {
    let Pool2dGeometry { kernel, stride, padding } = geometry;
    let MaxPool { dilation, rounding } = options;
    let len = |axis: usize| {
        let (in_len, reach) = (x.dims[2 + axis], dilation[axis] * (kernel[axis] - 1) + 1);
        let padded = in_len + 2 * padding[axis];
        let starts = (0..).step_by(stride[axis]);
        // A window counts if it fits whole. Another window counts if it starts before the right
        // padding, at most one step after the last window that fits.
        let fits = |&start: &usize| match rounding {
            SizeRounding::Down => start + reach <= padded,
            SizeRounding::Up => {
                start + reach < padded + stride[axis] && start < in_len + padding[axis]
            }
        };
        starts.take_while(fits).count()
    };
    let mut y = Array::from_fn(&[x.dims[0], x.dims[1], len(0), len(1)], |_| f64::NEG_INFINITY);
    let mut dx = x.map(|_| 0.0);
    for at in 0..y.len() {
        let index = index_of(&y.dims, at);
        let mut winner = None;
        for tap in 0..kernel[0] * kernel[1] {
            let place = |axis: usize, k: usize| {
                (index[2 + axis] * stride[axis] + k * dilation[axis])
                    .checked_sub(padding[axis])
                    .filter(|&at| at < x.dims[2 + axis])
            };
            let (Some(row), Some(col)) = (place(0, tap / kernel[1]), place(1, tap % kernel[1]))
            else {
                continue;
            };
            let from = [index[0], index[1], row, col];
            if winner.is_none() || x.at(&from) > y.values[at] {
                (y.values[at], winner) = (x.at(&from), Some(from));
            }
        }
        let from = winner.expect("every window meets x");
        dx.values[self::place(&x.dims, from)] += dy(&index);
    }
    [y, dx]
}

/// The sum and count of the cross-entropy, and the gradient of the logits for `dy`.
pub(crate) fn cross_entropy(
    x: &Array,
    labels: &[i64],
    ignore_index: i64,
    dy: f64,
) -> (f64, f64, Array) {
    let classes = x.dims[1];
    let (mut sum, mut count) = (0.0, 0.0);
    let mut dx = x.map(|_| 0.0);
    for (row, &label) in labels.iter().enumerate().filter(|&(_, &label)| label != ignore_index) {
        let total: f64 = (0..classes).map(|c| x.at(&[row, c]).exp()).sum();
        sum += total.ln() - x.at(&[row, label as usize]);
        count += 1.0;
        for c in 0..classes {
            let onehot = if c as i64 == label { 1.0 } else { 0.0 };
            dx.values[row * classes + c] = dy * (x.at(&[row, c]).exp() / total - onehot);
        }
    }
    (sum, count, dx)
}

/// Weights of all pairs, from which [`attention`] and its gradients are computed.
pub(crate) struct Weights {
    /// [B, H, T, S]
    pub(crate) weights: Array,
    /// [B, H, T]
    pub(crate) log_sum_exp: Array,
}

/// `exp(score) / Σ exp(score)` of `scale · q kᵀ + bias`, 0 where a row has no finite score.
pub(crate) fn attention_weights(q: &Array, k: &Array, bias: &Array, scale: f64) -> Weights {
    let &[batch, heads, queries, dim] = &q.dims[..] else { panic!("{:?}", q.dims) };
    let (keys, shared) = (k.dims[2], heads / k.dims[1].max(1));
    let scores = Array::from_fn(&[batch, heads, queries, keys], |at| {
        let product =
            |c| q.at(&[at[0], at[1], at[2], c]) * k.at(&[at[0], at[1] / shared, at[3], c]);
        scale * (0..dim).map(product).sum::<f64>() + bias.at(at)
    });
    let log_sum_exp = Array::from_fn(&[batch, heads, queries], |at| {
        (0..keys).map(|j| scores.at(&[at[0], at[1], at[2], j]).exp()).sum::<f64>().ln()
    });
    let weights = Array::from_fn(&scores.dims, |at| {
        let lse = log_sum_exp.at(&at[..3]);
        if lse == f64::NEG_INFINITY { 0.0 } else { (scores.at(at) - lse).exp() }
    });
    Weights { weights, log_sum_exp }
}

/// Σ_j weight[i, j] · kept[i, j] · v[j].
pub(crate) fn attention(weights: &Weights, kept: &Array, v: &Array) -> Array {
    let w = &weights.weights;
    let &[batch, heads, queries, keys] = &w.dims[..] else { panic!("{:?}", w.dims) };
    let shared = heads / v.dims[1].max(1);
    Array::from_fn(&[batch, heads, queries, v.dims[3]], |at| {
        let term = |j| {
            let pair = [at[0], at[1], at[2], j];
            w.at(&pair) * kept.at(&pair) * v.at(&[at[0], at[1] / shared, j, at[3]])
        };
        (0..keys).map(term).sum()
    })
}

/// The gradients of q, k and v, pair by pair.
pub(crate) fn attention_backward(
    dy: &Array,
    [q, k, v]: [&Array; 3],
    weights: &Weights,
    kept: &Array,
    scale: f64,
) -> [Array; 3] {
    let w = &weights.weights;
    let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| x.map(|_| 0.0));
    let (keys, shared) = (w.dims[3], w.dims[1] / k.dims[1].max(1));
    let of = |x: &Array, at: [usize; 4]| self::place(&x.dims, at);
    for row in 0..w.dims[..3].iter().product() {
        let [b, h, i] = index_of(&w.dims[..3], row)[..] else { unreachable!("three dimensions") };
        let dweight = |j| -> f64 {
            let term = |c| dy.at(&[b, h, i, c]) * v.at(&[b, h / shared, j, c]);
            kept.at(&[b, h, i, j]) * (0..v.dims[3]).map(term).sum::<f64>()
        };
        let mean: f64 = (0..keys).map(|j| w.at(&[b, h, i, j]) * dweight(j)).sum();
        for j in 0..keys {
            let p = w.at(&[b, h, i, j]);
            let dscore = scale * p * (dweight(j) - mean);
            for c in 0..q.dims[3] {
                let (q_at, k_at) = (of(q, [b, h, i, c]), of(k, [b, h / shared, j, c]));
                dq.values[q_at] += dscore * k.values[k_at];
                dk.values[k_at] += dscore * q.values[q_at];
            }
            for c in 0..v.dims[3] {
                let kept = kept.at(&[b, h, i, j]);
                dv.values[of(v, [b, h / shared, j, c])] += p * kept * dy.at(&[b, h, i, c]);
            }
        }
    }
    [dq, dk, dv]
}
