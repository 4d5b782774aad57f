//! The trait with the one method that names everything that a module owns: [`Nodes`].

use lowtide_autograd::SavedPolicy;

use crate::buffer::Buffer;
use crate::compress::quantized_weight::QuantizedWeight;
use crate::layers::linear::Linear;
use crate::parallel::features::branch::Shared;
use crate::parameter::Parameter;

/// A type that owns parameters, buffers or modules, and names them.
///
/// [`parameters!`](crate::parameters) implements this trait from a list of fields. A manual
/// implementation has one line for each field. All methods of [`Parameters`](crate::Parameters) use
/// this list: a field on it is trained, stored, adapted, recomputed and shared by ranks; a field
/// that is missing is not.
///
/// ```
/// use lowtide_nn::{BatchNorm1d, Linear, Nodes, Parameters, Visitor};
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// struct Net {
///     norm: BatchNorm1d,
///     heads: Vec<Linear>,
/// }
///
/// impl Nodes for Net {
///     fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
///         visitor.field("norm", &mut self.norm);
///         visitor.field("heads.", &mut self.heads);
///     }
/// }
///
/// let device = Device::cpu(CpuOptions::default())?;
/// let head = Linear::without_bias(&device, RandomKey::new(0), 3, 2)?;
/// let mut net = Net { norm: BatchNorm1d::new(&device, 3)?, heads: vec![head] };
/// let mut names = Vec::new();
/// net.visit(&mut |name, _| names.push(name.to_owned()));
/// assert_eq!(names, ["norm.weight", "norm.bias", "heads.0.weight"]);
/// net.visit_buffers(&mut |name, _| names.push(name.to_owned()));
/// assert_eq!(names[3..5], ["norm.running_mean", "norm.running_var"]);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
pub trait Nodes {
    /// Shows everything that the module owns to `visitor`, once, under PyTorch's names
    /// (`layers.0.weight`) and in the order of PyTorch's `state_dict`.
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>);
}

/// A single part of a module.
pub enum Node<'a> {
    /// A parameter with values of floats.
    Parameter(&'a mut Parameter),
    /// A buffer, such as running statistics or a part of a weight in few bits.
    Buffer(&'a mut Buffer),
    /// A linear layer, which can be [adapted](crate::adapt). Its parameters and buffers follow as
    /// nodes of their own.
    Linear(&'a mut Linear),
    /// The policy of a block, a [`Segment`](crate::Segment). The nodes of the block follow.
    Block(&'a mut Option<SavedPolicy>),
    /// A function that shows the parts of the module that several ranks can
    /// [share](crate::parallel::share_layers).
    Shared(&'a mut ShowShared<'a>),
}

/// A function that shows every [`Shared`] part of a module to a visitor.
type ShowShared<'a> = dyn FnMut(&mut dyn FnMut(Shared<'_>)) + 'a;

/// The receiver of [`Nodes::visit_nodes`]. It keeps the name of the current module, and calls a
/// function for each node with the full name of the node.
pub struct Visitor<'a> {
    /// Full name of the current module.
    name: String,
    show: &'a mut dyn FnMut(&str, Node<'_>),
}

