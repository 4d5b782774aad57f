//! Images per second from JPEG files to batches of 64: decode, RandomResizedCrop to 224, flip,
//! normalise. `images.py` in this folder makes the files and measures PyTorch on the same task.
//!
//! The files are in the folder that `LOWTIDE_BENCH_IMAGES` names. Without this variable, 64 small
//! files are made here. `decode` only decodes and takes the centre; the other cases differ in the
//! number of workers. After the groups the maximum memory of the process is printed (Pss, in MiB).

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lowtide_data::{ImageFolder, ImageSource, Loader, LoaderOptions, Pipeline, Step};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BATCH_SIZE: usize = 64;

fn made(folder: &Path) {
    let (width, height) = (250_u16, 190_u16);
    for index in 0..64 {
        let pixel = |at: usize| {
            let (y, x) = (at / usize::from(width), at % usize::from(width));
            [x + index, y ^ x, x * y / 64].map(|value| value as u8)
        };
        let rgb: Vec<u8> = (0..usize::from(width) * usize::from(height)).flat_map(pixel).collect();
        let class = folder.join((index % 2).to_string());
        std::fs::create_dir_all(&class).expect("the folder can be written");
        let file = class.join(format!("{index}.jpg"));
        let encoder = jpeg_encoder::Encoder::new_file(file, 90).expect("the file can be written");
        encoder.encode(&rgb, width, height, jpeg_encoder::ColorType::Rgb).expect("it fits");
    }
}

fn loader(folder: &Path, steps: &[Step], workers: usize) -> Loader {
    let pipeline = Pipeline::new(steps).expect("the steps make sense");
    let images = ImageFolder::open(folder).expect("there are images");
    let options = LoaderOptions { batch_size: BATCH_SIZE, workers, ..Default::default() };
    let dataset = images.through(pipeline).expect("the size is fixed");
    Loader::new(dataset, options).expect("the ring is small")
}

fn pass(loader: &Loader, epoch: u64) -> usize {
    loader.epoch(epoch).map(|batch| black_box(batch.expect("whole files")).len()).sum()
}

fn images(c: &mut Criterion) {
    let own = tempfile::tempdir().expect("a folder");
    let folder = std::env::var_os("LOWTIDE_BENCH_IMAGES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| {
        made(own.path());
        own.path().to_owned()
    });
    let train = [
        Step::random_resized_crop([224, 224]),
        Step::flip_horizontal(),
        Step::normalise_imagenet(),
    ];
    let count = ImageFolder::open(&folder).expect("there are images").image_count();
    let mut group = c.benchmark_group("data/images");
    group.throughput(Throughput::Elements(count as u64));
    group.sample_size(10).measurement_time(Duration::from_secs(8));
    let is_done = AtomicBool::new(false);
    let mut cases = vec![("decode".to_owned(), vec![Step::CentreCrop([224, 224])], 0)];
    cases.extend([0, 1, 2].map(|workers| (format!("workers_{workers}"), train.to_vec(), workers)));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = 0.0_f64;
            while !is_done.load(Ordering::Relaxed) {
                peak = peak.max(pss_mib());
                std::thread::sleep(Duration::from_millis(50));
            }
            peak
        });
        for (name, steps, workers) in cases {
            let loader = loader(&folder, &steps, workers);
            assert_eq!(pass(&loader, 0), count, "every image is seen once");
            let mut epoch = 0;
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.iter(|| {
                    epoch += 1;
                    pass(&loader, epoch)
                });
            });
        }
        is_done.store(true, Ordering::Relaxed);
        let peak = watcher.join().expect("the watcher only reads");
        println!("data/images: {peak:.0} MiB of memory at most");
    });
    group.finish();
}

/// Proportional set size (Pss) of this process in MiB; 0 if the system does not report it.
fn pss_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse().ok());
    kib.unwrap_or(0.0) / 1024.0
}

criterion_group!(benches, images);
criterion_main!(benches);
