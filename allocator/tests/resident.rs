//! Resident memory of a process that runs nothing else.

#![cfg(target_os = "linux")]

use lowtide_allocator::{CachingAllocator, HostSource};

/// Resident pages of this process.
fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn resident_memory_is_what_is_reserved() {
    if cfg!(lowtide_thread_sanitizer) {
        println!("skipped: resident memory: the thread sanitizer keeps notes of every byte there");
        return;
    }
    // One test function, because another test in the same process would be counted, too.
    trim_gives_resident_memory_back();
    stitched_block_takes_no_memory_of_its_own();
}

fn trim_gives_resident_memory_back() {
    const SIZE_BYTES: usize = 256 << 20;
    let memory = CachingAllocator::new(HostSource::with_capacity(SIZE_BYTES)).unwrap();
    let before = resident_pages();
    let mut buffer = memory.allocate(SIZE_BYTES).unwrap();
    buffer.as_mut_slice().unwrap().fill(1);
    drop(buffer);
    let cached = resident_pages();
    assert_eq!(memory.trim(), SIZE_BYTES);
    let trimmed = resident_pages();
    let (grown, fallen) = (cached.saturating_sub(before), cached.saturating_sub(trimmed));
    assert!(grown * 4096 > SIZE_BYTES / 4 * 3, "{before} to {cached} pages");
    assert!(fallen > grown / 4 * 3, "{cached} to {trimmed} pages");
    let again = memory.allocate(SIZE_BYTES).unwrap();
    assert!(again.as_slice().unwrap()[..1 << 20].iter().all(|&byte| byte == 0));
}

/// Proportional set size of this process: bytes that the process adds to the memory of the machine.
/// A page that is mapped twice counts twice as resident, but once here.
fn proportional_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() << 10
}

fn stitched_block_takes_no_memory_of_its_own() {
    const PAGE_BYTES: usize = 64 << 10;
    const COUNT: usize = 100;
    const HOLE_BYTES: usize = 32 * PAGE_BYTES - 512;
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 30)).unwrap();
    let before = proportional_bytes();
    let mut row: Vec<_> = (0..COUNT)
        .map(|_| [HOLE_BYTES, 512].map(|bytes| memory.allocate(bytes).unwrap()))
        .collect();
    for block in row.iter_mut().flatten() {
        block.as_mut_slice().unwrap().fill(1);
    }
    let filled = proportional_bytes() - before;
    assert!(filled > COUNT * HOLE_BYTES / 4 * 3, "{filled} bytes");
    let _walls: Vec<_> = row.into_iter().map(|[_, wall]| wall).collect();
    let mut block = memory.allocate(COUNT * 31 * PAGE_BYTES).unwrap();
    assert!(block.is_stitched());
    block.as_mut_slice().unwrap().fill(2);
    let stitched = proportional_bytes() - before;
    assert!(stitched < filled + filled / 8, "{filled} bytes, then {stitched}");
    drop(block);
    // Pages that are mapped twice have to be unmapped at both places.
    assert!(memory.trim() > filled / 4 * 3);
    let trimmed = proportional_bytes() - before;
    assert!(trimmed < filled / 8, "{filled} bytes, then {trimmed}");
}
