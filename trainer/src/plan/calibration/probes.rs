//! The probes: operations as a training runs them, with few and with many samples for each class.

use lowtide_allocator::Category;
use lowtide_tensor::{
    AdamUpdate, AttentionOptions, Causal, Conv2dGeometry, DType, Device, Dropout, OpClass,
    Pool2dGeometry, RandomKey, Rounding, Statistics, Tensor, TensorResult,
};

/// Runs the operations of a probe once.
pub(super) type Run = Box<dyn FnMut() -> TensorResult<()>>;

/// The quantity that the time of an operation grows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    Arithmetic,
    Bytes,
}

/// Operations of one class with one limit.
pub(super) struct Probe {
    pub(super) class: OpClass,
    pub(super) limit: Limit,
    /// Makes operands for a number of samples on a device. Returns a function that runs the
    /// operations.
    pub(super) make: fn(&Device, usize) -> TensorResult<Run>,
}

const fn probe(
    class: OpClass,
    limit: Limit,
    make: fn(&Device, usize) -> TensorResult<Run>,
) -> Probe {
    Probe { class, limit, make }
}

const SAME: Conv2dGeometry =
    Conv2dGeometry { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 };
const STRIDED: Conv2dGeometry = Conv2dGeometry { stride: [2; 2], ..SAME };
const HALVES: Pool2dGeometry = Pool2dGeometry { kernel: [2; 2], stride: [2; 2], padding: [0; 2] };

/// All probes. A class without a probe for a limit gets the rate of elementwise operations.
pub(super) const PROBES: [Probe; 22] = [
    probe(OpClass::Product, Limit::Arithmetic, |device, count| products(device, count, 128, 128)),
    probe(OpClass::Product, Limit::Arithmetic, |device, count| products(device, count, 128, 512)),
    probe(OpClass::Convolution, Limit::Arithmetic, |d, count| {
        convolutions(d, [count, 32, 32, 32], SAME)
    }),
    probe(OpClass::Convolution, Limit::Arithmetic, |d, count| {
        convolutions(d, [count, 64, 16, 16], SAME)
    }),
    probe(OpClass::Convolution, Limit::Arithmetic, |d, count| {
        convolutions(d, [count, 128, 8, 8], SAME)
    }),
    probe(OpClass::CoarseConvolution, Limit::Arithmetic, |d, count| {
        convolutions(d, [count, 32, 16, 16], STRIDED)
    }),
    probe(OpClass::CoarseConvolution, Limit::Arithmetic, |d, count| {
        convolutions(d, [count, 64, 8, 8], STRIDED)
    }),
    probe(OpClass::CoarseConvolution, Limit::Arithmetic, |d, count| {
        convolutions(d, [count, 128, 2, 2], SAME)
    }),
    probe(OpClass::Attention, Limit::Arithmetic, attention),
    probe(OpClass::Elementwise, Limit::Arithmetic, |device, count| {
        stream(device, &[count, LEN], |x| x.gelu())
    }),
    probe(OpClass::Elementwise, Limit::Bytes, |device, count| {
        stream(device, &[count, LEN], |x| x.add(x))
    }),
    probe(OpClass::Reduction, Limit::Arithmetic, |device, count| {
        stream(device, &[count, LEN / 64, 64], |x| x.softmax(2))
    }),
    probe(OpClass::Reduction, Limit::Bytes, |device, count| {
        stream(device, &[count, LEN / 64, 64], |x| x.sum(&[0, 1]))
    }),
    probe(OpClass::Normalization, Limit::Bytes, layer_norms),
    probe(OpClass::Normalization, Limit::Bytes, batch_norms),
    probe(OpClass::Pooling, Limit::Bytes, pools),
    probe(OpClass::Indexing, Limit::Bytes, embeddings),
    probe(OpClass::Random, Limit::Arithmetic, |device, count| {
        let dropout = Dropout { probability: 0.1, key: RandomKey::new(0), first: 0 };
        stream(device, &[count, LEN], move |x| x.dropout(dropout))
    }),
    probe(OpClass::Update, Limit::Bytes, adam),
    probe(OpClass::Copy, Limit::Bytes, |device, count| {
        stream(device, &[count, LEN >> 7, 4, 32], |x| x.transpose(1, 2)?.contiguous())
    }),
    probe(OpClass::Copy, Limit::Bytes, |device, count| {
        stream(device, &[count, LEN], |x| Tensor::cat(&[x, x], 1))
    }),
    probe(OpClass::Transfer, Limit::Bytes, |device, count| {
        stream(device, &[count, LEN], |x| x.to_device(x.device(), Category::Activation))
    }),
];

/// Elements of a sample.
const LEN: usize = 1 << 14;

/// Bytes of operands between two uses of one operand: in a training, a tensor has left the small
/// caches by its next use.
const STREAM_BYTES: usize = 24 << 20;

/// Values like the outputs of a layer: the processor cannot predict a kernel's branches on them.
fn values(device: &Device, dims: &[usize]) -> TensorResult<Tensor> {
    let mut x = Tensor::empty(device, dims, DType::F32)?;
    x.normal_(RandomKey::new(0), 0.0, 1.0)?;
    Ok(x)
}

