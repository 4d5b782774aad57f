use lowtide_tensor::cuda::gate::{Argument, Grid, Signature};
use proptest::prelude::*;

use super::{Lab, Read, U32, U64, Words, Write, assert_close, divisor, noise};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

fn tiles(len: usize) -> u32 {
    len.div_ceil(64) as u32
}

const NAMES: [[&str; 2]; 2] =
    [["matmul_nn_f32", "matmul_nt_f32"], ["matmul_tn_f32", "matmul_tt_f32"]];

#[test]
fn matrices_are_multiplied_as_by_their_twin() {
    let Some(lab) = Lab::open() else { return };
    let size = || prop_oneof![3 => 1..20_usize, 1 => 60..80_usize];
    let sizes = (size(), size(), prop_oneof![1 => 0..1_usize, 6 => 1..40_usize], 1..3_usize);
    let kinds = any::<[bool; 4]>();
    proptest!(config(20), |((m, n, k, batch) in sizes, kinds in kinds, seed in 0..100_u64)| {
        let [is_a_turned, is_b_turned, adds, has_bias] = kinds;
        let (a, b) = (noise(batch * m * k, seed), noise(batch * k * n, seed + 1));
        let (bias, before) = (noise(n, seed + 2), noise(batch * m * n, seed + 3));
        // Number of elements from a row to the next and from a column to the next.
        let [a_row, a_column] = if is_a_turned { [1, m] } else { [k, 1] };
        let [b_row, b_column] = if is_b_turned { [1, k] } else { [n, 1] };
        let mut expected = Vec::new();
        for (matrix, row, column) in (0..batch)
            .flat_map(|matrix| (0..m).flat_map(move |row| (0..n).map(move |c| (matrix, row, c))))
        {
            let of = |values: &[f32], at: usize| f64::from(values[at]);
            let products = (0..k).map(|i| {
                let a = of(&a, matrix * m * k + row * a_row + i * a_column);
                a * of(&b, matrix * k * n + i * b_row + column * b_column)
            });
            let mut sum: f64 = products.sum();
            sum += if has_bias { of(&bias, column) } else { 0.0 };
            sum += if adds { of(&before, (matrix * m + row) * n + column) } else { 0.0 };
            expected.push(sum);
        }
        let sizes = [m, n, k, a_row, a_column, m * k, b_row, b_column, k * n, n, 1, m * n];
        let words = sizes.map(|size| size as u64);
        let name = NAMES[usize::from(is_a_turned)][usize::from(is_b_turned)];
        let kernel = Signature { name, parameters: &[Write, Read, Read, Read, U32, Words(12)] };
        let [a, b, bias] = [&a, &b, &bias].map(|values| lab.floats(values));
        lab.in_each_order(|| {
            let c = if adds { lab.floats(&before) } else { lab.room(4 * batch * m * n) };
            let bias = if has_bias { bias.read() } else { Argument::Nothing };
            let adds = Argument::U32(u32::from(adds));
            let arguments = [c.write(), a.read(), b.read(), bias, adds, Argument::Words(&words)];
            let blocks = [tiles(n), tiles(m), batch as u32];
            let grid = Grid { blocks, threads: [256, 1, 1], shared_bytes: 0 };
            lab.run("matmul_f32", kernel, grid, &arguments);
            assert_close(&lab.floats_of(&c), &expected, k + 2, 4.0);
        });
    });
}

/// Sizes of a convolution; pairs are (height, width).
#[derive(Clone, Copy, Debug)]
struct Conv {
    images: usize,
    groups: usize,
    in_channels: usize,
    out_channels: usize,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl Conv {
    fn out_size(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            let room = (self.size[axis] + 2 * self.padding[axis]).checked_sub(reach);
            room.map_or(0, |room| room / self.stride[axis] + 1)
        })
    }

    fn words(&self) -> Vec<u64> {
        let Conv { images, groups, in_channels, out_channels, size, kernel, .. } = *self;
        let ([oh, ow], [sh, sw]) = (self.out_size(), self.stride);
        let ([ph, pw], [dh, dw]) = (self.padding, self.dilation);
        let [[h, w], [kh, kw]] = [size, kernel];
        let counts = [images, groups, in_channels, out_channels, h, w, oh, ow];
        let words = [counts, [kh, kw, sh, sw, ph, pw, dh, dw]].concat();
        let divisors = [kh * kw, kw, h * w, w, oh * ow, ow, sh, sw];
        let words = words.into_iter().map(|word| word as u64);
        words.chain(divisors.into_iter().flat_map(divisor)).collect()
    }

    /// Calls `work` with the indices of every product: in x, in w and in y.
    fn products(&self, mut work: impl FnMut(usize, usize, usize)) {
        let ([h, w], [kh, kw], [oh, ow]) = (self.size, self.kernel, self.out_size());
        let (ins, outs) = (self.in_channels, self.out_channels);
        let place = |axis: usize, out: usize, tap: usize| {
            let at = out * self.stride[axis] + tap * self.dilation[axis];
            at.checked_sub(self.padding[axis]).filter(|&at| at < self.size[axis])
        };
        for (image, group) in pairs(self.images, self.groups) {
            for (o, c) in pairs(outs, ins) {
                for ((y, x), (i, j)) in
                    pairs(oh, ow).flat_map(|out| pairs(kh, kw).map(move |tap| (out, tap)))
                {
                    let (Some(row), Some(column)) = (place(0, y, i), place(1, x, j)) else {
                        continue;
                    };
                    let plane = (image * self.groups + group) * ins + c;
                    let filter = (group * outs + o) * ins + c;
                    let out_plane = (image * self.groups + group) * outs + o;
                    work(
                        (plane * h + row) * w + column,
                        (filter * kh + i) * kw + j,
                        (out_plane * oh + y) * ow + x,
                    );
                }
            }
        }
    }
}

