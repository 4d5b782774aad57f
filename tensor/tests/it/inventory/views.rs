use super::{Entry, out};

pub(super) fn ops() -> Vec<Entry> {
    vec![
        out!(reshape, i => i.a.transpose(0, 1)?.reshape([65, 1001])),
        out!(view, i => i.a.view([1001, 65])),
        out!(flatten, i => i.image.transpose(2, 3)?.flatten(2..4)),
        out!(transpose, i => i.a.transpose(0, 1)),
        out!(t, i => i.a.t()),
        out!(movedim, i => i.image.movedim(1, 3)),
        out!(permute, i => i.image.permute(&[3, 1, 0, 2])),
        out!(narrow, i => i.a.narrow(0, 3, 20)),
        out!(slice, i => i.a.slice(0, 3..60, 4)),
        out!(diagonal, i => i.a.diagonal(3, 0, 1)),
        out!(unfold, i => i.a.unfold(1, 5, 3)),
        Entry { name: "split", run: |i| i.a.split(0, 7), half: true },
        Entry { name: "split_with_sizes", run: |i| i.a.split_with_sizes(0, &[5, 60]), half: true },
        Entry { name: "chunk", run: |i| i.a.chunk(1, 4), half: true },
        out!(select, i => i.a.select(1, 7)),
        out!(unsqueeze, i => i.a.unsqueeze(1)),
        out!(squeeze, i => i.row.squeeze(0)),
        out!(expand, i => i.row.expand([65, 1001])),
        out!(contiguous, i => i.a.transpose(0, 1)?.contiguous()),
        out!(copied, i => i.a.copied()),
    ]
}
