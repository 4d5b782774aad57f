//! Sums of many small tensors at once. If the tensors were summed one by one, the ranks would spend
//! most of the time waiting for each other.

use std::ops::Range;

use lowtide_allocator::Category;
use lowtide_tensor::Tensor;

use crate::collectives::Collectives;
use crate::error::Result;
use crate::together::slice;

/// Size from which a tensor is summed alone.
const LARGE_BYTES: usize = 256 << 10;

/// Largest size of a bucket.
const BUCKET_BYTES: usize = 1 << 20;

/// [All-reduces](Collectives::all_reduce) each tensor, with the same bits. Small tensors of one
/// type are copied into buckets of up to 1 MiB, and each bucket is summed as one tensor.
///
/// # Errors
/// As for [`Collectives::all_reduce`].
pub fn all_reduce_each<'a>(
    ranks: &dyn Collectives,
    tensors: impl IntoIterator<Item = &'a mut Tensor>,
) -> Result<()> {
    let mut buckets: Vec<Bucket<'a>> = Vec::new();
    for tensor in tensors {
        if tensor.size_bytes() >= LARGE_BYTES || ranks.rank().count == 1 {
            ranks.all_reduce(tensor)?;
            continue;
        }
        match buckets.iter_mut().find(|bucket| bucket.accepts(tensor)) {
            Some(bucket) => {
                if bucket.size_bytes + tensor.size_bytes() > BUCKET_BYTES {
                    std::mem::take(bucket).all_reduce(ranks)?;
                }
                bucket.add(tensor);
            }
            None => {
                let mut bucket = Bucket::default();
                bucket.add(tensor);
                buckets.push(bucket);
            }
        }
    }
    buckets.into_iter().try_for_each(|bucket| bucket.all_reduce(ranks))
}

/// One or more tensors of one type on one device.
#[derive(Default)]
struct Bucket<'a> {
    tensors: Vec<&'a mut Tensor>,
    size_bytes: usize,
}

impl<'a> Bucket<'a> {
    fn accepts(&self, tensor: &Tensor) -> bool {
        let first = &self.tensors[0];
        first.dtype() == tensor.dtype() && first.device() == tensor.device()
    }

    fn add(&mut self, tensor: &'a mut Tensor) {
        self.size_bytes += tensor.size_bytes();
        self.tensors.push(tensor);
    }

    fn all_reduce(mut self, ranks: &dyn Collectives) -> Result<()> {
        if let [alone] = &mut self.tensors[..] {
            return ranks.all_reduce(alone);
        }
        let mut sum = or_refuse(ranks, self.joined())?;
        ranks.all_reduce(&mut sum)?;
        or_refuse(ranks, self.split(&sum))
    }

    /// All tensors joined into one.
    fn joined(&self) -> Result<Tensor> {
        let (first, len) = (&self.tensors[0], self.places().last().map_or(0, |place| place.end));
        let all = Tensor::empty_in(first.device(), Category::Workspace, [len], first.dtype())?;
        for (tensor, place) in self.tensors.iter().zip(self.places()) {
            slice(&all, place)?.copy_(&tensor.view([tensor.element_count()])?)?;
        }
        Ok(all)
    }

    /// Copies each tensor's part of `sum` into the tensor.
    fn split(&mut self, sum: &Tensor) -> Result<()> {
        let places: Vec<_> = self.places().collect();
        for (tensor, place) in self.tensors.iter_mut().zip(places) {
            tensor.copy_(&slice(sum, place)?.view(*tensor.shape())?)?;
        }
        Ok(())
    }

    /// The range of each tensor in the joined one.
    fn places(&self) -> impl Iterator<Item = Range<usize>> {
        self.tensors.iter().scan(0, |end, tensor| {
            let start = *end;
            *end += tensor.element_count();
            Some(start..*end)
        })
    }
}

/// Returns `own`, and makes the next call of the other ranks fail if `own` is an error.
fn or_refuse<R>(ranks: &dyn Collectives, own: Result<R>) -> Result<R> {
    if let Err(error) = &own {
        ranks.refuse(&error.to_string())?;
    }
    own
}
