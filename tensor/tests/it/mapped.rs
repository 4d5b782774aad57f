//! Tensors that lie in a file.

use std::io::Write;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, MappedFile, QuantFormat, Quantized, SimSpec, Tensor, TensorError};
use tempfile::NamedTempFile;

use crate::common::{cpu, sim};

/// A file with these bytes.
fn file(bytes: &[u8]) -> (NamedTempFile, MappedFile) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file.flush().unwrap();
    // SAFETY: nothing writes to the temporary file any more.
    let mapped = unsafe { MappedFile::open(file.path()) }.unwrap();
    (file, mapped)
}

fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7 % 31) as f32 - 15.0).collect()
}

fn requested_bytes(device: &lowtide_tensor::Device) -> usize {
    device.allocator().statistics().requested.current_bytes
}

#[test]
fn mapped_elements_are_those_of_the_file_and_take_no_memory() {
    let values = floats(6 * 40);
    let bytes = [&[1, 2, 3, 4, 5, 6, 7, 8][..], bytes_of(&values).as_slice()].concat();
    let (_file, mapped) = file(&bytes);
    let device = cpu(2);
    let x = Tensor::from_mapped(&device, [6, 40], DType::F32, &mapped, 8).unwrap();
    assert_eq!((requested_bytes(&device), device.mapped_bytes()), (0, 6 * 40 * 4));
    assert!(x.is_mapped() && !x.is_reusable());
    assert_eq!(x.to_vec::<f32>().unwrap(), values);
    let here = Tensor::from_slice(&device, [6, 40], &values).unwrap();
    // Views, kernels and products read the file in place.
    let (view, view_here) = (x.narrow(0, 2, 3).unwrap(), here.narrow(0, 2, 3).unwrap());
    let [y, expected] =
        [&view, &view_here].map(|x| x.transpose(0, 1).unwrap().mul_scalar(2.0).unwrap());
    assert_eq!(y.to_bytes().unwrap(), expected.to_bytes().unwrap());
    let [y, expected] = [&x, &here].map(|w| here.linear(w, None).unwrap());
    assert_eq!(y.to_bytes().unwrap(), expected.to_bytes().unwrap());
    assert!(!y.is_mapped());
    // The handle to the file may be dropped first.
    drop(mapped);
    assert_eq!(x.to_vec::<f32>().unwrap(), values);
    drop((view, x));
    assert_eq!(device.mapped_bytes(), 0);
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn what_writes_a_mapped_tensor_is_an_error() {
    let values = floats(16);
    let (_file, mapped) = file(&bytes_of(&values));
    let device = cpu(1);
    let mut x = Tensor::from_mapped(&device, [4, 4], DType::F32, &mapped, 0).unwrap();
    let is_read_only = |found| matches!(found, Err(TensorError::ReadOnly { .. }));
    assert!(is_read_only(x.fill_(1.0)));
    assert!(is_read_only(x.set_bytes_(&[0; 64])));
    assert!(is_read_only(x.select(0, 1).unwrap().add_scalar_(1.0)));
    assert!(is_read_only(x.check_writable("test")));
    x.unfreeze();
    assert!(is_read_only(x.zero_()));
    assert_eq!((x.to_vec::<f32>().unwrap(), x.version()), (values, 0));
    let mut copy = x.copied().unwrap();
    copy.fill_(2.0).unwrap();
}

#[test]
fn parts_that_are_not_in_the_file_or_lie_askew_are_errors() {
    let (_file, mapped) = file(&[0; 64]);
    let device = cpu(1);
    let of = |len: usize, at| Tensor::from_mapped(&device, [len], DType::F32, &mapped, at);
    assert!(of(16, 0).is_ok() && of(15, 4).is_ok() && of(0, 64).is_ok());
    assert!(matches!(of(16, 4), Err(TensorError::Index { .. })));
    assert!(matches!(of(usize::MAX, 0), Err(TensorError::Index { .. })));
    assert!(matches!(of(1, 2), Err(TensorError::Unaligned { align_bytes: 4, .. })));
    assert_eq!(device.mapped_bytes(), 0);
    let (_file, empty) = file(&[]);
    let x = Tensor::from_mapped(&device, [0], DType::F32, &empty, 0).unwrap();
    assert!(x.to_vec::<f32>().unwrap().is_empty());
}

#[test]
fn simulated_devices_know_mapped_tensors() {
    let (_file, mapped) = file(&[0; 4096]);
    let device = cpu(1);
    let make = |device: &lowtide_tensor::Device| {
        let _scope = device.category(Category::Parameter);
        Tensor::from_mapped(device, [1024], DType::F32, &mapped, 0).unwrap()
    };
    let x = make(&device);
    let simulated = device.simulate();
    let mut twin = x.simulated_copy(&simulated).unwrap();
    assert!(twin.is_mapped() && matches!(twin.fill_(1.0), Err(TensorError::ReadOnly { .. })));
    assert_eq!((simulated.mapped_bytes(), requested_bytes(&simulated)), (4096, 0));
    let fresh = sim(1);
    let y = make(&fresh);
    assert_eq!((y.category(), fresh.mapped_bytes()), (Category::Parameter, 4096));
    assert_eq!(fresh.allocator().statistics(), {
        let again = cpu(1);
        let _x = make(&again);
        let statistics = again.allocator().statistics();
        lowtide_allocator::Statistics {
            capacity_bytes: fresh.allocator().statistics().capacity_bytes,
            ..statistics
        }
    });
    // A simulated NVIDIA device gets a copy.
    let cuda = lowtide_tensor::Device::sim(SimSpec::like_cuda(1 << 30)).unwrap();
    let copy = make(&cuda);
    assert!(!copy.is_mapped());
    assert_eq!((cuda.mapped_bytes(), requested_bytes(&cuda)), (0, 4096));
}

#[test]
fn quantised_matrices_multiply_from_a_file() {
    let device = cpu(2);
    let w = Tensor::from_slice(&device, [32, 64], &floats(32 * 64)).unwrap();
    let w = Quantized::encode(&w, QuantFormat::Nf4 { double: true }).unwrap();
    let mut bytes = Vec::new();
    let mut places = Vec::new();
    for part in w.parts() {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        places.push(bytes.len());
        bytes.extend(part.to_bytes().unwrap());
    }
    let (_file, mapped) = file(&bytes);
    let parts = w.parts().iter().zip(places).map(|(part, at)| {
        Tensor::from_mapped(&device, *part.shape(), part.dtype(), &mapped, at).unwrap()
    });
    let there = Quantized::from_parts(w.format(), *w.shape(), parts.collect()).unwrap();
    let x = Tensor::from_slice(&device, [3, 64], &floats(3 * 64)).unwrap();
    let [y, expected] = [&there, &w].map(|w| x.linear_quantized(w, None).unwrap());
    assert_eq!(y.to_bytes().unwrap(), expected.to_bytes().unwrap());
}

/// The system's account of the mapping of a file: resident pages, and pages that are private to
/// this process.
#[cfg(target_os = "linux")]
fn pages_kib(path: &std::path::Path) -> [usize; 2] {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = text.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let mut field = |name: &str| -> usize {
        let line = lines.find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    [field("Rss:"), field("Anonymous:")]
}

#[test]
#[cfg(target_os = "linux")]
fn pages_of_a_mapped_weight_are_the_files() {
    const ROWS: usize = 2048;
    let (file, mapped) = file(&bytes_of(&floats(ROWS * 1024)));
    let device = cpu(2);
    let w = Tensor::from_mapped(&device, [ROWS, 1024], DType::F32, &mapped, 0).unwrap();
    let x = Tensor::ones(&device, [2, 1024], DType::F32).unwrap();
    let before = device.allocator().statistics().requested;
    let y = x.linear(&w, None).unwrap();
    y.matmul(&w).unwrap();
    let [resident, anonymous] = pages_kib(file.path());
    assert!(resident >= ROWS * 4, "{resident} KiB were read");
    assert_eq!(anonymous, 0);
    let peak = device.allocator().statistics().requested.peak_bytes;
    assert!(peak - before.current_bytes < 64 << 10, "{peak}");
}
