use lowtide_tensor::testing::{Positions, Walked, merged};

#[test]
fn whole_inner_dimensions_join_the_ones_around_them() {
    let whole = |len: usize, stride: usize| Walked {
        len,
        stride,
        out_len: len,
        positions: Positions::Cycle { start: 0 },
    };
    let joined = |dimensions: &[Walked]| -> Vec<(usize, usize, Positions)> {
        merged(dimensions).iter().map(|d| (d.out_len, d.stride, d.positions)).collect()
    };
    let roll = Walked { positions: Positions::Cycle { start: 2 }, ..whole(3, 20) };
    let all = joined(&[roll, whole(4, 5), whole(5, 1)]);
    assert_eq!(all, [(60, 1, Positions::Cycle { start: 40 })]);
    let pad = Walked { out_len: 7, positions: Positions::Pad { before: 3 }, ..whole(3, 20) };
    let all = joined(&[pad, whole(20, 1)]);
    assert_eq!(all, [(140, 1, Positions::Pad { before: 60 })]);
    // Neither a gap in x nor a reversed order can be walked in one go.
    assert_eq!(joined(&[whole(3, 21), whole(20, 1)]).len(), 2);
    let flip = Walked { positions: Positions::Flip, ..whole(3, 20) };
    assert_eq!(joined(&[flip, whole(20, 1)]).len(), 2);
    assert_eq!(joined(&[whole(3, 20), Walked { stride: 1, ..flip }]).len(), 2);
    assert_eq!(joined(&[whole(1, 9), whole(1, 7)]).len(), 1);
}
