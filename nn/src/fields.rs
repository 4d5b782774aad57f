//! From a list of a module's fields to its [`Parameters`]: what [`parameters!`](crate::parameters)
//! is made of.

#[doc(no_inline)]
pub use crate::buffer::Buffer;
#[doc(no_inline)]
pub use crate::layers::linear::Linear;
#[doc(no_inline)]
pub use crate::module::Parameters;
#[doc(no_inline)]
pub use crate::parameter::Parameter;
#[doc(no_inline)]
pub use crate::tensor_parallel::Shared;
#[doc(no_inline)]
pub use lowtide_autograd::SavedPolicy;

/// Implements [`Parameters`] for a module from its fields in the order of PyTorch's `state_dict`:
/// `parameters!(Block { norm, up as "mlp.0", convs as NAMES })`. A field is a parameter, a buffer,
/// a module, or an option or a vector of these. It is called what it is called in Rust, unless a
/// name follows; `""` gives the names below it without a prefix. With `, shared by METHOD` after
/// the fields, that shows what ranks can share of the module itself: see
/// [`Parameters::visit_shared`].
///
/// ```
/// use lowtide_nn::{Linear, Parameter, Parameters, parameters};
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// struct Scaled {
///     linear: Linear,
///     scale: Parameter,
/// }
///
/// parameters!(Scaled { linear as "fc", scale });
///
/// let device = Device::cpu(CpuOptions::default())?;
/// let linear = Linear::new(&device, RandomKey::new(0), 3, 2)?;
/// let mut scaled = Scaled { linear, scale: Parameter::full(&device, [2], 1.0)? };
/// let mut names = Vec::new();
/// scaled.visit(&mut |name, _| names.push(name.to_owned()));
/// assert_eq!(names, ["fc.weight", "fc.bias", "scale"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! parameters {
    ($module:ty { $($field:tt $(as $name:expr)?),* $(,)? } $(, shared by $shared:ident)?) => {
        impl $crate::fields::Parameters for $module {
            fn visit(
                &mut self,
                visitor: &mut dyn FnMut(&str, &mut $crate::fields::Parameter),
            ) {
                use $crate::fields::Field;
                $(self.$field.visit_as($crate::parameters!(@name $field $($name)?), visitor);)*
            }

            fn visit_buffers(
                &mut self,
                visitor: &mut dyn FnMut(&str, &mut $crate::fields::Buffer),
            ) {
                use $crate::fields::Field;
                $(self.$field.visit_buffers_as(
                    $crate::parameters!(@name $field $($name)?),
                    visitor,
                );)*
            }

            fn visit_policies(
                &mut self,
                visitor: &mut dyn FnMut(&mut Option<$crate::fields::SavedPolicy>),
            ) {
                use $crate::fields::Field;
                $(self.$field.visit_policies_as(
                    $crate::parameters!(@name $field $($name)?),
                    visitor,
                );)*
            }

            fn visit_linears(
                &mut self,
                visitor: &mut dyn FnMut(&str, &mut $crate::fields::Linear),
            ) {
                use $crate::fields::Field;
                $(self.$field.visit_linears_as(
                    $crate::parameters!(@name $field $($name)?),
                    visitor,
                );)*
            }

            fn visit_shared(&mut self, visitor: &mut dyn FnMut($crate::fields::Shared<'_>)) {
                use $crate::fields::Field;
                $(self.$shared(visitor);)?
                $(self.$field.visit_shared_as(
                    $crate::parameters!(@name $field $($name)?),
                    visitor,
                );)*
            }
        }
    };
    (@name $field:tt) => { stringify!($field) };
    (@name $field:tt $name:expr) => { $name };
}

pub(crate) use parameters;

/// What a module can have as a field, with `N` for its name: one string, or one for each part.
pub trait Field<N> {
    /// Shows its parameters under `name`.
    fn visit_as(&mut self, name: N, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        let _ = (name, visitor);
    }

    /// Shows its buffers under `name`.
    fn visit_buffers_as(&mut self, name: N, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        let _ = (name, visitor);
    }

    /// Shows the policies of its blocks, which have no names.
    fn visit_policies_as(&mut self, name: N, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        let _ = (name, visitor);
    }

    /// Shows its linear layers under `name`.
    fn visit_linears_as(&mut self, name: N, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        let _ = (name, visitor);
    }

    /// Shows what ranks can share of it, which has no names.
    fn visit_shared_as(&mut self, name: N, visitor: &mut dyn FnMut(Shared<'_>)) {
        let _ = (name, visitor);
    }
}

/// One in few bits is buffers.
impl Field<&str> for Parameter {
    fn visit_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        if self.quantized.is_none() {
            visitor(name, self);
        }
    }

