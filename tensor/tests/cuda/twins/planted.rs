//! Faults that are planted into the kernels of tensors. Each fault has to be found.

use std::fs;
use std::path::{Path, PathBuf};

use lowtide_allocator::cuda::pretend::{KernelFile, Watch, is_sanitized};
use lowtide_tensor::cuda::gate::{Argument, Grid, Signature};
use lowtide_tensor::cuda::pretend::kernel_files;

use super::{F64, Lab, ORDERS, Read, U32, U64, Words, Write, noise, walk};
use crate::gpu::{Gpu, KERNELS};

/// A folder with one changed file of kernels.
fn planted(name: &str, file: &str, change: impl Fn(&str, String) -> String) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(KERNELS);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("planted").join(name);
    fs::create_dir_all(&folder).unwrap();
    let kernels = kernel_files(&from).unwrap();
    // If a file is for several types, the first type is taken.
    let is_of_file = |kernels: &KernelFile| kernels.path.ends_with(format!("{file}.cu"));
    let kernels = kernels.into_iter().find(is_of_file).unwrap();
    let common = kernels.common.trim_start_matches("#define STORED f32\n").to_owned();
    let sources = [("common.cu", common), (&format!("{file}.cu"), kernels.source)];
    for (source, text) in sources {
        fs::write(folder.join(source), change(source, text)).unwrap();
    }
    folder
}

/// The complaints about kernels in this folder, in each order; `None` if there is no complaint.
fn complaints(folder: &Path, work: impl Fn(&Lab)) -> Option<Vec<Option<String>>> {
    let mut complaints = Vec::new();
    for order in ORDERS {
        let lab = Lab::of(Gpu::with_kernels(folder, Watch::Accesses)?, folder);
        lab.gpu.pretend.threads(order);
        work(&lab);
        let result = lab.streams.device().synchronize();
        assert_eq!(result.is_err(), lab.gpu.pretend.complaint().is_some());
        complaints.push(lab.gpu.pretend.complaint());
        // A lost device takes no memory back.
        let Lab { modules, memory, streams, gpu, .. } = lab;
        drop((modules, memory, streams));
        gpu.reset();
    }
    Some(complaints)
}

fn fold_rows(lab: &Lab) {
    // There are more rows than blocks, so shared memory is used again.
    let (x, partials) = (lab.floats(&noise(4 * 100, 1)), lab.room(4 * 8));
    let [kept, reduced] = [walk(&[4], &[&[100]]), walk(&[100], &[&[1]])];
    let parameters = &[Write, Read, Read, U32, F64, Words(2), Words(26), Words(26)];
    let kernel = Signature { name: "fold_rows_f32", parameters };
    let from = [partials.write(), x.read(), Argument::Nothing];
    let fold = [Argument::U32(0), Argument::F64(0.0), Argument::Words(&[100, 1])];
    let walks = [Argument::Words(&kept), Argument::Words(&reduced)];
    lab.run("reduce_f32", kernel, Grid::row(1, 64), &[&from[..], &fold, &walks].concat());
}

fn matmul(lab: &Lab) {
    multiply(lab, "matmul_f32", "matmul_nn_f32");
}

/// A product by tensor cores, of arbitrary bits.
fn matmul_of_halves(lab: &Lab) {
    multiply(lab, "matmul_bf16", "matmul_nn_bf16");
}

fn multiply(lab: &Lab, image: &'static str, name: &'static str) {
    let (m, n, k) = (30_usize, 20_usize, 40_usize);
    let (a, b) = (lab.floats(&noise(m * k, 1)), lab.floats(&noise(k * n, 2)));
    let c = lab.room(4 * m * n);
    let words = [m, n, k, k, 1, m * k, n, 1, k * n, n, 1, m * n].map(|size| size as u64);
    let parameters = &[Write, Read, Read, Read, U32, Words(12)];
    let kernel = Signature { name, parameters };
    let none = Argument::Nothing;
    let rest = [none, Argument::U32(0), Argument::Words(&words)];
    let arguments = [&[c.write(), a.read(), b.read()], &rest[..]].concat();
    lab.run(image, kernel, Grid::row(1, 256), &arguments);
}