fn pairs(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
}

fn convs() -> impl Strategy<Value = Conv> {
    let pair = |low: usize, high: usize| [low..high, low..high];
    let counts = (1..3_usize, 1..3_usize, 1..4_usize, 1..5_usize);
    let windows = (pair(1, 9), pair(1, 4), pair(1, 4), pair(0, 3), pair(1, 3));
    (counts, windows).prop_map(|(counts, (size, kernel, stride, padding, dilation))| {
        let (images, groups, in_channels, out_channels) = counts;
        let counts = Conv {
            images,
            groups,
            in_channels,
            out_channels,
            size,
            kernel,
            stride,
            padding,
            dilation,
        };
        // The image has room for a window.
        let reach = [0, 1].map(|axis| dilation[axis] * (kernel[axis] - 1) + 1);
        Conv { size: [0, 1].map(|axis| size[axis].max(reach[axis])), ..counts }
    })
}

#[test]
fn convolutions_and_their_gradients_are_those_of_their_twins() {
    let Some(lab) = Lab::open() else { return };
    let parameters = &[Write, Read, Read, Read, Words(32)];
    let forward = Signature { name: "conv2d_f32", parameters };
    let of_input = Signature { name: "conv2d_backward_input_f32", parameters };
    let parameters = &[Write, Write, Read, Read, U32, Words(32)];
    let of_weight = Signature { name: "conv2d_backward_weight_f32", parameters };
    let of_parts = Signature { name: "conv2d_sum_parts_f32", parameters: &[Write, Read, U32, U64] };
    let cases = (convs(), any::<bool>(), 1..5_u32);
    proptest!(config(16), |((conv, has_bias, part_count) in cases, seed in 0..100_u64)| {
        let [height, width] = conv.size;
        let [out_height, out_width] = conv.out_size();
        let (in_channels, out_channels) = (conv.in_channels, conv.out_channels);
        let kernel_len = conv.kernel[0] * conv.kernel[1];
        let filter_count = conv.groups * out_channels;
        let x = noise(conv.images * conv.groups * in_channels * height * width, seed);
        let w = noise(filter_count * in_channels * kernel_len, seed + 1);
        let dy = noise(conv.images * filter_count * out_height * out_width, seed + 2);
        let bias = noise(filter_count, seed + 3);
        let in_bias = noise(conv.groups * in_channels, seed + 4);
        let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
        if has_bias {
            for (at, y) in y.iter_mut().enumerate() {
                *y = f64::from(bias[at / (out_height * out_width) % filter_count]);
            }
            for (at, dx) in dx.iter_mut().enumerate() {
                *dx = f64::from(in_bias[at / (height * width) % in_bias.len()]);
            }
        }
        conv.products(|at_x, at_w, at_y| {
            let [x, w, dy] = [x[at_x], w[at_w], dy[at_y]].map(f64::from);
            y[at_y] += x * w;
            dx[at_x] += dy * w;
            dw[at_w] += dy * x;
        });
        let words = conv.words();
        let sizes = Argument::Words(&words);
        let [x, w, dy_values] = [&x, &w, &dy].map(|values| lab.floats(values));
        let [bias, in_bias] = [&bias, &in_bias].map(|values| lab.floats(values));
        let pixels = conv.images * height * width;
        let out_pixels = conv.images * out_height * out_width;
        let tap_count = in_channels * kernel_len;
        let groups = conv.groups as u32;
        let grid = |columns: usize, rows: usize| Grid {
            blocks: [tiles(columns), tiles(rows), groups],
            threads: [256, 1, 1],
            shared_bytes: 0,
        };
        lab.in_each_order(|| {
            let found = lab.room(4 * y.len());
            let [bias, in_bias] = [&bias, &in_bias]
                .map(|bias| if has_bias { bias.read() } else { Argument::Nothing });
            let arguments = [found.write(), x.read(), w.read(), bias, sizes];
            lab.run("conv2d_f32", forward, grid(out_pixels, out_channels), &arguments);
            assert_close(&lab.floats_of(&found), &y, tap_count + 1, 4.0);

            let found = lab.room(4 * dx.len());
            let arguments = [found.write(), dy_values.read(), w.read(), in_bias, sizes];
            lab.run("conv2d_f32", of_input, grid(pixels, in_channels), &arguments);
            assert_close(&lab.floats_of(&found), &dx, out_channels * kernel_len + 1, 4.0);

            let found = lab.room(4 * dw.len());
            let parts = lab.room(4 * dw.len() * part_count as usize);
            let to_parts = if part_count > 1 { parts.write() } else { Argument::Nothing };
            let count = Argument::U32(part_count);
            let arguments = [found.write(), to_parts, x.read(), dy_values.read(), count, sizes];
            let mut on_tiles = grid(tap_count, out_channels);
            on_tiles.blocks[2] *= part_count;
            lab.run("conv2d_f32", of_weight, on_tiles, &arguments);
            if part_count > 1 {
                let len = Argument::U64(dw.len() as u64);
                let arguments = [found.write(), parts.read(), count, len];
                lab.run("conv2d_f32", of_parts, Grid::row(2, 64), &arguments);
            }
            assert_close(&lab.floats_of(&found), &dw, out_pixels, 4.0);
        });
    });
}

