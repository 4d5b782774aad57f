//! `--device cuda`, with and without a driver.

use crate::place::{Outcome, Place};

/// Runs the command with library folders that contain no driver.
fn without_driver(place: &Place, arguments: &str) -> Option<Outcome> {
    let mut command = place.command(arguments);
    let outcome = Outcome::of(command.env("LOWTIDE_CUDA_LIBS", place.path("no-such-folder")));
    if outcome.code == Some(0) {
        println!("skipped: a missing driver explains itself: this machine has one");
        return None;
    }
    Some(outcome)
}

#[test]
fn missing_driver_explains_itself_in_one_line_and_leaves_nothing() {
    let place = Place::new();
    let name = if cfg!(feature = "cuda") { "no CUDA driver: looked for libcuda" } else { "`cuda`" };
    for arguments in ["train --device cuda --out run", "train --device cuda:1 --out run"] {
        let Some(outcome) = without_driver(&place, arguments) else { return };
        outcome.check_refused(1, &[name]);
    }
    assert_eq!(place.list(""), [""; 0]);
}

#[test]
#[cfg(feature = "cuda")]
fn plan_without_a_driver_asks_for_the_memory_to_plan_for() {
    let place = Place::new();
    let Some(outcome) = without_driver(&place, "plan --device cuda") else { return };
    outcome.check_refused(1, &["--budget: say how much memory to plan for", "no CUDA driver"]);
    let arguments = "plan --device cuda --budget 16MiB";
    let planned = without_driver(&place, arguments);
    assert!(planned.is_none_or(|outcome| outcome.code == Some(0)), "{arguments}");
}

#[test]
fn device_that_is_none_is_refused() {
    let place = Place::new();
    for device in ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", ""] {
        let outcome = Outcome::of(place.command("train --device").arg(device));
        outcome.check_refused(1, &["expected cpu, cuda, cuda:N"]);
    }
}

#[cfg(feature = "pretend")]
mod on_the_pretend_device {
    use serde_json::Value;

    use crate::place::{Outcome, Place};
    use crate::pretend::DRIVER;

    /// Largest relative difference between the losses of processor and device, after up to six
    /// steps.
    const TOLERANCE: f64 = 1e-4;

    fn train(place: &Place, arguments: &str, out: &str) -> Option<Value> {
        let folder = DRIVER.folder()?;
        let mut command = place.command(&format!("train {arguments} --out {out}"));
        Outcome::of(command.env("LOWTIDE_CUDA_LIBS", folder)).check_done();
        Some(place.json(&format!("{out}/summary.json")))
    }

    fn losses(place: &Place, out: &str) -> Vec<f64> {
        let text = String::from_utf8(place.read(&format!("{out}/metrics.jsonl"))).expect("UTF-8");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter_map(|line| line["loss"].as_f64()).collect()
    }

    #[test]
    fn main_job_is_that_of_the_processor() {
        let place = Place::new();
        let Some(found) = train(&place, "--epochs 1 --device cuda", "there") else { return };
        place.train("--epochs 1", "here");
        let [there, here] = ["there", "here"].map(|out| losses(&place, out));
        assert_eq!((there.len(), here.len()), (6, 6));
        for (found, expected) in there.iter().zip(&here) {
            assert!((found - expected).abs() <= TOLERANCE * expected, "{there:?}, not {here:?}");
        }
        assert_eq!(found["predicted_peak_bytes"], found["measured_peak_bytes"]);
        assert_eq!(found["retried_steps"], 0);
        let page = String::from_utf8(place.read("there/report.html")).expect("UTF-8");
        for fact in ["NVIDIA device 0", "Outside the allocator", "cuBLASLt 120800 in f32"] {
            assert!(page.contains(fact), "the page does not say `{fact}`");
        }
        // The pretend device has 64 MiB, and its context takes no memory.
        let outside_bytes = found["outside_bytes"].as_u64().expect("a number");
        assert_eq!(outside_bytes + found["budget_bytes"].as_u64().expect("a number"), 64 << 20);
        assert!(outside_bytes >= 2 << 20, "{found}");
        let kernels = found["product_kernels"].as_array().expect("a list");
        let is_linear = |kernel: &Value| kernel.as_str().is_some_and(|text| text.contains(" x "));
        assert!(!kernels.is_empty() && kernels.iter().all(is_linear), "{found}");
    }

