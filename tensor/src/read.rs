//! Values of tensors, read by the host.

use std::panic::Location;

use crate::dtype::{Element, Value, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::tensor::Tensor;
use crate::transfer::Download;

impl Tensor {
    /// The elements in row-major order. Waits for the device.
    ///
    /// # Errors
    /// `DType` when `T` is another type, `ValueUnavailable` on a simulated device. An NVIDIA device
    /// reports failures of earlier work too, and `Label` if a loss had a wrong label.
    #[track_caller]
    pub fn to_vec<T: Value>(&self) -> Result<Vec<T>> {
        let op = "to_vec";
        let right = T::Element::DTYPE;
        if self.dtype() != right {
            return Err(TensorError::DType { op, left: self.dtype(), right });
        }
        if self.device().is_simulated() {
            return Err(TensorError::ValueUnavailable { op, site: Location::caller() });
        }
        let mut values: Vec<T::Element> = Vec::with_capacity(self.element_count());
        self.device().launch(Download { values: &mut values }, &[self], &[])?;
        Ok(values.into_iter().map(T::from_element).collect())
    }

    /// The elements in row-major order, native byte order. Waits for the device.
    ///
    /// # Errors
    /// `ValueUnavailable` on a simulated device.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if self.device().is_simulated() {
            let op = "to_bytes";
            return Err(TensorError::ValueUnavailable { op, site: Location::caller() });
        }
        for_each_dtype!(self.dtype(), T => {
            let values = self.to_vec::<T>()?;
            Ok(bytemuck::cast_slice(&values).to_vec())
        })
    }

    /// The only element. Waits for the device.
    ///
    /// # Errors
    /// `Shape` unless there is exactly one element, and the errors of [`Tensor::to_vec`].
    #[track_caller]
    pub fn item<T: Value>(&self) -> Result<T> {
        self.check_item::<T>()?;
        if self.device().is_simulated() {
            return Err(TensorError::ValueUnavailable { op: "item", site: Location::caller() });
        }
        Ok(self.to_vec::<T>()?[0])
    }

    /// `Ok` if there is one element, of type `T`.
    fn check_item<T: Value>(&self) -> Result<()> {
        let (op, dtype) = ("item", T::Element::DTYPE);
        if self.element_count() != 1 {
            let right = Shape::new(&[]);
            return Err(TensorError::Shape { op, left: *self.shape(), right });
        }
        if self.dtype() != dtype {
            return Err(TensorError::DType { op, left: self.dtype(), right: dtype });
        }
        Ok(())
    }

    /// [`Tensor::item`] on a real device. A simulated device returns `assumed`, and adds it and the
    /// caller's place to its list of assumptions.
    ///
    /// # Errors
    /// The errors of [`Tensor::item`], without `ValueUnavailable`.
    #[track_caller]
    pub fn item_assuming<T: Element>(&self, assumed: T) -> Result<T> {
        let Some(sim) = self.device().simulation() else { return self.item() };
        self.check_item::<T>()?;
        self.storage().await_copy()?;
        self.device().order_copies()?;
        sim.assume(assumed.to_f64(), Location::caller());
        Ok(assumed)
    }
}
