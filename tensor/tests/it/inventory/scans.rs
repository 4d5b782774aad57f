use super::Op;

pub(super) fn ops() -> Vec<Op> {
    Vec::new()
}
