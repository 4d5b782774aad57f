use super::{Op, out};

pub(super) fn ops() -> Vec<Op> {
    vec![
        out!(reshape, i => i.a.transpose(0, 1)?.reshape([65, 1001])),
        out!(flatten, i => i.image.transpose(2, 3)?.flatten(2..4)),
        out!(transpose, i => i.a.transpose(0, 1)),
        out!(permute, i => i.image.permute(&[3, 1, 0, 2])),
        out!(narrow, i => i.a.narrow(0, 3, 20)),
        out!(select, i => i.a.select(1, 7)),
        out!(unsqueeze, i => i.a.unsqueeze(1)),
        out!(squeeze, i => i.row.squeeze(0)),
        out!(expand, i => i.row.expand([65, 1001])),
        out!(contiguous, i => i.a.transpose(0, 1)?.contiguous()),
        out!(copied, i => i.a.copied()),
    ]
}
