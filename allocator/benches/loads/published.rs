//! Loads that others have published as benchmarks or stress tests, rebuilt from their descriptions.
//!
//! The random numbers differ from the originals, and so does the exact sequence. Probabilities,
//! sizes, limits and orders are the same.
//!
//! - RMM (rapidsai/rmm, Apache-2.0): `cpp/benchmarks/random_allocations` and
//!   `cpp/benchmarks/multi_stream_allocations`.
//! - CubeCL (tracel-ai/cubecl, MIT or Apache-2.0): `crates/cubecl-runtime/benches/dynamic.rs`.
//! - The BFC allocator of TensorFlow and XLA (Apache-2.0): `BM_Allocation`,
//!   `BM_AllocationThreaded` and `BM_AllocationDelayed` of `gpu_bfc_allocator_test.cc`.
//! - PyTorch (BSD-3): `test_allocator_fuzz` of `test/test_cuda.py`.

use std::collections::VecDeque;

use crate::load::{Load, Random, Script};

const MIB: u64 = 1 << 20;

/// Every load of this file for one thread.
pub(crate) fn loads() -> Vec<Load> {
    let mut loads: Vec<Load> = [1, 4, 64, 1024].map(rmm_random).into();
    loads.push(rmm_multi_stream(4));
    loads.push(cubecl_dynamic());
    loads.push(bfc_allocation());
    loads.extend([1, 10, 100, 1000].map(bfc_delayed));
    loads.push(torch_fuzz());
    loads
}

/// RMM's program allocates with 73 % probability, up to 10,000 times and below 16,000 MiB, with
/// sizes uniform up to a maximum, and otherwise frees a random block. After twice this number of
/// steps it frees all blocks.
fn rmm_random(max_mib: u64) -> Load {
    const ALLOCATIONS: usize = 10_000;
    const ALLOCATE_PERCENT: u64 = 73;
    const USAGE_BYTES_MAX: u64 = 16_000 * MIB;
    let (mut script, mut random) = (Script::new(), Random(max_mib));
    let mut live: Vec<(u32, u64)> = Vec::new();
    let (mut allocation_count, mut used_bytes) = (0, 0);
    for _ in 0..2 * ALLOCATIONS {
        let size_bytes = 1 + random.below(max_mib * MIB);
        let allocates = live.is_empty()
            || (random.below(100) < ALLOCATE_PERCENT
                && allocation_count < ALLOCATIONS
                && used_bytes + size_bytes < USAGE_BYTES_MAX);
        if allocates {
            live.push((script.allocate(size_bytes), size_bytes));
            allocation_count += 1;
            used_bytes += size_bytes;
        } else {
            used_bytes -= free_any(&mut script, &mut random, &mut live);
        }
    }
    live.into_iter().for_each(|(block, _)| script.free(block));
    script.finish(format!("rmm_random_{max_mib}mib"))
}

/// RMM's kernels take turns on several streams. Each kernel has a buffer of one 64-bit number,
/// freed as soon as the kernel is launched. Before that, every stream has a buffer once (`--warm`).
fn rmm_multi_stream(stream_count: u8) -> Load {
    const KERNELS: usize = 1_000;
    const BUFFER_BYTES: u64 = 8;
    let mut script = Script::new();
    let warm: Vec<u32> =
        (0..stream_count).map(|stream| script.allocate_on(stream, BUFFER_BYTES)).collect();
    warm.into_iter().for_each(|block| script.free(block));
    script.start_the_clock();
    for stream in (0..stream_count).cycle().take(KERNELS) {
        let block = script.allocate_on(stream, BUFFER_BYTES);
        script.free(block);
    }
    script.finish("rmm_multi_stream")
}

/// CubeCL's 204,800 reservations of 1 MiB; the last 4,000 are live.
fn cubecl_dynamic() -> Load {
    const RESERVATIONS: usize = 204_800;
    const LIVE_MAX: usize = 4_000;
    let mut script = Script::new();
    let mut live = VecDeque::new();
    for _ in 0..RESERVATIONS {
        if live.len() >= LIVE_MAX {
            live.pop_front().into_iter().for_each(|block| script.free(block));
        }
        live.push_back(script.allocate(MIB));
    }
    live.into_iter().for_each(|block| script.free(block));
    script.finish("cubecl_dynamic")
}

/// Sizes that the BFC benchmarks cycle through.
const BFC_BYTES: [u64; 10] = [
    256,
    4_096,
    16_384,
    524_288,
    512,
    1_048_576,
    10_485_760,
    104_857_600,
    1_048_576_000,
    2_048_576_000,
];

/// Allocates one block of each size in turn, and frees it at once.
fn bfc_allocation() -> Load {
    bfc_cycle(&BFC_BYTES, 0, "bfc_allocation")
}

/// The load of one of several threads on its own stream. Here the cycle ends at 100 MiB.
pub(crate) fn bfc_thread(stream: u8) -> Load {
    bfc_cycle(&BFC_BYTES[..8], stream, "bfc_threaded")
}

fn bfc_cycle(sizes: &[u64], stream: u8, name: &str) -> Load {
    const ALLOCATIONS: usize = 1_000;
    let mut script = Script::new();
    for &size_bytes in sizes.iter().cycle().take(ALLOCATIONS) {
        let block = script.allocate_on(stream, size_bytes);
        script.free(block);
    }
    script.finish(name)
}

/// Small blocks. Each is freed after `delay` further allocations.
fn bfc_delayed(delay: usize) -> Load {
    const SIZES: [u64; 7] = [256, 4_096, 16_384, 4_096, 512, 1_024, 1_024];
    let mut script = Script::new();
    let mut live = VecDeque::new();
    for &size_bytes in SIZES.iter().cycle().take(10_000) {
        if live.len() == delay {
            live.pop_front().into_iter().for_each(|block| script.free(block));
        }
        live.push_back(script.allocate(size_bytes));
    }
    live.into_iter().for_each(|block| script.free(block));
    script.finish(format!("bfc_delayed_{delay}"))
}

/// PyTorch's 10,000 random actions: allocate 2 to 20 MiB, free a random block, or release the cache
/// (weights 1, 1 and 0.1). No more than about 100 MiB are live.
fn torch_fuzz() -> Load {
    const ACTIONS: usize = 10_000;
    const LIVE_BYTES_END: u64 = (1 << 30) / 10;
    let (mut script, mut random) = (Script::new(), Random(123));
    let mut live: Vec<(u32, u64)> = Vec::new();
    let mut live_bytes = 0;
    for _ in 0..ACTIONS {
        while live_bytes >= LIVE_BYTES_END {
            live_bytes -= free_any(&mut script, &mut random, &mut live);
        }
        let free_weight = if live.is_empty() { 0 } else { 10 };
        match random.below(10 + free_weight + 1) {
            0..10 => {
                let size_bytes = 2 * MIB + random.below(18 * MIB / 4) * 4;
                live.push((script.allocate(size_bytes), size_bytes));
                live_bytes += size_bytes;
            }
            choice if choice < 10 + free_weight => {
                live_bytes -= free_any(&mut script, &mut random, &mut live);
            }
            _ => script.trim(),
        }
    }
    live.into_iter().for_each(|(block, _)| script.free(block));
    script.finish("torch_fuzz")
}

/// Frees a random block. Returns its bytes.
fn free_any(script: &mut Script, random: &mut Random, live: &mut Vec<(u32, u64)>) -> u64 {
    let (block, size_bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
    script.free(block);
    size_bytes
}
