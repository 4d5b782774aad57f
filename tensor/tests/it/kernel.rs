//! An operation that a user adds outside the crate.

use std::sync::Barrier;

use lowtide_tensor::{
    Cost, Cpu, DType, Device, Kernel, OpClass, Operands, Tensor, TensorError,
    TensorResult as Result,
};

use proptest::prelude::*;

use crate::common::{cpu, sim};

/// `y[i] = a[i] + t (b[i] - a[i])` for contiguous f32.
struct Lerp {
    t: f32,
    len: usize,
}

impl Kernel for Lerp {
    fn name(&self) -> &'static str {
        "lerp"
    }

    fn cost(&self) -> Cost {
        Cost {
            class: OpClass::Elementwise,
            flops: 3.0 * self.len as f64,
            bytes: 12.0 * self.len as f64,
        }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        const CHUNK_LEN: usize = 1000;
        let [a, b] = [0, 1].map(|index| operands.read::<f32>(index).slice());
        cpu.for_each_chunk(operands.write::<f32>(0).slice(), CHUNK_LEN, |index, y| {
            for (i, y) in (index * CHUNK_LEN..).zip(y) {
                *y = a[i] + self.t * (b[i] - a[i]);
            }
        });
        if a.first().is_some_and(|a| a.is_nan()) {
            return Err(TensorError::Index { op: "lerp", index: 0, len: 0 });
        }
        Ok(())
    }
}

fn lerp(a: &Tensor, b: &Tensor, t: f32) -> Result<Tensor> {
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let y = Tensor::empty(a.device(), *a.shape(), DType::F32)?;
    a.device().launch(Lerp { t, len: a.element_count() }, &[&a, &b], &[&y])?;
    Ok(y)
}

fn operands(device: &Device) -> [Tensor; 2] {
    [1.0, 3.0].map(|x| Tensor::full(device, [50, 51], DType::F32, x).unwrap())
}

#[test]
fn users_kernel_computes_on_the_cpu() {
    let [a, b] = operands(&cpu(3));
    let y = lerp(&a, &b.transpose(0, 1).unwrap().reshape([50, 51]).unwrap(), 0.25).unwrap();
    assert!(y.to_vec::<f32>().unwrap().iter().all(|&y| y == 1.5));
}

#[test]
fn users_kernel_costs_time_and_the_same_memory_on_the_simulation() {
    let (real, simulated) = (cpu(1), sim(1));
    for device in [&real, &simulated] {
        let [a, b] = operands(device);
        let seconds = device.simulated_seconds();
        lerp(&a, &b, 0.5).unwrap();
        assert_eq!(device.simulated_seconds() > seconds, device.is_simulated());
    }
    assert_eq!(real.allocator().statistics(), simulated.allocator().statistics());
}

#[test]
fn users_kernel_reports_errors_and_meets_the_checks() {
    let device = cpu(1);
    let [a, b] = operands(&device);
    let nan = Tensor::full(&device, [50, 51], DType::F32, f64::NAN).unwrap();
    assert!(lerp(&nan, &b, 0.5).unwrap_err().to_string().starts_with("lerp"));
    let launch = |y: &Tensor| device.launch(Lerp { t: 0.5, len: 1 }, &[&a, &b], &[y]);
    assert!(matches!(launch(&a), Err(TensorError::Overlap { op: "lerp", .. })));
    let error = lerp(&a, &operands(&sim(1))[0], 0.5).unwrap_err();
    assert!(matches!(error, TensorError::Device { op: "lerp", .. }));
}

/// Writes 1 to each destination.
struct Ones;

impl Kernel for Ones {
    fn name(&self) -> &'static str {
        "ones"
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for index in 0..operands.write_count() {
            operands.write::<f32>(index).slice().fill(1.0);
        }
        Ok(())
    }
}

#[test]
fn launch_takes_any_number_of_operands() {
    let device = cpu(1);
    let make = |_| Tensor::zeros(&device, [2], DType::F32).unwrap();
    let tensors: Vec<Tensor> = (0..300).map(make).collect();
    let reads: Vec<&Tensor> = tensors[..100].iter().collect();
    let writes: Vec<&Tensor> = tensors[100..].iter().collect();
    device.launch(Ones, &reads, &writes).unwrap();
    let sum = |tensors: &[&Tensor]| -> f32 {
        tensors.iter().flat_map(|tensor| tensor.to_vec::<f32>().unwrap()).sum()
    };
    assert_eq!([sum(&reads), sum(&writes)], [0.0, 400.0]);
}

/// Runs a function with the first operand that is read, inside the launch.
struct Inside<F>(F);

impl<F: FnOnce(&[f32]) -> Result<()>> Kernel for Inside<F> {
    fn name(&self) -> &'static str {
        "inside"
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }

    fn cpu(self, _: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        (self.0)(operands.read::<f32>(0).slice())
    }
}

