//! Resident memory of a process in which nothing else runs.

#![cfg(target_os = "linux")]

use lowtide_allocator::{CachingAllocator, HostSource};

/// Resident pages of this process.
fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
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
