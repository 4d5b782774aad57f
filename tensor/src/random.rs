//! Counter-based random numbers: a value is a function of its key and its place, but not of the
//! thread, the order of calls or the number of draws.

/// The Philox4x32 multipliers and Weyl constants of Salmon, Moraes, Dror and Shaw, "Parallel
/// random numbers: as easy as 1, 2, 3" (SC 2011).
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The key of a stream of random numbers: seed, training step and operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomKey {
    seed: u64,
    step: u64,
    op: u64,
}

impl RandomKey {
    /// The root key of all random numbers in a run.
    pub const fn new(seed: u64) -> Self {
        RandomKey { seed, step: 0, op: 0xCBF2_9CE4_8422_2325 }
    }

    /// The streams of training step `step`.
    #[must_use]
    pub const fn step(self, step: u64) -> Self {
        RandomKey { step, ..self }
    }

    /// The stream of an operation or module called `name`; names nest as paths do.
    #[must_use]
    pub const fn op(self, name: &str) -> Self {
        // FNV-1a, 64 bit (Fowler, Noll, Vo), with a separator so that "ab" is not "a" then "b".
        let bytes = name.as_bytes();
        let mut hash = (self.op ^ 0x2F).wrapping_mul(0x0100_0000_01B3);
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01B3);
            at += 1;
        }
        RandomKey { op: hash, ..self }
    }

    /// Four 32-bit words at place `counter` of this stream.
    ///
    /// Philox's key is the seed; its counter is the place (low 64 bits) and a mix of step and
    /// operation (high 64 bits).
    pub fn block(&self, counter: u64) -> [u32; 4] {
        let [seed, stream] = self.stream_words();
        let words = |x: u64| [x as u32, (x >> 32) as u32];
        let ([c0, c1], [c2, c3]) = (words(counter), words(stream));
        philox4x32([c0, c1, c2, c3], words(seed))
    }

    /// A mix of step and operation.
    #[inline(always)]
    const fn stream(&self) -> u64 {
        self.op ^ self.step.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// The seed and the stream. A block depends on both and on its place.
    pub(crate) fn stream_words(&self) -> [u64; 2] {
        [self.seed, self.stream()]
    }

    /// [`RandomKey::block`] of the places `counter..counter + N`, word by word: `[w][i]` is word
    /// `w` of block `counter + i`. The compiler vectorises this function.
    #[inline(always)]
    pub(crate) fn blocks<const N: usize>(&self, counter: u64) -> [[u32; N]; 4] {
        let stream = self.stream();
        let (mut c0, mut c1) = ([0; N], [0; N]);
        let (mut c2, mut c3) = ([stream as u32; N], [(stream >> 32) as u32; N]);
        for i in 0..N {
            let place = counter.wrapping_add(i as u64);
            (c0[i], c1[i]) = (place as u32, (place >> 32) as u32);
        }
        let mut key = [self.seed as u32, (self.seed >> 32) as u32];
        for _ in 0..ROUNDS {
            for i in 0..N {
                let wide0 = u64::from(MULTIPLIERS[0]) * u64::from(c0[i]);
                let wide1 = u64::from(MULTIPLIERS[1]) * u64::from(c2[i]);
                c0[i] = (wide1 >> 32) as u32 ^ c1[i] ^ key[0];
                c1[i] = wide1 as u32;
                c2[i] = (wide0 >> 32) as u32 ^ c3[i] ^ key[1];
                c3[i] = wide0 as u32;
            }
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        [c0, c1, c2, c3]
    }

    /// The `index`-th uniform number in `[0, 1)`, of 24 random bits, exact in f32.
    pub fn uniform(&self, index: u64) -> f32 {
        let word = self.block(index / 4)[(index % 4) as usize];
        (word >> 8) as f32 / (1 << 24) as f32
    }
}

/// Philox4x32-10.
pub(crate) fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let product = |i: usize, x: u32| {
        let wide = u64::from(MULTIPLIERS[i]) * u64::from(x);
        ((wide >> 32) as u32, wide as u32)
    };
    for _ in 0..ROUNDS {
        let (high0, low0) = product(0, counter[0]);
        let (high1, low1) = product(1, counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}