fn unary(lab: &Lab) {
    let (x, y) = (lab.floats(&noise(100, 1)), lab.room(400));
    let parameters = &[Write, Read, Read, Read, Read, U32, Words(3), U64];
    let kernel = Signature { name: "formula_f32", parameters };
    let sources = [x.read(), Argument::Nothing, Argument::Nothing, Argument::Nothing];
    let rest = [Argument::U32(0), Argument::Words(&[0; 3]), Argument::U64(100)];
    let arguments = [&[y.write()], &sources[..], &rest].concat();
    lab.run("elementwise_f32", kernel, Grid::row(4, 32), &arguments);
}

const BARRIER: &str = "__syncthreads();";

#[test]
fn each_barrier_that_is_removed_from_a_kernel_is_missed() {
    let Some(_) = Gpu::watched() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(common) = fs::read_to_string(root.join(KERNELS).join("cuda/common.cu")) else {
        println!("skipped: removed barriers: the kernels are no part of this package");
        return;
    };
    let count = common.matches(BARRIER).count();
    assert_eq!(count, 6, "two of `join_block` and two of each tile product");
    for nth in 0..=count {
        let remove = |source: &str, text: String| {
            let mut index = 0;
            let parts = text.split(BARRIER).map(|part| {
                let kept = if source != "common.cu" || index != nth { BARRIER } else { "" };
                index += 1;
                format!("{part}{kept}")
            });
            let whole: String = parts.collect();
            // The last part has no barrier after it.
            whole.strip_suffix(BARRIER).unwrap_or(&whole).to_owned()
        };
        for (file, of_work, work) in [
            ("reduce", 0..2, fold_rows as fn(&Lab)),
            ("matmul", 2..4, matmul),
            ("matmul", 4..6, matmul_of_halves),
        ] {
            if nth < count && !of_work.contains(&nth) {
                continue;
            }
            let folder = planted(&format!("barrier-{nth}-{file}"), file, remove);
            let Some(complaints) = complaints(&folder, work) else { return };
            for complaint in complaints {
                let is_said = complaint.as_ref().is_some_and(|text| text.contains("shared memory"));
                assert_eq!(is_said, nth < count, "{file} without barrier {nth}: {complaint:?}");
            }
        }
    }
}

#[test]
fn each_bound_that_is_removed_from_a_kernel_is_missed() {
    for (index, (file, work, from, to)) in [
        ("elementwise", unary as fn(&Lab), "i < len", "i <= len"),
        ("matmul", matmul, "if (row >= sizes.m) return Stored();", ""),
        ("matmul", matmul, "if (column >= sizes.n) return Stored();", ""),
        ("matmul", matmul, "0, (u32)sizes.k);", "0, (u32)sizes.k + 1);"),
        ("matmul", matmul, "if (row >= sizes.m || column >= sizes.n) return;", ""),
        ("reduce", fold_rows, "i < end; i += blockDim.x", "i <= end; i += blockDim.x"),
        ("reduce", fold_rows, "kept.len; at += gridDim.x", "kept.len + 1; at += gridDim.x"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = planted(&format!("bound-{index}"), file, |source, text| {
            let is_here = source != "common.cu";
            assert!(!is_here || text.contains(from), "{file} has no {from}");
            if is_here { text.replace(from, to) } else { text }
        });
        let Some(complaints) = complaints(&folder, work) else { return };
        for complaint in complaints {
            let text = complaint.unwrap_or_else(|| panic!("{file} with `{to}` is taken"));
            // The access is beside a matrix, or at the place of another thread in the matrix.
            let parts: &[&str] = match is_sanitized() {
                true => &["AddressSanitizer: use-after-poison"],
                false => &["of its memory", "memory that is written"],
            };
            assert!(parts.iter().any(|part| text.contains(part)), "{text}");
        }
    }
}
