//! Uniform random numbers, a function of key and place.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::dtype::for_float;
use crate::layout::Nest;
use crate::{Cost, DType, Element, Kernel, Operands, RandomKey, Result, Tensor};

const CHUNK_LEN: usize = 1 << 14;

struct Uniform {
    key: RandomKey,
    low: f64,
    high: f64,
    dtype: DType,
    len: usize,
}

impl Kernel for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
    }

    fn cost(&self) -> Cost {
        let bytes = (self.len * self.dtype.size_bytes()) as f64;
        Cost { flops: 40.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let Uniform { key, low, high, .. } = self;
        for_float!(self.dtype, T => {
            let mut out = operands.write::<T>(0);
            let nest = Nest::new(out.layout().shape(), [out.layout().strides()]);
            let mut first = 0;
            nest.runs(self.len, |[at], len| {
                let run = &mut out.data()[at..][..len];
                for_each_chunk(cpu.pool(), run, CHUNK_LEN, |index, chunk| {
                    for (i, x) in (first + index * CHUNK_LEN..).zip(chunk) {
                        let unit = f64::from(key.uniform(i as u64));
                        *x = T::from_f64(low + (high - low) * unit);
                    }
                });
                first += len;
            });
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

impl Tensor {
    /// Fills with uniform numbers from `[low, high)`: element `i`, in row-major order, is the
    /// `i`-th of `key`'s stream, 24 random bits each.
    ///
    /// # Errors
    /// `DType` unless float, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn uniform_(&mut self, key: RandomKey, low: f64, high: f64) -> Result<()> {
        self.check_float("uniform")?;
        let kernel = Uniform { key, low, high, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[], &[self])
    }
}
