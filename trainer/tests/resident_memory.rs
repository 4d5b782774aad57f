//! The budget is about memory that is really there: what the process takes from the system.

/// What a run may take beside the device's reserved bytes: the allocator's ring of records (8 MiB
/// when it is full, a few here), the loader's staging buffers (two batches of 1437 images of 264
/// bytes: 0.8 MiB), stacks and heaps of the device's threads. Against a peak of hundreds of MiB it
/// is small.
#[cfg(target_os = "linux")]
const BESIDE_BYTES: usize = 8 << 20;

/// Resident memory of this process, each page counted once however often it is mapped: a stitched
/// block's pages have two addresses, and `VmRSS` would count them twice.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
    let line =
        text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a line of that name");
    let kib = line.trim().trim_end_matches(" kB");
    kib.parse::<usize>().expect("a number of KiB") << 10
}

#[cfg(target_os = "linux")]
#[test]
fn resident_memory_grows_by_no_more_than_the_measured_peak() {
    use lowtide_tensor::{CpuOptions, Device};
    use lowtide_trainer::recipe::{ModelRecipe, Recipe, RecipeData, SimpleCnnRecipe};

    let model = ModelRecipe::SimpleCnn(SimpleCnnRecipe { channels: 256 });
    let mut recipe = Recipe { model, ..Recipe::default() };
    recipe.train.batch_size = 1437;
    recipe.train.epochs = 2;
    *recipe.data.workers_mut() = 0;
    let RecipeData { samples, train, test } = recipe.open().expect("the digits");
    let device = Device::cpu(CpuOptions { threads: Some(2), ..Default::default() });
    let device = device.expect("address space");
    let mut trainer = recipe.trainer(&device, samples).expect("memory");
    let plan = trainer.plan(&train, &test, recipe.train.epochs).expect("fits");
    let before_bytes = resident_bytes();
    // The cache keeps every page that was ever needed, so the end of the run shows the most.
    trainer.fit(&train, &test, recipe.train.epochs, &mut []).expect("memory");
    let grown_bytes = resident_bytes() - before_bytes;

    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(peak_bytes, plan.predicted_peak_bytes());
    assert!(peak_bytes > 10 * BESIDE_BYTES, "{peak_bytes} bytes are too few to tell");
    assert!(
        grown_bytes <= peak_bytes + BESIDE_BYTES,
        "grew by {grown_bytes} bytes, of which {peak_bytes} are accounted for"
    );
    // The measurement sees the activations at all: they are most of the peak.
    assert!(grown_bytes > peak_bytes / 2, "{grown_bytes} of {peak_bytes} bytes");
}

#[cfg(not(target_os = "linux"))]
#[test]
fn resident_memory_grows_by_no_more_than_the_measured_peak() {
    println!(
        "skipped: resident_memory_grows_by_no_more_than_the_measured_peak: \
         only Linux tells in /proc/self/status"
    );
}
