//! Functions of tensors without layers, and the layers of volumes.

pub(crate) mod distance;
pub(crate) mod dropout;
pub(crate) mod grid;
pub(crate) mod images;
pub(crate) mod pool_places;
pub(crate) mod volumes;
