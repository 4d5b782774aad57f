//! Operands of a kernel on the CPU: slices of elements, with their layouts.

use crate::layout::{Layout, Shape};

/// Elements to read: a slice from the first to the last touched element, and the layout in this
/// slice.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    layout: Layout,
}

impl<'a, T> View<'a, T> {
    /// The elements of `layout`, which counts from the beginning of `data`.
    pub(crate) fn new(data: &'a [T], layout: Layout) -> Self {
        View { data, layout }
    }

    /// A view of `shape` that repeats one value.
    pub(crate) fn repeated(value: &'a T, shape: Shape) -> Self {
        let layout = Layout::contiguous(Shape::new(&[]));
        let layout = layout.expand(shape).expect("one element stretches to every shape");
        View { data: std::slice::from_ref(value), layout }
    }

    /// The slice from the first to the last touched element.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// The shape and strides inside [`View::data`].
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The elements in row-major order.
    ///
    /// # Panics
    /// If the elements are not contiguous, which is a bug of the operation.
    pub fn slice(&self) -> &'a [T] {
        assert!(self.layout.is_contiguous(), "the operation promised a contiguous operand");
        self.data
    }
}

/// Elements to write; see [`View`].
pub struct ViewMut<'a, T> {
    data: &'a mut [T],
    layout: Layout,
}

impl<'a, T> ViewMut<'a, T> {
    /// The elements of `layout`, which counts from the beginning of `data`.
    pub(crate) fn new(data: &'a mut [T], layout: Layout) -> Self {
        ViewMut { data, layout }
    }

    /// The slice from the first to the last touched element.
    pub fn data(&mut self) -> &mut [T] {
        self.data
    }

    /// The shape and strides inside [`ViewMut::data`].
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The slice from the first to the last touched element, for as long as the kernel runs.
    pub(crate) fn into_data(self) -> &'a mut [T] {
        self.data
    }

    /// The elements in row-major order.
    ///
    /// # Panics
    /// If the elements are not contiguous, which is a bug of the operation.
    pub fn slice(self) -> &'a mut [T] {
        assert!(self.layout.is_contiguous(), "the operation promised a contiguous operand");
        self.data
    }
}
