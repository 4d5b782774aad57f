//! The sample of cases on an NVIDIA device or the pretend driver: every operation and layer in
//! every type with a case.

use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::cuda::pretend::TestDriver;
use lowtide_scoreboard::case::{Cases, Kind};
use lowtide_scoreboard::outcome::{Law, Outcome};
use lowtide_scoreboard::run;
use lowtide_tensor::Device;
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::cuda::pretend::test_driver;

const DRIVER: TestDriver<'_> = test_driver(env!("CARGO_MANIFEST_DIR"), env!("CARGO_TARGET_TMPDIR"));

/// Names of operations without a kernel, with the reason.
const WITHOUT: [(&str, &str); 0] = [];

fn check(suite: &str) {
    let Some(gpu) = DRIVER.take() else { return };
    let device = CudaDevice::of(&gpu.driver, 0).expect("it is there");
    let device = Device::cuda_on(&device, CudaOptions::default()).expect("it has memory");
    let folder = DRIVER.package_folder().join("tests").join(suite);
    let (mut complaints, mut passed) = (Vec::new(), 0);
    for file in Cases::files(&folder).expect("the sample that is checked in") {
        let Cases { cases, bytes } = Cases::read(&file).expect("the sample that is checked in");
        for case in cases.iter().filter(|case| case.kind != Kind::Error) {
            let verdict = run::run_on(case, &bytes, &device);
            let broken =
                [&verdict.allocations, &verdict.bits].into_iter().find_map(|law| match law {
                    Law::Broken(why) => Some(why.clone()),
                    _ => None,
                });
            let failed = match &verdict.outcome {
                Outcome::Failed(why) => Some(why.clone()),
                Outcome::Passed | Outcome::PassedByTruth => None,
                // A case must fail for the same reason as on the CPU.
                outcome => (*outcome != run::run(case, &bytes).outcome)
                    .then(|| format!("another reason: {outcome:?}")),
            };
            let is_known = WITHOUT.iter().any(|(name, _)| *name == case.op);
            match failed.or(broken) {
                None => passed += 1,
                Some(why) if is_known && why.contains("has no kernel for cuda") => {}
                Some(why) => {
                    complaints.push(format!("{} {} {}: {why}", case.op, case.dtype, case.index));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{passed} passed\n{}", complaints.join("\n"));
    println!("{suite}: {passed} cases as in PyTorch");
    assert!(passed > 35, "{passed}");
}

#[test]
fn every_case_of_an_operation_is_as_in_pytorch_on_a_device() {
    check("opinfo");
}

#[test]
fn every_case_of_a_layer_is_as_in_pytorch_on_a_device() {
    check("moduleinfo");
}