impl<'a> Visitor<'a> {
    /// A visitor of a whole model.
    pub fn new(show: &'a mut dyn FnMut(&str, Node<'_>)) -> Self {
        Visitor { name: String::new(), show }
    }

    /// Shows a field of the module: a parameter, a buffer, a module, or an option or a vector of
    /// these. The elements of a vector have the names `{name}0`, `{name}1` and so on, or the names
    /// of an array. With an empty name, the nodes of the field are named like nodes of this module.
    pub fn field<N, F: Field<N> + ?Sized>(&mut self, name: N, field: &mut F) {
        field.show(name, self);
    }

    /// Shows only the parameters and buffers of a module, such as a teacher. The module is stored,
    /// but its layers get no adapters, its blocks are not recomputed, and ranks do not share it.
    pub fn values(&mut self, name: &str, module: &mut (impl Nodes + ?Sized)) {
        self.within(name, |visitor| {
            module.visit_nodes(&mut Visitor::new(&mut |name, node| match node {
                Node::Parameter(_) | Node::Buffer(_) => visitor.node(name, node),
                Node::Linear(_) | Node::Block(_) | Node::Shared(_) => {}
            }));
        });
    }

    /// Shows a single node of the module. An empty name means the module itself.
    pub fn node(&mut self, name: &str, node: Node<'_>) {
        self.within(name, |visitor| (visitor.show)(&visitor.name, node));
    }

    /// Runs `show` with the name of the submodule `name`.
    fn within(&mut self, name: &str, show: impl FnOnce(&mut Self)) {
        let len = self.name.len();
        if len > 0 && !name.is_empty() {
            self.name.push('.');
        }
        self.name.push_str(name);
        show(self);
        self.name.truncate(len);
    }
}

/// A field of a module. The name N is a string, or a string for each part of the field.
pub trait Field<N> {
    /// Shows the nodes of the field under `name`.
    fn show(&mut self, name: N, visitor: &mut Visitor<'_>);
}

impl<M: Nodes + ?Sized> Field<&str> for M {
    fn show(&mut self, name: &str, visitor: &mut Visitor<'_>) {
        visitor.within(name, |visitor| self.visit_nodes(visitor));
    }
}

/// A quantised parameter is shown as its buffers.
impl Field<&str> for Parameter {
    fn show(&mut self, name: &str, visitor: &mut Visitor<'_>) {
        match &mut self.quantized {
            Some(quantized) => visitor.field(name, &mut **quantized),
            None => visitor.node(name, Node::Parameter(self)),
        }
    }
}

/// The tensors of a quantised weight are buffers, named by the parts of the format.
impl Nodes for QuantizedWeight {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        self.parts_mut().for_each(|(part, buffer)| visitor.field(part, buffer));
    }
}

impl Field<&str> for Buffer {
    fn show(&mut self, name: &str, visitor: &mut Visitor<'_>) {
        visitor.node(name, Node::Buffer(self));
    }
}

impl<N, F: Field<N>> Field<N> for Option<F> {
    fn show(&mut self, name: N, visitor: &mut Visitor<'_>) {
        if let Some(field) = self {
            field.show(name, visitor);
        }
    }
}

/// Elements have the names `{name}0`, `{name}1` and so on.
impl<F: for<'n> Field<&'n str>> Field<&str> for Vec<F> {
    fn show(&mut self, name: &str, visitor: &mut Visitor<'_>) {
        for (index, field) in self.iter_mut().enumerate() {
            field.show(&format!("{name}{index}"), visitor);
        }
    }
}

/// A vector with a fixed name for each element.
impl<N, F: Field<N>, const COUNT: usize> Field<[N; COUNT]> for Vec<F> {
    fn show(&mut self, names: [N; COUNT], visitor: &mut Visitor<'_>) {
        for (name, field) in names.into_iter().zip(self) {
            field.show(name, visitor);
        }
    }
}

/// Implements [`Nodes`] for a module. Fields are listed in the order of PyTorch's `state_dict`, as
/// in `parameters!(Block { norm, up as "mlp.0", convs as NAMES })`; `parameters!(Tanh {})` is for a
/// module without fields. The name of a field is its Rust name, unless `as` gives another; see
/// [`Visitor::field`]. After `, shared by METHOD`, the method shows the parts of the module that
/// ranks can share; see [`Node::Shared`].
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
        impl $crate::Nodes for $module {
            fn visit_nodes(&mut self, _visitor: &mut $crate::Visitor<'_>) {
                $(_visitor.node("", $crate::Node::Shared(&mut |visitor| self.$shared(visitor)));)?
                $(_visitor.field($crate::parameters!(@name $field $($name)?), &mut self.$field);)*
            }
        }
    };
    (@name $field:tt) => { stringify!($field) };
    (@name $field:tt $name:expr) => { $name };
}

pub(crate) use parameters;
