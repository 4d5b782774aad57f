use lowtide_tensor::testing::cpu::{copy_uncached, fence};

#[test]
fn copies_every_length_from_and_to_every_place() {
    let from: Vec<u8> = (0..=255).collect();
    for start in 0..16 {
        for len in (0..70).chain([200]) {
            let mut to = [7_u8; 256];
            copy_uncached(&from[start..][..len], &mut to[16 - start..][..len]);
            fence();
            let (before, rest) = to.split_at(16 - start);
            let (copied, after) = rest.split_at(len);
            assert_eq!(copied, &from[start..][..len]);
            assert!(before.iter().chain(after).all(|&x| x == 7), "{start}, {len}");
        }
    }
}

#[test]
#[should_panic(expected = "assertion")]
fn refuses_slices_of_different_length() {
    copy_uncached(&[1.0_f32, 2.0], &mut [0.0]);
}