    #[test]
    fn two_ranks_on_a_device_each_have_the_bits_of_one() {
        let place = Place::new();
        let task = "--epochs 1 --set train.leaf=32 --device cuda";
        let Some(one) = train(&place, task, "one") else { return };
        for zero in ["--zero 0", "--zero 1", "--zero 3"] {
            let ranks = format!("{task} --ranks 2 {zero}");
            let two = train(&place, &ranks, "two").expect("it ran");
            assert_eq!(two["final_state_hash"], one["final_state_hash"], "{zero}");
            assert_eq!(two["predicted_peak_bytes"], two["measured_peak_bytes"], "{zero}");
            let [two, one] = ["two", "one"].map(|out| losses(&place, out));
            assert_eq!(two, one, "{zero}");
        }
        // Gradients are divided one by one, without a tree of shards.
        let task_of = |zero| format!("--epochs 1 --device cuda --ranks 2 --zero {zero}");
        let [whole, divided] = [0, 2].map(|zero| train(&place, &task_of(zero), &zero.to_string()));
        let (whole, divided) = (whole.expect("it ran"), divided.expect("it ran"));
        assert_eq!(divided["final_state_hash"], whole["final_state_hash"]);
        assert_eq!(divided["predicted_peak_bytes"], divided["measured_peak_bytes"]);
        let model = ["width=16", "blocks=2", "hidden=16", "dropout=0.0"]
            .map(|set| format!("--set model.{set}"));
        let task = format!("digits-vit {} --epochs 1 --device cuda", model.join(" "));
        let one = train(&place, &task, "one").expect("it ran");
        for way in ["--pipeline", "--tensor-parallel"] {
            let two = train(&place, &format!("{task} --ranks 2 {way}"), "two").expect("it ran");
            assert_eq!(two["predicted_peak_bytes"], two["measured_peak_bytes"], "{way}");
            assert!(two["predicted_peak_bytes"].as_u64() < one["predicted_peak_bytes"].as_u64());
            let [two, one] = ["two", "one"].map(|out| losses(&place, out));
            for (found, expected) in two.iter().zip(&one) {
                assert!((found - expected).abs() < 1e-3 * expected, "{way}: {two:?}, not {one:?}");
            }
        }
        // The pretend driver has four devices.
        let folder = DRIVER.folder().expect("it was there");
        let mut command = place.command(&format!("train {task} --ranks 8"));
        Outcome::of(command.env("LOWTIDE_CUDA_LIBS", folder)).check_refused(1, &["device 4"]);
    }

    #[test]
    fn products_in_tf32_are_planned_for_and_have_nearly_the_same_losses() {
        let place = Place::new();
        let Some(plain) = train(&place, "--epochs 1 --device cuda", "plain") else { return };
        let found = train(&place, "--epochs 1 --device cuda --tf32", "tf32").expect("it ran");
        assert_eq!(found["products"], "cuBLASLt 120800 in tf32");
        assert_eq!(found["predicted_peak_bytes"], found["measured_peak_bytes"]);
        assert_ne!(found["final_state_hash"], plain["final_state_hash"]);
        let [rounded, exact] = ["tf32", "plain"].map(|out| losses(&place, out));
        for (found, expected) in rounded.iter().zip(&exact) {
            let apart = (found - expected).abs() / expected;
            assert!(apart <= 1e-2, "{rounded:?}, not {exact:?}");
        }
    }

    #[test]
    fn plan_on_a_device_says_what_multiplies_and_what_lies_outside() {
        let place = Place::new();
        let Some(folder) = DRIVER.folder() else { return };
        let mut command = place.command("plan --epochs 1 --device cuda");
        let plan = Outcome::of(command.env("LOWTIDE_CUDA_LIBS", folder)).check_done();
        assert!(plan.contains("products        by cuBLASLt 120800 in f32\n"), "{plan}");
        assert!(plan.contains("outside  ") && !plan.contains("assumed\n"), "{plan}");
        assert!(plan.contains("what the device has free, less a reserve"), "{plan}");
    }

