//! Resized images on NVIDIA devices, see `upsample2d.cu`.

use super::cpu::Line;
use super::{Corners, Interpolation, Upsample2d};
use crate::cuda::gate::{Argument, Parameter, Signature};
use crate::cuda::kernels::{UPSAMPLE2D, grid, typed_name};
use crate::cuda::{Cuda, CudaOperands, OnCuda};
use crate::dtype::DType;
use crate::error::Result;
use Parameter::{Read, U64, Words, Write};

/// The kernel parameter `struct Line`, in words.
const LINE: Parameter = Words(5);

fn words(line: &Line, dtype: DType) -> [u64; 5] {
    let kind = match line.interpolation {
        Interpolation::Nearest => 0,
        Interpolation::Bilinear(Corners::Aligned) => 1,
        Interpolation::Bilinear(Corners::Centers) => 2,
    };
    // Each output then equals an input, for every scale.
    let copies = if line.copied(0).is_some() { line.out_len / line.in_len } else { 0 };
    let is_wide = dtype == DType::F64 && line.interpolation != Interpolation::Nearest;
    let scale = if is_wide { line.scale::<f64>() } else { f64::from(line.scale::<f32>()) };
    [line.in_len as u64, line.out_len as u64, kind, copies as u64, scale.to_bits()]
}

impl OnCuda for Upsample2d {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let name = match self.is_backward {
            false => typed_name!("upsample2d", self.dtype),
            true => typed_name!("upsample2d_backward", self.dtype),
        };
        let kernel = Signature { name, parameters: &[Write, Read, U64, LINE, LINE] };
        let [rows, columns] = self.lines.each_ref().map(|line| words(line, self.dtype));
        let (to, from) = (operands.write(0), operands.read(0));
        let planes = Argument::U64(self.planes as u64);
        let lines = [&rows, &columns].map(|line| Argument::Words(line));
        let arguments = [to.to_write(), from.to_read(), planes, lines[0], lines[1]];
        let len = to.layout().shape().element_count();
        cuda.launch(UPSAMPLE2D.of(self.dtype), &kernel, grid(len), &arguments)
    }
}
