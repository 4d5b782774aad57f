//! Laws of all operations, by one walk over the inventory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lowtide_allocator::{Action, Record};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{cpu, sim};
use crate::inventory::{Inputs, all_ops};

const FLOATS: [DType; 2] = [DType::F32, DType::F64];

/// The exact contents.
fn bits(tensor: &Tensor) -> Vec<u64> {
    match tensor.dtype() {
        DType::F64 => tensor.to_vec::<f64>().unwrap().into_iter().map(f64::to_bits).collect(),
        DType::F32 => {
            tensor.to_vec::<f32>().unwrap().into_iter().map(|x| u64::from(x.to_bits())).collect()
        }
        DType::I64 => tensor.to_vec::<i64>().unwrap().into_iter().map(i64::cast_unsigned).collect(),
        _ => tensor.to_vec::<u8>().unwrap().into_iter().map(u64::from).collect(),
    }
}

#[test]
fn every_operation_gives_the_same_bits_for_any_thread_count() {
    for dtype in FLOATS {
        for op in all_ops() {
            let run = |threads: usize| {
                let results = (op.run)(&mut Inputs::new(&cpu(threads), dtype)).unwrap();
                results.iter().map(bits).collect::<Vec<_>>()
            };
            let one = run(1);
            assert!(one == run(2) && one == run(3), "{} of {dtype}", op.name);
        }
    }
}

/// What the simulation promises to do alike: everything but the place in the program.
fn moves(records: &[Record]) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
    let same = |r: &Record| (r.action, r.category, r.offset, r.size_bytes);
    records.iter().map(same).collect()
}

#[test]
fn every_operation_allocates_on_the_simulation_what_it_allocates_on_the_cpu() {
    for dtype in FLOATS {
        for threads in [1, 3] {
            for op in all_ops() {
                let run = |device: &Device| {
                    let mut inputs = Inputs::new(device, dtype);
                    device.allocator().reset_peaks();
                    let before = device.allocator().history().records().len();
                    let results = (op.run)(&mut inputs).unwrap();
                    let layouts: Vec<_> =
                        results.iter().map(|y| (*y.layout(), y.dtype(), y.category())).collect();
                    drop((results, inputs));
                    let history = device.allocator().history();
                    assert_eq!(history.overwritten(), 0);
                    let moves = moves(&history.records()[before..]);
                    (layouts, moves, device.allocator().statistics())
                };
                let (real, simulated) = (run(&cpu(threads)), run(&sim(threads)));
                assert_eq!(real, simulated, "{} of {dtype}", op.name);
            }
        }
    }
}

#[test]
fn every_operation_leaves_no_more_behind_than_its_results() {
    let device = cpu(2);
    let allocator = device.allocator();
    for op in all_ops() {
        let mut inputs = Inputs::new(&device, DType::F32);
        let before = allocator.layout_hash();
        let results = (op.run)(&mut inputs).unwrap();
        drop(results);
        assert_eq!(allocator.layout_hash(), before, "{}", op.name);
    }
}

#[test]
fn in_place_operations_and_most_views_allocate_nothing() {
    let free = ["transpose", "permute", "narrow", "select", "unsqueeze", "squeeze", "expand"];
    for device in [cpu(2), sim(2)] {
        let allocator = device.allocator();
        for op in all_ops() {
            let mut inputs = Inputs::new(&device, DType::F32);
            let before = allocator.request_count();
            (op.run)(&mut inputs).unwrap();
            let is_free = op.name.ends_with('_') || free.contains(&op.name);
            assert_eq!(allocator.request_count() == before, is_free, "{}", op.name);
        }
    }
}

#[test]
fn operation_writes_its_inputs_only_if_its_name_says_so() {
    let device = cpu(2);
    for op in all_ops() {
        let mut inputs = Inputs::new(&device, DType::F32);
        let state = |inputs: &Inputs| {
            inputs.all().map(|x| (x.version(), bits(x))).into_iter().collect::<Vec<_>>()
        };
        let before = state(&inputs);
        (op.run)(&mut inputs).unwrap();
        let writes = op.name.ends_with('_') || op.name == "scale_and_check_finite";
        let after = state(&inputs);
        assert_eq!(after != before, writes, "{}", op.name);
        for (old, new) in before.iter().zip(&after) {
            // A version never falls, and stands still exactly where nothing was written.
            assert!(new.0 >= old.0 && (new.0 > old.0 || new.1 == old.1), "{}", op.name);
        }
    }
}

#[test]
fn simulated_time_passes_for_everything_but_views() {
    for op in all_ops() {
        let device = sim(2);
        let mut inputs = Inputs::new(&device, DType::F32);
        let requests = device.allocator().request_count();
        let before = device.simulated_seconds();
        (op.run)(&mut inputs).unwrap();
        let computes = op.name.ends_with('_') || device.allocator().request_count() > requests;
        assert_eq!(device.simulated_seconds() > before, computes, "{}", op.name);
    }
}

/// The history holds allocations at all: without it, comparing two empty lists would pass.
#[test]
fn history_records_results_workspace_and_charges() {
    let device = cpu(1);
    let mut inputs = Inputs::new(&device, DType::F32);
    for op in all_ops() {
        (op.run)(&mut inputs).unwrap();
    }
    let history = device.allocator().history();
    for action in [Action::Allocate, Action::Free, Action::Charge] {
        assert!(history.records().iter().any(|record| record.action == action), "{action:?}");
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let inner = folders.iter().flat_map(|folder| rust_files(folder));
    files
        .into_iter()
        .chain(inner)
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect()
}

#[test]
fn inventory_lists_every_public_operation() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = rust_files(&source.join("ops"));
    files.push(source.join("views.rs"));
    files.push(source.join("tensor.rs"));
    let mut declared = BTreeSet::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for function in text.split("pub fn ").skip(1) {
            let signature = function.split('{').next().unwrap_or_default();
            if signature.contains("-> Result<") {
                declared.extend(signature.split(['(', '<']).next().map(str::to_owned));
            }
        }
    }
    let no_kernels = [
        "empty",
        "empty_in",
        "zeros",
        "full",
        "from_slice",
        "from_bytes",
        "to_vec",
        "item",
        "item_assuming",
        "check_writable",
    ];
    let listed: BTreeSet<String> =
        all_ops().iter().map(|op| op.name).chain(no_kernels).map(str::to_owned).collect();
    assert_eq!(declared, listed);
}