    #[test]
    fn missing_library_is_told_once_and_the_run_goes_on() {
        let place = Place::new();
        let Some(folder) = DRIVER.folder() else { return };
        let without = place.path("without");
        std::fs::create_dir(&without).expect("a folder");
        for entry in std::fs::read_dir(folder).expect("readable") {
            let entry = entry.expect("readable");
            if !entry.file_name().to_string_lossy().starts_with("libcublasLt") {
                std::fs::copy(entry.path(), without.join(entry.file_name())).expect("room");
            }
        }
        let mut command = place.command("train --epochs 1 --device cuda --out own");
        let outcome = Outcome::of(command.env("LOWTIDE_CUDA_LIBS", without));
        let told = "lowtide: matrix products by lowtide's own kernel: no cuBLASLt";
        let lines = outcome.stderr.lines().filter(|line| line.starts_with(told)).count();
        assert_eq!(lines, 1, "{}", outcome.stderr);
        let words = outcome.check_done();
        assert!(words.contains("products         by lowtide's own kernel (no cuBLASLt"), "{words}");
        let summary = place.json("own/summary.json");
        let products = summary["products"].as_str().expect("text");
        assert!(products.starts_with("lowtide's own kernel"), "{products}");
    }

    #[test]
    fn plan_without_a_device_says_what_the_run_on_one_takes() {
        let place = Place::new();
        for options in ["--budget 5MiB", "--budget 16MiB", "--budget 16MiB --tf32"] {
            let arguments = format!("--epochs 1 --device cuda {options}");
            let words = place.run(&format!("plan {arguments}")).check_done();
            let Some(found) = train(&place, &arguments, "there") else { return };
            let micro_batch = format!("micro-batches of {}\n", found["micro_batch"]);
            let peak = format!("({} bytes)\n", found["measured_peak_bytes"]);
            let lines: Vec<&str> = words.lines().take_while(|line| !line.is_empty()).collect();
            let text = lines.join("\n") + "\n";
            assert!(text.contains(&micro_batch) && text.contains(&peak), "{text} not {found}");
        }
    }

    #[test]
    fn failed_allocation_of_any_step_changes_nothing_but_the_count_of_retries() {
        let place = Place::new();
        let Some(calm) = train(&place, "--epochs 1 --device cuda", "calm") else { return };
        let allocations = calm["allocations"].as_u64().expect("a number");
        // Six steps and one evaluation: up to two thirds of the allocations belong to steps.
        for twelfth in [0, 1, 3, 5, 8] {
            let nth = (allocations * twelfth / 12).max(1);
            let arguments = format!("--epochs 1 --device cuda --fault-at {nth}");
            let drill = train(&place, &arguments, "drill").expect("it ran before");
            for same in ["final_state_hash", "test_accuracy", "micro_batch"] {
                assert_eq!(drill[same], calm[same], "{same} after allocation {nth} failed");
            }
            // Allocation 1 is the memory for copying batches ahead, which the run can do without.
            assert_eq!(drill["retried_steps"], u64::from(nth > 1), "allocation {nth}");
        }
    }

    #[test]
    fn budget_that_is_too_small_for_a_batch_splits_it_and_holds() {
        let place = Place::new();
        let arguments = "--epochs 1 --budget 8MiB";
        let on_device = format!("{arguments} --device cuda");
        let Some(found) = train(&place, &on_device, "there") else { return };
        let here = place.train(arguments, "here");
        assert_eq!(found["micro_batch"], here["micro_batch"]);
        assert!(found["micro_batch"].as_u64() < found["batch_size"].as_u64(), "{found}");
        assert_eq!(found["predicted_peak_bytes"], found["measured_peak_bytes"]);
        assert!(found["measured_peak_bytes"].as_u64() <= Some(8 << 20), "{found}");
    }
}
