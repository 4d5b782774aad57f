use lowtide_tensor::{QuantFormat, Quantized, Scales, TensorResult as Result};

use super::{Entry, Inputs, in_place, out};

const HALVES: Scales = Scales { beta: -0.5, alpha: 1.5 };

/// The matrix `left` in 4 bits.
fn quantized(i: &Inputs) -> Result<Quantized> {
    Quantized::encode(&i.left, QuantFormat::Nf4 { double: true })
}

pub(super) fn ops() -> Vec<Entry> {
    vec![
        out!(matmul, i => i.left.matmul(&i.right)),
        out!(bmm, i => i.image.select(0, 1)?.bmm(&i.image.select(0, 2)?.transpose(1, 2)?)),
        out!(dot, i => i.left.select(0, 3)?.dot(&i.right.select(1, 5)?)),
        out!(matvec, i => i.left.matvec(&i.right.select(1, 5)?)),
        out!(outer, i => i.left.select(0, 3)?.outer(&i.right.select(1, 5)?)),
        out!(linear, i => i.right.transpose(0, 1)?.linear(&i.left, Some(&i.bias))),
        Entry {
            name: "linear_weight_gradient",
            run: |i| {
                let (dw, db) = i.right.linear_weight_gradient(&i.left.transpose(0, 1)?)?;
                Ok([Some(dw), db].into_iter().flatten().collect())
            },
            half: true,
        },
        out!(addmm, i => i.bias.unsqueeze(1)?.addmm(&i.left, &i.right, HALVES)),
        out!(addmv, i => i.bias.addmv(&i.left, &i.right.select(1, 5)?, HALVES)),
        out!(baddbmm, i => {
            let [a, b] = [i.image.select(0, 1)?, i.image.select(0, 2)?.transpose(1, 2)?];
            i.scalar.baddbmm(&a, &b, HALVES)
        }),
        Entry {
            name: "decode",
            run: |i| Ok(vec![quantized(i)?.decode(i.left.dtype())?]),
            half: true,
        },
        Entry {
            name: "decode_rows",
            run: |i| Ok(vec![quantized(i)?.decode_rows(3, 7, i.left.dtype())?]),
            half: true,
        },
        Entry { name: "encode", run: |i| Ok(quantized(i)?.parts().to_vec()), half: true },
        out!(linear_int8, i => {
            let w = Quantized::encode(&i.left, QuantFormat::Int8Rows)?;
            i.right.transpose(0, 1)?.linear_int8(&w, Some(&i.bias))
        }),
        out!(linear_quantized, i => {
            i.right.transpose(0, 1)?.linear_quantized(&quantized(i)?, Some(&i.bias))
        }),
        out!(linear_quantized_backward, i => {
            i.left.transpose(0, 1)?.linear_quantized_backward(&quantized(i)?)
        }),
        in_place!(matmul_add_, i => i.a.matmul_add_(&i.b.narrow(1, 0, 170)?, &i.b.narrow(0, 0, 1)?
            .expand([170, 1001])?)),
    ]
}
