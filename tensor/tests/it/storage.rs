//! State of a storage: versions, sites, sharing; and threads that meet at its lock.

use std::thread;

use lowtide_allocator::Category;
use lowtide_tensor::{DType, Tensor};

use crate::common::cpu;

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(&cpu(2), dims, DType::F32).unwrap()
}

#[test]
fn version_counts_writes_and_nothing_else() {
    let base = zeros(&[2, 2]);
    let mut view = base.select(0, 1).unwrap();
    let start = base.version();
    let other = view.copied().unwrap();
    base.add(&base).unwrap();
    base.transpose(0, 1).unwrap().contiguous().unwrap();
    base.to_vec::<f32>().unwrap();
    base.matmul(&base).unwrap();
    assert_eq!(base.version(), start);
    view.add_(&other).unwrap();
    view.fill_(1.0).unwrap();
    assert_eq!([base.version(), view.version()], [start + 2; 2]);
    view.add_(&base.select(0, 1).unwrap()).unwrap_err();
    view.add_(&zeros(&[3])).unwrap_err();
    assert_eq!(base.version(), start + 2);
}

#[test]
fn last_write_is_the_callers_place() {
    let mut x = zeros(&[2]);
    let line = line!() + 1;
    x.mul_scalar_(2.0).unwrap();
    assert_eq!((x.last_write().file(), x.last_write().line()), (file!(), line));
}

#[test]
fn reusable_is_the_only_contiguous_unfrozen_handle() {
    let x = zeros(&[2, 3]);
    assert!(x.is_reusable());
    let view = x.select(0, 0).unwrap();
    assert!(!x.is_reusable() && !view.is_reusable());
    drop(x);
    assert!(view.is_reusable());
    view.freeze();
    assert!(!view.is_reusable());
    view.unfreeze();
    let column = zeros(&[2, 3]).select(1, 0).unwrap();
    assert!(!column.is_reusable());
    assert!(!view.expand([2, 3]).unwrap().is_reusable());
}

#[test]
fn last_handle_returns_the_memory() {
    let device = cpu(1);
    let live = || device.allocator().statistics().requested.current_bytes;
    let x = Tensor::zeros(&device, [100], DType::F64).unwrap();
    let view = x.narrow(0, 3, 1).unwrap();
    drop(x);
    assert_eq!(live(), 800);
    drop(view);
    assert_eq!(live(), 0);
}

#[test]
fn bytes_count_as_the_scope_says_and_workspace_never_does() {
    let device = cpu(1);
    let scope = device.category(Category::Activation);
    let x = Tensor::zeros(&device, [1, 1, 8, 8], DType::F32).unwrap();
    let y = x.conv2d(&x, None, Default::default()).unwrap();
    drop(scope);
    let z = Tensor::empty_in(&device, Category::Parameter, [3], DType::F32).unwrap();
    assert_eq!(
        [&x, &y, &z].map(Tensor::category),
        [Category::Activation, Category::Activation, Category::Parameter]
    );
    assert_eq!(x.copied().unwrap().category(), Category::Other);
}

/// Runs two threads at once; returns when both are done.
fn both(left: impl FnOnce() + Send, right: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(left);
        scope.spawn(right);
    });
}

#[test]
fn writes_of_two_threads_to_one_storage_are_all_kept() {
    // The rows are long, so that most of an operation's time is its loop, where updates could be
    // lost.
    const ROW_LEN: usize = 8000;
    const ROUNDS: usize = 2000;
    let base = zeros(&[2, ROW_LEN]);
    let one = Tensor::full(base.device(), [], DType::F32, 1.0).unwrap();
    let start = base.version();
    let write = |mut view: Tensor| {
        let one = one.clone();
        move || (0..ROUNDS).for_each(|_| view.add_(&one).unwrap())
    };
    // The views overlap in the second row.
    both(write(base.clone()), write(base.narrow(0, 1, 1).unwrap()));
    let rounds = ROUNDS as f32;
    let expected = [[rounds; ROW_LEN], [2.0 * rounds; ROW_LEN]].concat();
    assert_eq!(base.to_vec::<f32>().unwrap(), expected);
    assert_eq!(base.version(), start + 2 * ROUNDS as u64);
}

#[test]
fn two_storages_in_opposite_order_do_not_deadlock() {
    // The rows are short, so that most of an operation's time is its locks.
    const LEN: usize = 4;
    const ROUNDS: usize = 50_000;
    let device = cpu(1);
    let [a, b] = [1.0, 3.0].map(|x| Tensor::full(&device, [LEN], DType::F32, x).unwrap());
    let versions = [a.version(), b.version()];
    let blend = |to: &Tensor, from: &Tensor| {
        let (mut to, from) = (to.clone(), from.clone());
        move || (0..ROUNDS).for_each(|_| to.copy_(&from).unwrap())
    };
    both(blend(&a, &b), blend(&b, &a));
    assert_eq!([a.version(), b.version()], versions.map(|version| version + ROUNDS as u64));
    // The first copy gave both storages one value, and no later copy changes it.
    let values = [&a, &b].map(|x| x.to_vec::<f32>().unwrap());
    assert!(values == [[1.0; LEN]; 2] || values == [[3.0; LEN]; 2], "{values:?}");
}

/// Adds 1 to all of `a` and of `b`, and 1 more to the second row of each, in each of `2^depth`
/// tasks of the pool that runs this.
fn add_in_tasks(a: &Tensor, b: &Tensor, depth: usize) {
    if depth > 0 {
        // Exchanges the storages, so that tasks lock them in either order.
        rayon::join(|| add_in_tasks(a, b, depth - 1), || add_in_tasks(b, a, depth - 1));
        return;
    }
    let mut all = a.clone();
    all.add_scaled_(b, 0.0).unwrap();
    for tensor in [a, b] {
        tensor.clone().add_scalar_(1.0).unwrap();
        // The transposed row shares elements with views that other tasks write whole.
        let mut row = tensor.narrow(0, 1, 1).unwrap().transpose(0, 1).unwrap();
        row.add_scalar_(1.0).unwrap();
    }
}

#[test]
fn tasks_of_a_users_own_pool_neither_race_nor_deadlock() {
    // The rows are long enough for the device's own threads to take part.
    const ROW_LEN: usize = 40_000;
    const DEPTH: usize = 8;
    for threads in [1, 3] {
        let device = cpu(threads);
        let [a, b] = [(); 2].map(|()| Tensor::zeros(&device, [2, ROW_LEN], DType::F32).unwrap());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        pool.install(|| add_in_tasks(&a, &b, DEPTH));
        let tasks = (1 << DEPTH) as f32;
        let expected = [[tasks; ROW_LEN], [2.0 * tasks; ROW_LEN]].concat();
        for tensor in [a, b] {
            assert_eq!(tensor.to_vec::<f32>().unwrap(), expected, "{threads} threads");
        }
    }
}