/// Runs an operation on one operand after the other. A result is kept until its operand is used
/// again, as results are kept for backward.
fn stream(
    device: &Device,
    dims: &[usize],
    work: impl Fn(&Tensor) -> TensorResult<Tensor> + 'static,
) -> TensorResult<Run> {
    let first = values(device, dims)?;
    let count = (STREAM_BYTES / first.size_bytes() / 2).clamp(2, 64);
    let operands: TensorResult<Vec<Tensor>> = (0..count).map(|_| first.copied()).collect();
    let operands = operands?;
    let (mut kept, mut next) = (vec![None; count], 0);
    Ok(Box::new(move || {
        kept[next] = None;
        kept[next] = Some(work(&operands[next])?);
        next = (next + 1) % count;
        Ok(())
    }))
}

/// x `[M, K]` · w `[K, N]` and the two gradients, with 64 rows for each sample.
fn products(device: &Device, count: usize, k: usize, n: usize) -> TensorResult<Run> {
    let m = 64 * count;
    let [x, w, dy] = [[m, k], [k, n], [m, n]].map(|dims| values(device, &dims));
    let (x, w, dy) = (x?, w?, dy?);
    Ok(Box::new(move || {
        x.matmul(&w)?;
        dy.matmul(&w.transpose(0, 1)?)?;
        x.transpose(0, 1)?.matmul(&dy).map(drop)
    }))
}

/// A convolution of 3 x 3 that keeps the number of channels, and its gradients.
fn convolutions(device: &Device, dims: [usize; 4], geometry: Conv2dGeometry) -> TensorResult<Run> {
    let channels = dims[1];
    let (x, w) = (values(device, &dims)?, values(device, &[channels, channels, 3, 3])?);
    let dy = x.conv2d(&w, None, geometry)?;
    Ok(Box::new(move || {
        x.conv2d(&w, None, geometry)?;
        dy.conv2d_backward_input(&w, *x.shape(), geometry)?;
        dy.conv2d_backward_weight(&x, *w.shape(), geometry).map(drop)
    }))
}

/// Causal attention of 4 heads over 128 tokens, and its gradients.
fn attention(device: &Device, count: usize) -> TensorResult<Run> {
    let x = values(device, &[count, 4, 128, 32])?;
    let options = AttentionOptions { causal: Causal::UpperLeft, ..Default::default() };
    Ok(Box::new(move || {
        let found = x.attention(&x, &x, None, &options)?;
        x.attention_backward([&x; 3], None, &found, &options).map(drop)
    }))
}

/// Layer norms of rows of 128 elements, and their gradients.
fn layer_norms(device: &Device, count: usize) -> TensorResult<Run> {
    let w = values(device, &[128])?;
    stream(device, &[count, LEN / 128, 128], move |x| {
        let found = x.layer_norm(1, Some(&w), Some(&w), 1e-5)?;
        let mean = found.mean.as_ref().expect("layer normalisation has means");
        Ok(x.layer_norm_backward(x, mean, &found.rstd, Some(&w))?.dx)
    })
}

/// Batch norms of images of 16 x 16 with 64 channels, and their gradients.
fn batch_norms(device: &Device, count: usize) -> TensorResult<Run> {
    let w = values(device, &[64])?;
    stream(device, &[count, 64, 16, 16], move |x| {
        let found = x.batch_norm(Some(&w), Some(&w), 1e-5)?;
        let (mean, variance) = (&found.mean, &found.variance);
        Ok(x.batch_norm_backward(x, mean, variance, Some(&w), Statistics::Batch, 1e-5)?.dx)
    })
}

/// Max pooling of 2 x 2, and its gradient.
fn pools(device: &Device, count: usize) -> TensorResult<Run> {
    stream(device, &[count, 16, 32, 32], |x| {
        let (y, winners) = x.max_pool2d(HALVES)?;
        y.max_pool2d_backward(&winners, *x.shape(), HALVES)
    })
}

/// Embedding lookups of rows of 128 elements, and the sums in the gradient.
fn embeddings(device: &Device, count: usize) -> TensorResult<Run> {
    let table = values(device, &[256, 128])?;
    let index = Tensor::zeros(device, [128 * count], DType::I64)?;
    Ok(Box::new(move || table.embedding(&index)?.embedding_backward(&index, 256).map(drop)))
}

fn adam(device: &Device, count: usize) -> TensorResult<Run> {
    let (betas, coupled, keep, rate) = ([0.9, 0.999], 0.0, 1.0, 1e-3);
    let formula = AdamUpdate { betas, coupled, keep, rate, root_scale: 1.0, eps: 1e-8 };
    let dims = [4 * LEN * count];
    let (mut p, g) = (values(device, &dims)?, values(device, &dims)?);
    let mut states = [Tensor::zeros(device, dims, DType::F32)?, g.abs()?];
    Ok(Box::new(move || p.update_(&g, &mut states, [], formula, Rounding::Nearest)))
}
