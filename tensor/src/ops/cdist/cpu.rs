//! Distances from one row to many rows, and their gradient.

use crate::dtype::Element;

/// Computes `to[r] = ‖x - y[r]‖`.
pub(super) fn distances<E: Element>(order: f64, x: &[E], y: &[E], to: &mut [E]) {
    // Each order has its own loop, so that the inner loop has no branch.
    if order == 0.0 {
        of(x, y, to, |sum, d| sum + f64::from(u8::from(d != 0.0)), |sum| sum);
    } else if order == 1.0 {
        of(x, y, to, |sum, d| sum + d, |sum| sum);
    } else if order == 2.0 {
        of(x, y, to, |sum, d| sum + d * d, f64::sqrt);
    } else if order == f64::INFINITY {
        // A NaN remains in the maximum.
        of(x, y, to, |max, d| if d > max || d.is_nan() { d } else { max }, |max| max);
    } else {
        of(x, y, to, |sum, d| sum + d.powf(order), |sum| sum.powf(1.0 / order));
    }
}

fn of<E: Element>(
    x: &[E],
    y: &[E],
    to: &mut [E],
    add: impl Fn(f64, f64) -> f64,
    finish: impl Fn(f64) -> f64,
) {
    for (row, to) in to.iter_mut().enumerate() {
        let y = &y[row * x.len()..][..x.len()];
        let pairs = x.iter().zip(y);
        let sum = pairs.fold(0.0, |sum, (x, y)| add(sum, (x.to_f64() - y.to_f64()).abs()));
        *to = E::from_f64(finish(sum));
    }
}

/// The values of the pairs of one row. The value of pair r is at `start + r · step`.
type Pairs<'a, E> = (&'a [E], usize, usize);

/// Computes `dx[i] = Σ_r dy[r] · f(x[i] - y[r, i], d[r])`, with f the derivative of the distance.
pub(super) fn gradient<E: Element>(
    order: f64,
    pairs: [Pairs<'_, E>; 2],
    x: &[E],
    y: &[E],
    dx: &mut [E],
) {
    let sign = |t: f64| if t == 0.0 { 0.0 } else { t.signum() };
    if order == 0.0 {
        dx.fill(E::ZERO);
    } else if order == 1.0 {
        sums(pairs, x, y, dx, |t, _| sign(t));
    } else if order == 2.0 {
        sums(pairs, x, y, dx, |t, d| t / d);
    } else if order == f64::INFINITY {
        // Every element equal to the maximum gets the whole gradient, as in PyTorch. d was rounded
        // to E.
        sums(
            pairs,
            x,
            y,
            dx,
            |t, d| {
                if E::from_f64(t.abs()).to_f64() == d { sign(t) } else { 0.0 }
            },
        );
    } else {
        sums(pairs, x, y, dx, |t, d| {
            if t == 0.0 { 0.0 } else { sign(t) * (t.abs() / d).powf(order - 1.0) }
        });
    }
}

fn sums<E: Element>(
    [dy, d]: [Pairs<'_, E>; 2],
    x: &[E],
    y: &[E],
    dx: &mut [E],
    derivative: impl Fn(f64, f64) -> f64,
) {
    let at = |(data, start, step): Pairs<'_, E>, row: usize| data[start + row * step].to_f64();
    for (i, dx) in dx.iter_mut().enumerate() {
        let mut sum = 0.0;
        for row in 0..y.len() / x.len() {
            let (dy, d) = (at(dy, row), at(d, row));
            if d != 0.0 {
                sum += dy * derivative(x[i].to_f64() - y[row * x.len() + i].to_f64(), d);
            }
        }
        *dx = E::from_f64(sum);
    }
}
