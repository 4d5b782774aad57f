//! Functions of tensors that are no layers.

pub(crate) mod distance;
pub(crate) mod dropout;
pub(crate) mod grid;
pub(crate) mod images;
pub(crate) mod pool_places;
pub(crate) mod volumes;
