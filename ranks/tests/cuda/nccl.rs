//! Laws of ranks on NCCL: messages that do not fit, missing libraries, lost ranks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lowtide_allocator::cuda::{CudaDevice, Driver, Libraries};
use lowtide_ranks::{Collectives, RanksError, nccl};
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::cuda::gate::{Nccl, NcclError, NcclId};
use lowtide_tensor::{DType, Device, Tensor, TensorError};

use super::common::{DRIVER, PATIENT, device, numbers, on_ranks, on_threads, tensor};

const SHORT: Duration = Duration::from_millis(300);

/// Sizes that do not fit are an error. The real library would wait without end or write out of
/// bounds.
#[test]
fn messages_of_another_size_are_an_error_and_no_rank_hangs() {
    let Some(gpu) = DRIVER.pretend() else { return };
    for (gives, takes) in [(8, 8), (8, 6)] {
        let found = on_threads(2, PATIENT, |rank| {
            let (own, other) = (rank.rank().index, 1 - rank.rank().index);
            let device = device(&gpu, own);
            let library = Nccl::of(device.as_cuda().unwrap().device()).unwrap();
            let id = rank.exchange(&library.new_id().unwrap().0).unwrap().swap_remove(0);
            let id = NcclId(id.try_into().unwrap());
            let communicator = library.join(&id, own, 2, PATIENT).unwrap();
            let x = tensor(&device, &numbers(own, gives), DType::F32);
            let y = Tensor::zeros(&device, [if own == 0 { takes } else { gives }], DType::F32);
            let y = y.unwrap();
            let exchanged = device.exchange(&communicator, &[(other, x)], &[(other, y.clone())]);
            rank.barrier().unwrap();
            let values = exchanged.map(|()| y.to_vec::<f32>().unwrap());
            rank.barrier().unwrap();
            if values.is_err() {
                communicator.give_up();
            }
            values
        });
        if gives == takes {
            for (rank, found) in found.into_iter().enumerate() {
                let expected: Vec<f32> =
                    numbers(1 - rank, gives).iter().map(|&value| value as f32).collect();
                assert_eq!(found.unwrap(), expected);
            }
        } else {
            // The rank that comes second finds the mismatch.
            assert!(found.iter().any(Result::is_err), "{found:?}");
        }
    }
}

#[test]
fn two_ranks_on_one_device_are_refused_together() {
    let Some(gpu) = DRIVER.take() else { return };
    let found = on_threads(2, PATIENT, |rank| {
        nccl(Arc::new(rank), &device(&gpu, 0), PATIENT).expect_err("one device").to_string()
    });
    let expected = "ncclCommInitRankConfig failed with ncclInvalidUsage (5)";
    assert_eq!(found, [expected, expected]);
}

#[test]
fn without_the_library_all_ranks_hear_that_there_is_none() {
    let Some(_gpu) = DRIVER.pretend() else { return };
    let folder = DRIVER.folder().expect("it was there");
    let without: PathBuf = std::env::temp_dir().join(format!("no-nccl-{}", std::process::id()));
    std::fs::create_dir_all(&without).unwrap();
    std::fs::copy(folder.join("libcuda.so.1"), without.join("libcuda.so.1")).unwrap();
    std::fs::write(without.join("libnccl.so.2"), "no library").unwrap();
    for lacking in [&[0][..], &[1], &[0, 1]] {
        let found = on_threads(2, PATIENT, |rank| {
            let lacks = lacking.contains(&rank.rank().index);
            let from = if lacks { without.clone() } else { folder.clone() };
            let driver = Driver::open(&Libraries::in_folders([from])).unwrap();
            let device = CudaDevice::of(&driver, rank.rank().index).unwrap();
            let device = Device::cuda_on(&device, CudaOptions::default()).unwrap();
            let own = rank.rank().index;
            match nccl(Arc::new(rank), &device, PATIENT) {
                Err(RanksError::Tensor(TensorError::Messages(NcclError::Missing(_)))) => {
                    assert!(lacks, "rank {own}");
                }
                Err(RanksError::Refused { rank, .. }) => {
                    assert_eq!((lacks, rank), (false, lacking[0]));
                }
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(found.len(), 2);
    }
    std::fs::remove_dir_all(without).unwrap();
}

/// The device of a rank that gave up waiting does not wait either.
#[test]
fn a_rank_that_does_not_come_leaves_the_device_free() {
    let found = on_ranks(2, SHORT, |rank, device| {
        if rank.rank().index == 1 {
            std::thread::sleep(3 * SHORT);
            return None;
        }
        let mut x = tensor(&device, &numbers(0, 9), DType::F32);
        let error = rank.all_reduce(&mut x).expect_err("nobody is there");
        assert_eq!(x.to_vec::<f32>().unwrap().len(), 9);
        Some(error)
    });
    assert!(matches!(found[0], Some(RanksError::Late { .. })), "{:?}", found[0]);
}