#[test]
fn kernel_that_launches_on_its_own_operands_is_refused_instead_of_waiting_for_itself() {
    let device = cpu(2);
    let [a, b] = [1.0, 2.0].map(|x| Tensor::full(&device, [4], DType::F32, x).unwrap());
    let launch = |inside: &dyn Fn(&[f32]) -> Result<()>| {
        let outcome = device.launch(Inside(inside), &[&a], &[&b]);
        (outcome.is_ok(), a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap())
    };
    let in_use = |outcome: Result<()>| matches!(outcome, Err(TensorError::InUse { .. }));
    let unchanged = (true, vec![1.0; 4], vec![2.0; 4]);
    // An operand that the kernel reads may be read again by another launch, but not written.
    let reads_again = |slice: &[f32]| {
        assert_eq!(a.add(&a)?.to_vec::<f32>()?, [2.0; 4]);
        assert!(in_use(a.clone().fill_(9.0)));
        assert_eq!(slice, [1.0; 4]);
        Ok(())
    };
    assert_eq!(launch(&reads_again), unchanged);
    // An operand that the kernel writes is neither read nor written by others.
    let touches = |_: &[f32]| {
        assert!(in_use(b.clone().fill_(9.0)) && in_use(b.to_vec::<f32>().map(drop)));
        // A launch that is refused half-way gives back what it took.
        let c = Tensor::zeros(&device, [4], DType::F32)?;
        assert!(in_use(c.clone().copy_(&b)));
        c.clone().copy_(&a)
    };
    assert_eq!(launch(&touches), unchanged);
    // Also where the kernel fails or panics, the locks are gone.
    assert!(!launch(&|_| b.clone().fill_(9.0)).0);
    let panics = || device.launch(Inside(|_: &[f32]| panic!("as it may")), &[&a], &[&b]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    b.clone().fill_(3.0).unwrap();
    assert_eq!(b.to_vec::<f32>().unwrap(), [3.0; 4]);
}

#[test]
fn kernels_that_want_the_operands_of_each_other_do_not_wait_for_each_other() {
    let device = cpu(2);
    let [a, b] = [1.0, 2.0].map(|x| Tensor::full(&device, [4], DType::F32, x).unwrap());
    let both_run = Barrier::new(2);
    let refused = std::thread::scope(|scope| {
        let run = |own: Tensor, other: Tensor| {
            let (device, both_run) = (&device, &both_run);
            scope.spawn(move || {
                let inside = |_: &[f32]| {
                    both_run.wait();
                    let outcome = other.clone().fill_(9.0);
                    both_run.wait();
                    outcome
                };
                let c = Tensor::zeros(device, [4], DType::F32)?;
                device.launch(Inside(inside), &[&own], &[&c])
            })
        };
        let threads = [run(a.clone(), b.clone()), run(b.clone(), a.clone())];
        threads.map(|thread| matches!(thread.join().unwrap(), Err(TensorError::InUse { .. })))
    });
    assert_eq!(refused, [true; 2]);
    assert_eq!([a, b].map(|x| x.to_vec::<f32>().unwrap()[0]), [1.0, 2.0]);
}

proptest! {
    #[test]
    fn destinations_may_touch_no_other_operand(
        spans in prop::collection::vec((0..60usize, 0..6usize, any::<bool>(), any::<bool>()), 1..9),
    ) {
        let device = cpu(1);
        let bases = [0, 1].map(|_| Tensor::zeros(&device, [70], DType::F32).unwrap());
        let views: Vec<Tensor> = spans.iter().map(|&(start, len, _, is_first)| {
            bases[usize::from(is_first)].narrow(0, start, len).unwrap()
        }).collect();
        let of = |write: bool| -> Vec<&Tensor> {
            let those = views.iter().zip(&spans).filter(|(_, span)| span.2 == write);
            those.map(|(view, _)| view).collect()
        };
        let touch = |a: (usize, usize, bool, bool), b: (usize, usize, bool, bool)| {
            let common = a.0.max(b.0)..(a.0 + a.1).min(b.0 + b.1);
            (a.2 || b.2) && a.3 == b.3 && !common.is_empty()
        };
        let is_refused = spans.iter().enumerate()
            .any(|(at, &a)| spans[at + 1..].iter().any(|&b| touch(a, b)));
        let outcome = device.launch(Ones, &of(false), &of(true));
        prop_assert_eq!(
            matches!(outcome, Err(TensorError::Overlap { op: "ones", .. })), is_refused
        );
        prop_assert_eq!(outcome.is_ok(), !is_refused);
    }
}

#[test]
#[should_panic(expected = "wrong element type")]
fn wrong_element_type_in_a_kernel_is_a_bug() {
    let device = cpu(1);
    let [a, b] = operands(&device);
    let y = Tensor::zeros(&device, [50, 51], DType::F64).unwrap();
    let _ = device.launch(Lerp { t: 0.5, len: 1 }, &[&a, &b], &[&y]);
}

#[test]
#[should_panic(expected = "promised a contiguous operand")]
fn strided_operand_where_the_kernel_wants_a_slice_is_a_bug() {
    let device = cpu(1);
    let [a, b] = operands(&device);
    let y = Tensor::zeros(&device, [51, 50], DType::F32).unwrap().transpose(0, 1).unwrap();
    let _ = device.launch(Lerp { t: 0.5, len: 1 }, &[&a, &b], &[&y]);
}
