//! Sums of many small tensors: most of their time would be that in which ranks meet.

use std::ops::Range;

use lowtide_allocator::Category;
use lowtide_tensor::Tensor;

use crate::collectives::Collectives;
use crate::error::Result;
use crate::together::slice;

/// A tensor of as many bytes has a sum of its own.
const LARGE_BYTES: usize = 256 << 10;

/// Small tensors that are summed at once, at most.
const BUCKET_BYTES: usize = 1 << 20;

/// [All-reduces](Collectives::all_reduce) each tensor, to the same bits. Small ones of a type are
/// copied side by side, up to 1 MiB at a time, and summed as one.
///
/// # Errors
/// Those of [`Collectives::all_reduce`].
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
        match buckets.iter_mut().find(|bucket| bucket.is_of_kind(tensor)) {
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

/// Tensors of one type on one device, one or more.
#[derive(Default)]
struct Bucket<'a> {
    tensors: Vec<&'a mut Tensor>,
    size_bytes: usize,
}

impl<'a> Bucket<'a> {
    fn is_of_kind(&self, tensor: &Tensor) -> bool {
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
        let mut sum = or_refuse(ranks, self.side_by_side())?;
        ranks.all_reduce(&mut sum)?;
        or_refuse(ranks, self.take(&sum))
    }

    fn side_by_side(&self) -> Result<Tensor> {
        let (first, len) = (&self.tensors[0], self.places().last().map_or(0, |place| place.end));
        let all = Tensor::empty_in(first.device(), Category::Workspace, [len], first.dtype())?;
        for (tensor, place) in self.tensors.iter().zip(self.places()) {
            slice(&all, place)?.copy_(&tensor.view([tensor.element_count()])?)?;
        }
        Ok(all)
    }

    fn take(&mut self, sum: &Tensor) -> Result<()> {
        let places: Vec<_> = self.places().collect();
        for (tensor, place) in self.tensors.iter_mut().zip(places) {
            tensor.copy_(&slice(sum, place)?.view(*tensor.shape())?)?;
        }
        Ok(())
    }

    /// Where the elements of each tensor are.
    fn places(&self) -> impl Iterator<Item = Range<usize>> {
        self.tensors.iter().scan(0, |end, tensor| {
            let start = *end;
            *end += tensor.element_count();
            Some(start..*end)
        })
    }
}

/// The own result; of a failure the others hear where they meet next.
fn or_refuse<R>(ranks: &dyn Collectives, own: Result<R>) -> Result<R> {
    if let Err(error) = &own {
        ranks.refuse(&error.to_string())?;
    }
    own
}
