use lowtide_allocator::{Action, Category};
use lowtide_tensor::{
    Conv2dGeometry, DType, Device, DeviceKind, Labelling, Pool2dGeometry, SimSpec, Tensor,
    TensorResult as Result,
};

use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::OfTheProcessor;

/// An event of an allocator: action, category, size, requested size and place.
type Event = (Action, Category, usize, usize, usize);

fn events(device: &Device, first: u64) -> Vec<Event> {
    let history = device.allocator().history();
    let records = history.records().iter().filter(|record| record.sequence >= first);
    let event = |record: &lowtide_allocator::Record| {
        let sizes = (record.size_bytes, record.requested_bytes, record.offset);
        (record.action, record.category, sizes.0, sizes.1, sizes.2)
    };
    records.map(event).collect()
}

/// Operands of one step: images, filters, their bias, labels, weights of the classes.
struct Operands {
    x: Tensor,
    w: Tensor,
    b: Tensor,
    labels: Tensor,
    weight: Tensor,
}

impl Operands {
    fn on(device: &Device) -> Result<Operands> {
        let zeros = |dims: &[usize]| Tensor::zeros(device, dims, DType::F32);
        Ok(Operands {
            x: zeros(&[3, 4, 9, 9])?,
            w: zeros(&[6, 2, 3, 3])?,
            b: zeros(&[6])?,
            labels: Tensor::zeros(device, [3, 4, 4], DType::I64)?,
            weight: zeros(&[6])?,
        })
    }

    fn twins(&self, device: &Device) -> Operands {
        let twin = |x: &Tensor| x.simulated_copy(device).expect("made before");
        Operands {
            x: twin(&self.x),
            w: twin(&self.w),
            b: twin(&self.b),
            labels: twin(&self.labels),
            weight: twin(&self.weight),
        }
    }

    /// Runs everything forwards and backwards, with operands that are contiguous and that are not.
    fn step(&self) -> Result<()> {
        let Operands { x, w, b, labels, weight } = self;
        let geometry = Conv2dGeometry { padding: [1, 1], groups: 2, ..Default::default() };
        let pool = Pool2dGeometry::square(2);
        let turned = x.transpose(2, 3)?;
        for x in [x, &turned] {
            let y = x.conv2d(w, Some(b), geometry)?;
            let (z, winners) = y.max_pool2d(pool)?;
            let weight = Some(weight);
            let labelling = Labelling { smoothing: 0.1, weight, ..Default::default() };
            let loss = z.cross_entropy_with(labels, &labelling)?;
            let (dy, lse) = (&loss.sum, &loss.log_sum_exp);
            let dz = dy.cross_entropy_with_backward(&z, labels, lse, &labelling)?;
            let mut over = z;
            over.cross_entropy_backward_(labels, lse, dy, &labelling)?;
            let dy = dz.max_pool2d_backward(&winners, *y.shape(), pool)?;
            dy.conv2d_backward_weight(x, *w.shape(), geometry)?;
            dy.conv2d_backward_input(w, *x.shape(), geometry)?;
        }
        Ok(())
    }
}

#[test]
fn simulation_of_a_device_takes_the_same_memory_in_the_same_order() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    // Makes holes for later allocations.
    let before: Vec<Tensor> =
        [70, 9000, 300].map(|len| noise(&device, "x", &[len], [0.0, 1.0])).into();
    let operands = Operands::on(&device).unwrap();
    drop(before);
    let simulated = device.simulate();
    assert_eq!(simulated.kind(), DeviceKind::Cuda);
    let twins = operands.twins(&simulated);
    let first = [&device, &simulated].map(|device| device.allocator().event_count());
    operands.step().unwrap();
    twins.step().unwrap();
    let found = events(&simulated, first[1]);
    assert!(found.len() > 40, "{}", found.len());
    assert_eq!(found, events(&device, first[0]));
    let [real, sim] = [&device, &simulated].map(|device| device.allocator());
    assert_eq!(sim.statistics(), real.statistics());
    assert_eq!(sim.layout_hash(), real.layout_hash());
}

#[test]
fn what_has_no_kernel_fails_on_a_simulated_device_as_on_a_real_one() {
    let Some(gpu) = Gpu::take() else { return };
    let real = gpu.device();
    let errors = [real.simulate(), Device::sim(real.spec()).unwrap(), real].map(|device| {
        let zeros = |shape: [usize; 4]| Tensor::zeros(&device, shape, DType::F32).unwrap();
        // More groups than a row of the grid has blocks.
        let (x, w) = (zeros([1, 65_536, 1, 1]), zeros([65_536, 1, 1, 1]));
        let grouped = Conv2dGeometry { groups: 65_536, ..Default::default() };
        let found = [
            device.launch(OfTheProcessor, &[], &[&x]).err(),
            x.conv2d(&w, None, grouped).err(),
            x.exp().err(),
        ];
        found.map(|error| error.map_or("none".to_owned(), |error| error.to_string()))
    });
    for found in errors {
        let [own, grouped, exp] = found;
        assert_eq!(own, "of_the_processor: has no kernel for cuda");
        assert_eq!(grouped, "conv2d: has no kernel for cuda");
        assert_eq!(exp, "none");
    }
}

#[test]
fn device_like_cuda_asks_for_the_same_memory_as_one() {
    let Some(gpu) = Gpu::take() else { return };
    let spec = SimSpec::like_cuda(64 << 20);
    let asked = [gpu.device(), Device::sim(spec).unwrap()].map(|device| {
        Operands::on(&device).unwrap().step().unwrap();
        let of_blocks = |event: &Event| matches!(event.0, Action::Allocate | Action::Free);
        let all = events(&device, 0).into_iter().filter(of_blocks);
        all.map(|(action, category, _, requested, _)| (action, category, requested)).collect()
    });
    let [real, sim]: [Vec<_>; 2] = asked;
    assert_eq!(real, sim);
    let scratch: Vec<usize> = real
        .iter()
        .filter(|event| event.0 == Action::Allocate && event.1 == Category::Workspace)
        .map(|event| event.2)
        .filter(|size_bytes| *size_bytes > 0)
        .collect();
    // Only the losses have workspace: two numbers for each of 48 positions.
    assert_eq!(scratch, [2 * 48 * 4; 2]);
}
