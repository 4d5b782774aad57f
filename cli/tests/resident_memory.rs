//! The budget limits real memory: the memory that the system gives to the process.

/// Memory that a run may take besides the device's reserved bytes and the loaders' batches: the
/// allocator's ring of records (8 MiB when full, a few here), and stacks and heaps of the threads
/// of device and loaders. The bound is small compared with hundreds of MiB.
#[cfg(target_os = "linux")]
const BESIDE_BYTES: usize = 16 << 20;

/// Resident memory of this process. Each page counts once, even if it is mapped several times: the
/// pages of a stitched block have two addresses, and `VmRSS` would count them twice.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
    let line =
        text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a line of that name");
    let kib = line.trim().trim_end_matches(" kB");
    kib.parse::<usize>().expect("a number of KiB") << 10
}

/// Checks that a recipe runs in the memory of its plan: its peak, its batches and its data.
#[cfg(target_os = "linux")]
fn check(recipe: &lowtide_cli::recipe::Recipe) -> [usize; 3] {
    use lowtide_tensor::{CpuOptions, Device};

    let before_bytes = resident_bytes();
    let data = recipe.open().expect("data");
    let device = Device::cpu(CpuOptions { threads: Some(2), ..Default::default() });
    let device = device.expect("address space");
    let mut trainer = recipe.trainer(&device, data.samples).expect("memory");
    let epochs = recipe.train.epochs;
    let plan = trainer.plan(&data.train, &data.test, epochs).expect("fits");
    // The cache keeps every page that was ever needed, so memory is largest at the end of the run.
    trainer.fit(&data.train, &data.test, epochs, &mut []).expect("memory");
    let grown_bytes = resident_bytes() - before_bytes;

    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(peak_bytes, plan.predicted_peak_bytes());
    let planned_bytes = peak_bytes + plan.staging_bytes + plan.data_bytes;
    assert!(planned_bytes > 5 * BESIDE_BYTES, "{planned_bytes} bytes are too few to tell");
    assert!(
        grown_bytes <= planned_bytes + BESIDE_BYTES,
        "grew by {grown_bytes} bytes, of which {planned_bytes} are planned"
    );
    // The growth shows that most of the planned memory was really used.
    assert!(grown_bytes > planned_bytes / 4 * 3, "{grown_bytes} of {planned_bytes} bytes");
    let (batches, samples) = (plan.staging_bytes, plan.data_bytes);
    println!(
        "grew by {grown_bytes} bytes, planned {peak_bytes}, {batches} for batches and {samples} \
         for data"
    );
    [peak_bytes, batches, samples]
}

#[cfg(target_os = "linux")]
#[test]
fn resident_memory_grows_by_no_more_than_the_plan_says() {
    use lowtide_cli::recipe::{
        DataRecipe, MnistRecipe, ModelRecipe, RandomImagesRecipe, Recipe, SimpleCnnRecipe,
        TrainRecipe,
    };

    let recipe = |data: DataRecipe, channels, batch_size| {
        let model = ModelRecipe::SimpleCnn(SimpleCnnRecipe { channels });
        let train = TrainRecipe { batch_size, epochs: 2, ..Default::default() };
        Recipe { data, model, train, ..Recipe::default() }
    };
    let mut digits = DataRecipe::default();
    *digits.workers_mut() = 0;
    let [peak_bytes, staging_bytes, _] = check(&recipe(digits, 256, 1437));
    assert!(peak_bytes > 10 * staging_bytes);
    // Large images that workers read ahead for a small model.
    let images = RandomImagesRecipe { samples: 128, classes: 10, workers: 2, ..Default::default() };
    let [_, staging_bytes, _] = check(&recipe(DataRecipe::RandomImages(images), 1, 32));
    assert!(staging_bytes > 4 * BESIDE_BYTES, "{staging_bytes}");
    // Images that are read into memory once, and used for both sets.
    let folder = tempfile::tempdir().expect("a folder");
    for (name, count) in [("train", 100_000_u32), ("t10k", 10_000)] {
        let sizes = |sizes: &[u32]| sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
        let images: Vec<u8> = [vec![0, 0, 8, 3], sizes(&[count, 28, 28])].concat();
        let images = [images, vec![1; count as usize * 784]].concat();
        let labels: Vec<u8> = [vec![0, 0, 8, 1], sizes(&[count])].concat();
        let labels = [labels, vec![1; count as usize]].concat();
        for (kind, bytes) in [("images-idx3", images), ("labels-idx1", labels)] {
            std::fs::write(folder.path().join(format!("{name}-{kind}-ubyte")), bytes)
                .expect("room");
        }
    }
    let images = MnistRecipe { folder: folder.path().to_owned(), ..Default::default() };
    let [.., data_bytes] = check(&recipe(DataRecipe::Mnist(images), 1, 5000));
    assert_eq!(data_bytes, 110_000 * (784 + size_of::<i64>()));
}

#[cfg(not(target_os = "linux"))]
#[test]
fn resident_memory_grows_by_no_more_than_the_plan_says() {
    println!(
        "skipped: resident_memory_grows_by_no_more_than_the_plan_says: \
         only Linux tells in /proc/self/status"
    );
}
