use lowtide_tensor::testing::cuda::divisor;

#[test]
fn divisors_divide_every_number_below_their_bound_as_a_division_does() {
    let near = |x: u64| x.saturating_sub(2)..=x + 2;
    let sizes = (1..200).chain((5..31).flat_map(|bits| near(1 << bits)));
    for size in sizes.filter(|size| (1..1 << 31).contains(size)) {
        let [both, shift] = divisor(size as usize);
        assert_eq!(both & 0xffff_ffff, size);
        let magic = both >> 32;
        let most = (1 << 31) - 1;
        let multiples = (0..40).map(|k| most / size / 40 * k * size);
        let places = multiples.chain([most, 3 * size, most / size * size]).flat_map(near);
        for n in places.filter(|n| *n <= most) {
            let sum = ((n * magic) >> 32) + n;
            assert!(sum < 1 << 32, "{n} by {size}");
            assert_eq!(sum >> shift, n / size, "{n} by {size}");
        }
    }
}