    fn visit_buffers_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        if let Some(quantized) = &mut self.quantized {
            quantized.visit_buffers(name, visitor);
        }
    }
}

impl Field<&str> for Buffer {
    fn visit_buffers_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        visitor(name, self);
    }
}

/// Its own names below `name` and a dot.
impl<M: Parameters + ?Sized> Field<&str> for M {
    fn visit_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        match name {
            "" => self.visit(visitor),
            _ => self.visit(&mut |own, parameter| visitor(&format!("{name}.{own}"), parameter)),
        }
    }

    fn visit_buffers_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        match name {
            "" => self.visit_buffers(visitor),
            _ => self.visit_buffers(&mut |own, buffer| visitor(&format!("{name}.{own}"), buffer)),
        }
    }

    fn visit_policies_as(&mut self, _: &str, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        self.visit_policies(visitor);
    }

    fn visit_linears_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        self.visit_linears(&mut |own, linear| match (name, own) {
            ("", own) => visitor(own, linear),
            (name, "") => visitor(name, linear),
            _ => visitor(&format!("{name}.{own}"), linear),
        });
    }

    fn visit_shared_as(&mut self, _: &str, visitor: &mut dyn FnMut(Shared<'_>)) {
        self.visit_shared(visitor);
    }
}

impl<N, F: Field<N>> Field<N> for Option<F> {
    fn visit_as(&mut self, name: N, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        if let Some(field) = self {
            field.visit_as(name, visitor);
        }
    }

    fn visit_buffers_as(&mut self, name: N, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        if let Some(field) = self {
            field.visit_buffers_as(name, visitor);
        }
    }

    fn visit_policies_as(&mut self, name: N, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        if let Some(field) = self {
            field.visit_policies_as(name, visitor);
        }
    }

    fn visit_linears_as(&mut self, name: N, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        if let Some(field) = self {
            field.visit_linears_as(name, visitor);
        }
    }

    fn visit_shared_as(&mut self, name: N, visitor: &mut dyn FnMut(Shared<'_>)) {
        if let Some(field) = self {
            field.visit_shared_as(name, visitor);
        }
    }
}

/// Each element under `{name}0`, `{name}1` and so on.
impl<F: for<'a> Field<&'a str>> Field<&str> for Vec<F> {
    fn visit_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        for (index, field) in self.iter_mut().enumerate() {
            field.visit_as(&format!("{name}{index}"), visitor);
        }
    }

    fn visit_buffers_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        for (index, field) in self.iter_mut().enumerate() {
            field.visit_buffers_as(&format!("{name}{index}"), visitor);
        }
    }

    fn visit_policies_as(&mut self, name: &str, visitor: &mut dyn FnMut(&mut Option<SavedPolicy>)) {
        self.iter_mut().for_each(|field| field.visit_policies_as(name, visitor));
    }

    fn visit_linears_as(&mut self, name: &str, visitor: &mut dyn FnMut(&str, &mut Linear)) {
        for (index, field) in self.iter_mut().enumerate() {
            field.visit_linears_as(&format!("{name}{index}"), visitor);
        }
    }

    fn visit_shared_as(&mut self, name: &str, visitor: &mut dyn FnMut(Shared<'_>)) {
        self.iter_mut().for_each(|field| field.visit_shared_as(name, visitor));
    }
}

/// Each element under its own name.
impl<N, F: Field<N>, const COUNT: usize> Field<[N; COUNT]> for Vec<F> {
    fn visit_as(&mut self, names: [N; COUNT], visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        for (name, field) in names.into_iter().zip(self) {
            field.visit_as(name, visitor);
        }
    }

    fn visit_buffers_as(&mut self, names: [N; COUNT], visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        for (name, field) in names.into_iter().zip(self) {
            field.visit_buffers_as(name, visitor);
        }
    }

    fn visit_policies_as(
        &mut self,
        names: [N; COUNT],
        visitor: &mut dyn FnMut(&mut Option<SavedPolicy>),
    ) {
        for (name, field) in names.into_iter().zip(self) {
            field.visit_policies_as(name, visitor);
        }
    }

    fn visit_linears_as(&mut self, names: [N; COUNT], visitor: &mut dyn FnMut(&str, &mut Linear)) {
        for (name, field) in names.into_iter().zip(self) {
            field.visit_linears_as(name, visitor);
        }
    }

    fn visit_shared_as(&mut self, names: [N; COUNT], visitor: &mut dyn FnMut(Shared<'_>)) {
        for (name, field) in names.into_iter().zip(self) {
            field.visit_shared_as(name, visitor);
        }
    }
}
