use lowtide_tensor::RandomKey;
use lowtide_tensor::testing::{philox4x32, random_blocks};

/// Known answers from Random123's `kat_vectors` (Salmon et al.), philox4x32 10.
#[test]
fn philox_matches_the_published_vectors() {
    assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(
        philox4x32([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    assert_eq!(
        philox4x32(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0]
        ),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

#[test]
fn blocks_in_lanes_are_the_blocks() {
    let key = RandomKey::new(0x1234_5678_9ABC_DEF0).op("a").step(5);
    for first in [0, 7, u64::from(u32::MAX) - 2] {
        let lanes = random_blocks(&key, first);
        for i in 0..8 {
            assert_eq!(lanes.map(|words| words[i]), key.block(first + i as u64));
        }
    }
}

#[test]
fn streams_differ_by_seed_step_and_path() {
    let key = RandomKey::new(7);
    let first = key.op("a").op("b").block(0);
    for other in [key.op("ab"), key.op("a").op("b").step(1), RandomKey::new(8).op("a").op("b")] {
        assert_ne!(first, other.block(0));
    }
    assert_eq!(first, RandomKey::new(7).op("a").op("b").block(0));
}
