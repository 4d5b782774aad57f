//! Simulated time: the cost of each class of operation by the rates of a device.

use lowtide_tensor::{
    Cost, CpuOptions, DType, Device, OpClass, Rate, Rates, SimSpec, SimulatedWork, Tensor,
};

/// Rates that make every class twice as slow as the class before.
fn rates() -> Rates {
    let mut rates = Rates::nominal(1.0, 1.0);
    for (index, class) in OpClass::ALL.into_iter().enumerate() {
        let slower = f64::powi(2.0, index as i32);
        let rate = Rate {
            flops_per_second: 1e9 / slower,
            bytes_per_second: 1e9 / slower,
            launch_seconds: 1e-6 * slower,
        };
        rates = rates.with(class, rate);
    }
    rates
}

#[track_caller]
fn check_close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{found}, not {expected}");
}

#[test]
fn operation_takes_the_longer_of_arithmetic_and_bytes_and_its_launch() {
    for (index, class) in OpClass::ALL.into_iter().enumerate() {
        let slower = f64::powi(2.0, index as i32);
        let seconds = |flops, bytes| rates().seconds(Cost { class, flops, bytes });
        check_close(seconds(0.0, 0.0), 1e-6 * slower);
        check_close(seconds(5e3, 1e3), (5e-6 + 1e-6) * slower);
        check_close(seconds(5e3, 8e3), (8e-6 + 1e-6) * slower);
    }
}

#[test]
fn work_adds_up_by_class() {
    let spec = SimSpec { rates: rates(), ..SimSpec::like_this_machine(1 << 30) };
    let device = Device::sim(spec).unwrap();
    let x = Tensor::full(&device, [30, 30], DType::F32, 1.0).unwrap();
    let index = Tensor::zeros(&device, [7], DType::I64).unwrap();
    let of = |class| device.simulated_work(class);
    let before = OpClass::ALL.map(of);
    x.matmul(&x).unwrap();
    x.add(&x).unwrap().sum_all().unwrap();
    x.embedding(&index).unwrap();
    Tensor::cat(&[&x, &x], 0).unwrap();
    let launches = OpClass::ALL.map(of).map(|work| work.launch_count);
    let new = |class: OpClass| launches[class as usize] - before[class as usize].launch_count;
    let counts = OpClass::ALL.map(new);
    // Products, elementwise operations, reductions, lookups and copies.
    assert_eq!(counts, [1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0]);
    let product = of(OpClass::Product);
    assert_eq!((product.flops, product.bytes), (2.0 * 27_000.0, 3.0 * 3600.0));
    let cost = Cost { class: OpClass::Product, flops: product.flops, bytes: product.bytes };
    check_close(product.seconds, rates().seconds(cost));
    let sum: f64 = OpClass::ALL.map(|class| of(class).seconds).iter().sum();
    check_close(device.simulated_seconds(), sum);
}

#[test]
fn device_gives_its_rates_to_its_simulation_and_computes_without() {
    let own = CpuOptions { threads: Some(1), rates: Some(rates()), ..Default::default() };
    let device = Device::cpu(own).unwrap();
    assert_eq!((device.spec().rates, device.simulate().spec().rates), (rates(), rates()));
    let x = Tensor::full(&device, [4], DType::F32, 1.0).unwrap();
    assert_eq!(x.add(&x).unwrap().to_vec::<f32>().unwrap(), [2.0; 4]);
    assert_eq!(device.simulated_work(OpClass::Elementwise), SimulatedWork::default());

    let unmeasured = Device::cpu(CpuOptions::default()).unwrap();
    assert_eq!(unmeasured.spec().rates, SimSpec::like_this_machine(1).rates);
}