/// Products of half types in tall tiles are compared with other tiles. The twin would take too
/// long: only large products use tall tiles.
#[test]
fn convolutions_in_tall_tiles_have_the_bits_of_others() {
    let Some(lab) = Lab::open() else { return };
    const FILE: &str = "channels_last_bf16";
    let [images, groups, depth, rows, part_count] = [2, 2, 24, 132, 3];
    let ([height, width], [out_height, out_width]) = ([9, 8], [5, 8]);
    let (kernel, stride, padding, dilation) = ([3, 3], [2, 1], [1, 1], [1, 1]);
    // The upper half of an f32 is a bf16.
    let halves = |len: usize, seed: u64| {
        let noise = noise(len, seed).into_iter();
        lab.bytes(
            &noise
                .flat_map(|value| value.to_be_bytes().into_iter().take(2).rev())
                .collect::<Vec<u8>>(),
        )
    };
    let words = |sizes: [[usize; 2]; 2], places: [usize; 2]| -> Vec<u64> {
        let [source, result] = sizes;
        let side = |axis: usize| {
            [source, result, kernel, stride, padding, dilation].map(|pair: [usize; 2]| pair[axis])
        };
        let sizes = [images, groups, depth, rows].into_iter().chain(side(0)).chain(side(1));
        let divisors = [places[0] * places[1], places[1]].into_iter().flat_map(divisor);
        sizes.map(|size| size as u64).chain(divisors).collect()
    };
    let grid = |columns: usize, tile_rows: usize, layers: usize| Grid {
        blocks: [columns.div_ceil(128) as u32, rows.div_ceil(tile_rows) as u32, layers as u32],
        threads: [256, 1, 1],
        shared_bytes: 0,
    };
    let [small, large] = [[out_height, out_width], [height, width]];
    let pixels = |[height, width]: [usize; 2]| images * height * width;
    let (w, bias) = (halves(groups * rows * 9 * depth, 1), halves(groups * rows, 2));
    let parameters = &[Write, Read, Read, Read, Words(20)];
    // Forward, and the gradient with separate places of each phase for rows 0, 2, .. and 1, 3, ..
    for (names, sizes, places, phases) in [
        (["channels_last_conv2d_bf16", "channels_last_tall_conv2d_bf16"], [large, small], small, 1),
        (
            ["channels_last_backward_input_bf16", "channels_last_tall_backward_input_bf16"],
            [small, large],
            [out_height, width],
            2,
        ),
    ] {
        let source = halves(pixels(sizes[0]) * groups * depth, 3);
        let words = words(sizes, places);
        lab.in_each_order(|| {
            let found = [(names[0], 64), (names[1], 128)].map(|(name, tile_rows)| {
                let y = lab.room(2 * groups * rows * pixels(sizes[1]));
                let sizes = Argument::Words(&words);
                let arguments = [y.write(), source.read(), w.read(), bias.read(), sizes];
                let grid = grid(pixels(places), tile_rows, groups * phases);
                lab.run(FILE, Signature { name, parameters }, grid, &arguments);
                lab.bytes_of(&y)
            });
            assert!(found[0].iter().any(|&byte| byte != found[0][0]));
            assert_eq!(found[0], found[1], "{}", names[1]);
        });
    }
    let x = halves(pixels(large) * groups * depth, 4);
    let dy = halves(pixels(small) * groups * rows.next_multiple_of(8), 5);
    let words = words([large, small], small);
    let parameters = &[Write, Read, Read, U32, Words(20)];
    let names = ["channels_last_backward_weight_bf16", "channels_last_tall_backward_weight_bf16"];
    lab.in_each_order(|| {
        let found = [(names[0], 64), (names[1], 128)].map(|(name, tile_rows)| {
            let parts = lab.room(4 * part_count * groups * rows * 9 * depth);
            let (count, sizes) = (Argument::U32(part_count as u32), Argument::Words(&words));
            let arguments = [parts.write(), x.read(), dy.read(), count, sizes];
            let grid = grid(9 * depth, tile_rows, groups * part_count);
            lab.run(FILE, Signature { name, parameters }, grid, &arguments);
            lab.bytes_of(&parts)
        });
        assert!(found[0].iter().any(|&byte| byte != found[0][0]));
        assert_eq!(found[0], found[1], "{}", names[1]);
    });
}
