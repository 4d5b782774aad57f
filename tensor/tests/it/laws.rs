//! Laws of all operations, in one walk over the inventory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lowtide_allocator::{Action, Record};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{cpu, sim};
use crate::inventory::{Inputs, Op, all_ops, ops_of};

/// The exact contents.
fn bits(tensor: &Tensor) -> Vec<u8> {
    tensor.to_bytes().unwrap()
}

/// The types, each with the operations that are defined for it.
fn cases() -> [(DType, Vec<Op>); 4] {
    [DType::F32, DType::F64, DType::F16, DType::BF16].map(|dtype| (dtype, ops_of(dtype)))
}

#[test]
fn every_operation_gives_the_same_bits_for_any_thread_count() {
    for (dtype, ops) in cases() {
        let inputs = [1, 2, 3].map(|threads| Inputs::new(&cpu(threads), dtype));
        for op in ops {
            let [one, two, three] = inputs.each_ref().map(|inputs| {
                let results = (op.run)(&mut inputs.fork()).unwrap();
                results.iter().map(bits).collect::<Vec<_>>()
            });
            assert!(one == two && one == three, "{} of {dtype}", op.name);
        }
    }
}

/// The parts of records that a simulation repeats: everything but the place in the program.
fn moves(records: &[Record]) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
    let same = |r: &Record| (r.action, r.category, r.offset, r.size_bytes);
    records.iter().map(same).collect()
}

/// The results of `op`, and the records of the allocator from the copies of the inputs on.
fn trace(op: &Op, inputs: &Inputs, device: &Device) -> impl PartialEq + std::fmt::Debug + use<> {
    let allocator = device.allocator();
    allocator.reset_peaks();
    let past = allocator.history();
    let before = past.overwritten() + past.records().len() as u64;
    let mut inputs = inputs.fork();
    let results = (op.run)(&mut inputs).unwrap();
    let layouts: Vec<_> = results.iter().map(|y| (*y.layout(), y.dtype(), y.category())).collect();
    drop((results, inputs));
    let history = allocator.history();
    let new = history.overwritten() + history.records().len() as u64 - before;
    let records = history.records();
    assert!(new > 0 && new < records.len() as u64, "{new} records");
    (layouts, moves(&records[records.len() - new as usize..]), allocator.statistics())
}

#[test]
fn every_operation_allocates_on_the_simulation_what_it_allocates_on_the_cpu() {
    for (dtype, ops) in cases() {
        for threads in [1, 3] {
            let devices = [cpu(threads), sim(threads)];
            let inputs = devices.each_ref().map(|device| Inputs::new(device, dtype));
            for op in &ops {
                let [real, simulated] = [0, 1].map(|at| trace(op, &inputs[at], &devices[at]));
                assert_eq!(real, simulated, "{} of {dtype}", op.name);
            }
        }
    }
}

#[test]
fn every_operation_leaves_no_more_behind_than_its_results() {
    let device = cpu(2);
    let allocator = device.allocator();
    let base = Inputs::new(&device, DType::F32);
    for op in all_ops() {
        let mut inputs = base.fork();
        let before = allocator.layout_hash();
        let results = (op.run)(&mut inputs).unwrap();
        drop(results);
        assert_eq!(allocator.layout_hash(), before, "{}", op.name);
    }
}

#[test]
fn in_place_operations_and_most_views_allocate_nothing() {
    let free = [
        "view",
        "transpose",
        "t",
        "movedim",
        "permute",
        "narrow",
        "slice",
        "split",
        "chunk",
        "split_with_sizes",
        "diagonal",
        "unfold",
        "select",
        "unsqueeze",
        "squeeze",
        "expand",
    ];
    for device in [cpu(2), sim(2)] {
        let allocator = device.allocator();
        let base = Inputs::new(&device, DType::F32);
        for op in all_ops() {
            let mut inputs = base.fork();
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
    let base = Inputs::new(&device, DType::F32);
    for op in all_ops() {
        let mut inputs = base.fork();
        let state = |inputs: &Inputs| {
            inputs.all().map(|x| (x.version(), bits(x))).into_iter().collect::<Vec<_>>()
        };
        let before = state(&inputs);
        (op.run)(&mut inputs).unwrap();
        let writes = op.name.ends_with('_') || op.name == "scale_and_check_finite";
        let after = state(&inputs);
        assert_eq!(after != before, writes, "{}", op.name);
        for (old, new) in before.iter().zip(&after) {
            // A version never falls, and it rises if the contents change.
            assert!(new.0 >= old.0 && (new.0 > old.0 || new.1 == old.1), "{}", op.name);
        }
    }
}

#[test]
fn simulated_time_passes_for_everything_but_views() {
    let device = sim(2);
    let base = Inputs::new(&device, DType::F32);
    for op in all_ops() {
        let mut inputs = base.fork();
        let requests = device.allocator().request_count();
        let before = device.simulated_seconds();
        (op.run)(&mut inputs).unwrap();
        let computes = op.name.ends_with('_') || device.allocator().request_count() > requests;
        assert_eq!(device.simulated_seconds() > before, computes, "{}", op.name);
    }
}

/// Checks that the history holds allocations: otherwise two empty lists would compare equal.
#[test]
fn history_records_results_and_workspace() {
    let device = cpu(1);
    let mut inputs = Inputs::new(&device, DType::F32);
    for op in all_ops() {
        (op.run)(&mut inputs).unwrap();
    }
    let history = device.allocator().history();
    for action in [Action::Allocate, Action::Free] {
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
    files.extend(["create.rs", "read.rs", "tensor.rs", "views.rs"].map(|file| source.join(file)));
    let mut declared = BTreeSet::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let code: Vec<_> = text.lines().filter(|line| !line.trim().starts_with("//")).collect();
        let text = code.join("\n");
        // Functions of a macro are in the list that it is given: `pub fn exp, exp_ = ...;`.
        for function in text.split("pub fn ").skip(1).filter(|name| !name.starts_with('$')) {
            let signature = function.split('{').next().unwrap_or_default();
            let entry = signature.split(['=', '(', '<']).next().unwrap_or_default();
            if entry.contains(',') {
                declared.extend(entry.split(',').map(|name| name.trim().to_owned()));
            } else if signature.contains("-> Result<") {
                declared.extend(signature.split(['(', '<']).next().map(str::to_owned));
            } else if signature.contains(" = Test::") {
                declared.insert(entry.trim().to_owned());
            }
        }
    }
    let no_kernels = [
        "empty",
        "empty_in",
        "ones",
        "zeros",
        "full",
        "from_slice",
        "quantized_state",
        "from_bytes",
        "from_page_locked",
        "from_mapped",
        "to_bytes",
        "to_vec",
        "item",
        "item_assuming",
        // Functions that read a truth value, of `isclose` and of `eq`.
        "allclose",
        "equal",
        // Functions that also have a form with `_assuming`, which a simulated device can run too.
        "bincount",
        "masked_select",
        "nonzero",
        "check_writable",
        "reserve_updates",
        // Functions of `RunningCheck`, which is `squared_norm` for tensors one by one.
        "new",
        "read",
        // Functions of quantised matrices: the core of `decode_rows`, and access to their tensors.
        "decode_rows_into",
        "from_parts",
        "parts",
        "size_bytes",
        // Functions of workspaces: sizes without tensors.
        "of",
    ];
    let listed: BTreeSet<String> =
        all_ops().iter().map(|op| op.name).chain(no_kernels).map(str::to_owned).collect();
    assert_eq!(declared, listed);
}
