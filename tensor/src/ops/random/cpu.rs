//! Conversion of the words of a key's stream to random numbers.

use super::Distribution;
use crate::cpu::tiles::Source;
use crate::dtype::Element;
use crate::random::RandomKey;

/// The constant 2^-32.
const WORD: f64 = 1.0 / (1u64 << 32) as f64;

/// The numbers of a stream, in the form of a source.
pub(super) struct Numbers {
    key: RandomKey,
    distribution: Distribution,
    digits: u32,
}

impl Numbers {
    pub(super) fn new(key: RandomKey, distribution: Distribution, digits: u32) -> Self {
        Numbers { key, distribution, digits }
    }

    /// The four numbers of a block: number `4 · block` and its successors.
    #[inline(always)]
    fn block(&self, block: usize) -> [f64; 4] {
        let words = self.key.block(block as u64);
        match self.distribution {
            Distribution::Uniform { low, high } => {
                let scale = f64::from(1u32 << self.digits);
                let unit = |word: u32| f64::from(word >> (32 - self.digits)) / scale;
                words.map(|word| low + (high - low) * unit(word))
            }
            Distribution::Normal { mean, deviation } => {
                let [a, b] = [[words[0], words[1]], [words[2], words[3]]].map(normal_pair);
                [a[0], a[1], b[0], b[1]].map(|z| mean + deviation * z)
            }
            Distribution::Bernoulli { probability } => {
                words.map(|word| f64::from(u8::from(f64::from(word) * WORD < probability)))
            }
        }
    }
}

impl<T: Element> Source<T> for Numbers {
    fn write(&self, from: usize, to: &mut [T]) {
        let mut at = from;
        let mut rest = to;
        while !rest.is_empty() {
            let block = self.block(at / 4);
            let numbers = &block[at % 4..];
            let len = numbers.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.iter_mut().zip(numbers).for_each(|(to, &x)| *to = T::from_f64(x));
            at += len;
            rest = later;
        }
    }
}

/// Two independent normal numbers with mean 0 and standard deviation 1.
fn normal_pair([a, b]: [u32; 2]) -> [f64; 2] {
    // The number is in (0, 1], so its logarithm is finite.
    let radius = (-2.0 * ((f64::from(a) + 1.0) * WORD).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * (f64::from(b) * WORD)).sin_cos();
    [radius * cos, radius * sin]
}

/// Fisher and Yates' shuffle in the form of Durstenfeld, "Algorithm 235: random permutation"
/// (1964). Step `i` swaps element `i` with one of the first `i + 1`, drawn by block `i` of the
/// stream.
pub(super) fn permute(key: RandomKey, to: &mut [i64]) {
    (0..).zip(&mut *to).for_each(|(number, to)| *to = number);
    for i in (1..to.len()).rev() {
        let [low, high, ..] = key.block(i as u64).map(u128::from);
        let chosen = ((high << 32 | low) * (i as u128 + 1)) >> 64;
        to.swap(i, chosen as usize);
    }
}
