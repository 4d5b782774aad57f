//! A new random order in each epoch, without a table.

use crate::sampler::order::{EpochKey, Order, Sampler};
use crate::sampler::rng::epoch_rng;
use rand_core::Rng;

/// Visits every sample once, in a new random order in each epoch, without the table of indices that
/// [`Shuffled`](crate::Shuffled) has. Suits datasets whose table would be too large: an epoch
/// begins at once and takes 80 bytes.
///
/// The order is a Feistel network on the numbers below the next power of 4, whose round keys are
/// the first numbers of the ChaCha8 stream of seed and epoch. Numbers outside the dataset go
/// through the network again (J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains",
/// CT-RSA 2002). As with any generator, only a part of all permutations of a large set can occur.
/// The order depends on neither platform nor version.
#[derive(Debug, Clone, Copy, Default)]
pub struct Permuted;

impl Sampler for Permuted {
    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order> {
        let mut rng = epoch_rng(key, b"lowtide::permute");
        Box::new(Feistel {
            keys: std::array::from_fn(|_| rng.next_u64()),
            half_bits: half_bits(len as u64),
            len: len as u64,
        })
    }
}

const ROUNDS: usize = 8;

struct Feistel {
    keys: [u64; ROUNDS],
    /// Number of bits in each half, 1 to 32.
    half_bits: u32,
    len: u64,
}

/// Half the number of bits of the largest number below `len`, rounded up.
fn half_bits(len: u64) -> u32 {
    let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
    bits.div_ceil(2).max(1)
}

impl Feistel {
    /// One step of a permutation of the numbers below `4^half_bits`.
    fn permute(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

impl Order for Feistel {
    fn sample(&self, position: usize) -> usize {
        // The loop ends because a permutation returns to its start. The loop takes fewer than 4
        // steps on average, because the domain has less than 4 times `len` numbers.
        let mut number = self.permute(position as u64);
        while number >= self.len {
            number = self.permute(number);
        }
        number as usize
    }
}

/// The finaliser of MurmurHash3 (A. Appleby): every bit of the result depends on every bit of `x`.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::half_bits;

    #[test]
    fn domain_is_the_least_power_of_4_that_has_every_index() {
        let cases = [(0, 1), (1, 1), (4, 1), (5, 2), (16, 2), (17, 3), (1 << 20, 10)];
        for (len, bits) in cases {
            assert_eq!(half_bits(len), bits, "{len}");
        }
        assert_eq!((half_bits(u64::MAX), half_bits((1 << 62) + 1)), (32, 32));
    }
}
