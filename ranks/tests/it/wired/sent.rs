//! The bytes that collectives send.

use lowtide_ranks::{Collectives, Result};
use lowtide_tensor::{DType, Tensor};

use super::common::{PATIENT, cpu};
use super::engine::{OneRank, counted_ranks};

/// Largest size of the messages of a collective without its tensor.
const WORDS_BYTES_MAX: usize = 400;

/// A collective on a tensor whose parts have the given length.
type Operation = fn(&OneRank, &mut Tensor, usize) -> Result<()>;

/// For each collective, how many times a rank sends all but one part of a tensor.
const SHARES: [(usize, Operation); 4] = [
    (2, |rank, x, _| rank.all_reduce(x)),
    (1, |rank, x, part_len| rank.reduce_part(x, part_len)),
    (1, |rank, x, part_len| rank.gather_parts(x, part_len)),
    (0, |rank, _, _| rank.barrier()),
];

/// A sum of parts or a gather of parts sends `(n - 1) / n` of the bytes of a tensor, as in a ring.
#[test]
fn a_rank_sends_the_bytes_of_the_formula() {
    for count in [2, 3, 4, 8] {
        let part_len = 5 << 16;
        for (shares, operation) in SHARES {
            let (ranks, sent_bytes) = counted_ranks(count, PATIENT);
            std::thread::scope(|scope| {
                for rank in &ranks {
                    scope.spawn(move || {
                        let mut x = Tensor::zeros(&cpu(), [count * part_len], DType::F32).unwrap();
                        operation(rank, &mut x, part_len).unwrap();
                    });
                }
            });
            let expected = shares * 4 * part_len * (count - 1);
            for rank in 0..count {
                let words = sent_bytes(rank) - expected;
                assert!(words < WORDS_BYTES_MAX * (count - 1), "{words} of {count} ranks");
            }
        }
    }
}
