//! PyTorch's own tools can read the exports. Skipped on machines without PyTorch.

use std::fs;
use std::path::Path;
use std::process::Command;

use lowtide_allocator::Category;
use lowtide_trace::Recording;

use crate::recordings::{Op, run};

/// A recording with every kind of event that a snapshot can hold.
fn recording() -> Recording {
    let allocate = |index: usize| Op::Allocate {
        grains: 1 + index as u64 * 7 % 60,
        slack_bytes: index as u64 % 512,
        category: (index > 9).then(|| Category::ALL[index % Category::ALL.len()]),
        site: (index > 9).then_some(index as u32 % 4),
    };
    let mut during = Vec::new();
    for index in 0..400 {
        during.push(match index % 40 {
            0 => Op::Reserve { pages: 6, stream: 0 },
            10 => Op::Shrink { index, pages: 1 },
            20 => Op::Grow { index, pages: 1 },
            30 => Op::Scatter { grains: 50, slack_bytes: 3 },
            39 => Op::Fail(1 << 33),
            _ if index % 5 == 4 => Op::RequestFree(index * 7),
            _ if index % 3 == 2 => Op::Free(index * 11),
            _ => allocate(index),
        });
    }
    let before: Vec<Op> =
        [Op::Reserve { pages: 20, stream: 0 }].into_iter().chain((0..20).map(allocate)).collect();
    run(&before, &during)
}

#[test]
fn tools_of_pytorch_take_an_export() {
    const NAME: &str = "tools_of_pytorch_take_an_export";
    let recording = recording();
    assert_eq!(recording.check(), Ok(()));
    assert!(!recording.pieces.is_empty() && recording.events.len() > 200);

    if cfg!(miri) {
        println!("skipped: {NAME}: Miri starts no processes");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(NAME);
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("snapshot.pickle");
    fs::write(&file, crate::exports::pickle(&recording)).expect("the file is written");
    let python = std::env::var_os("LOWTIDE_PYTHON").unwrap_or_else(|| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/check_memory_viz.py");
    let output = match Command::new(&python).arg(&script).args([&file, &folder]).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {NAME}: {} does not start: {error}", python.display());
            return;
        }
    };
    if output.status.code() == Some(3) {
        println!("skipped: {NAME}: {} has no torch", python.display());
        return;
    }
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for page in ["trace_plot.html", "segment_plot.html"] {
        assert!(fs::metadata(folder.join(page)).expect("a page").len() > 1000, "{page}");
    }
}
