use lowtide_allocator::Stream;
use lowtide_allocator::cuda::pretend::is_sanitized;
use lowtide_tensor::cuda::gate::{Argument, Grid, Signature};

use crate::gpu::Gpu;
use crate::launches::{COPY, ORDERS, REVERSE, SUM_TREE, basics, block_of, launch, planted};

/// Number of floats in each block.
const LEN: usize = 128;

/// The complaint about a launch of one kernel on blocks that hold `LEN` floats each.
fn complaint(gpu: &Gpu, kernel: &Signature, grid: Grid, rest: &[Argument<'_>]) -> Option<String> {
    let (streams, memory) = gpu.memory();
    let module = if kernel.name == SUM_TREE.name { basics } else { planted };
    let function = module(streams.device()).function(kernel).unwrap();
    let blocks = [0.0; 3].map(|value| block_of(&streams, &memory, &[value; LEN]));
    let [y, other, x] = &blocks;
    let bytes = 0..4 * LEN;
    let mut arguments = vec![Argument::write(y, bytes.clone())];
    if kernel.name == SUM_TREE.name {
        arguments.push(Argument::write(other, bytes.clone()));
    }
    arguments.push(Argument::read(x, bytes));
    arguments.extend(rest);
    launch(&streams, Stream::DEFAULT, &function, grid, &arguments).unwrap();
    let result = streams.device().synchronize();
    let complaint = gpu.pretend.complaint();
    assert_eq!(result.is_err_and(|error| error.is_fault()), complaint.is_some(), "{complaint:?}");
    complaint
}

/// Checks two launches. The last index of the first is the last of its array. An index of the
/// second goes one further and ends the device, whose complaint has the words of the watch.
fn check(
    kernel: &Signature,
    right: (Grid, &[Argument<'_>]),
    wrong: (Grid, &[Argument<'_>]),
    [watched, sanitized]: [&str; 2],
) {
    let Some(gpu) = Gpu::pretend() else { return };
    let words = if is_sanitized() { sanitized } else { watched };
    for order in ORDERS {
        gpu.pretend.threads(order);
        assert_eq!(complaint(&gpu, kernel, right.0, right.1), None, "{order:?}");
        let found = complaint(&gpu, kernel, wrong.0, wrong.1).unwrap_or_default();
        assert!(found.starts_with(kernel.name) && found.contains(words), "{order:?}: {found}");
        assert!(found.contains("thread ("), "{order:?}: {found}");
        gpu.reset();
    }
}

#[test]
fn read_one_past_an_allocation_is_found_out() {
    let grid = Grid::row(3, 64);
    let of = |which| [Argument::U64(LEN as u64), Argument::I32(which)];
    let words = ["reads 4 bytes at 512 of the 512", "AddressSanitizer: use-after-poison"];
    check(&COPY, (grid, &of(0)), (grid, &of(1)), words);
}

#[test]
fn write_one_past_an_allocation_is_found_out() {
    let grid = Grid::row(3, 64);
    let of = |which| [Argument::U64(LEN as u64), Argument::I32(which)];
    let words = ["writes 4 bytes at 512 of the 512", "AddressSanitizer: use-after-poison"];
    check(&COPY, (grid, &of(0)), (grid, &of(2)), words);
}

#[test]
fn index_one_past_a_shared_array_is_found_out() {
    // The array has 64 elements, one for each thread.
    let of = |threads| (Grid::row(1, threads), &[Argument::I32(0)][..]);
    let words = ["an index outside its array", "AddressSanitizer: global-buffer-overflow"];
    check(&REVERSE, of(64), of(65), words);
}

#[test]
fn index_one_past_the_shared_memory_of_a_launch_is_found_out() {
    let of = |len: u32| (Grid { shared_bytes: 4 * len, ..Grid::row(1, 64) }, &[][..]);
    let words = ["4 bytes at", "AddressSanitizer: use-after-poison"];
    check(&SUM_TREE, of(64), of(63), words);
}
