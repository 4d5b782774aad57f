//! The one method that names what a module owns: [`Nodes`].

use lowtide_autograd::SavedPolicy;

use crate::buffer::Buffer;
use crate::compress::quantized_weight::QuantizedWeight;
use crate::layers::linear::Linear;
use crate::parallel::features::branch::Shared;
use crate::parameter::Parameter;

/// Anything that owns parameters, buffers or modules, and names them.
///
/// [`parameters!`](crate::parameters) implements it from a list of fields. By hand it is a line for
/// each field. Everything else that is asked of a model, in [`Parameters`](crate::Parameters),
/// comes from this method: a field that it names is trained, stored, adapted, recomputed and
/// shared by ranks, and a field that it leaves out is none of these.
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
    /// Shows everything that the module owns to `visitor`, under PyTorch's names
    /// (`layers.0.weight`), once and in a fixed order, that of PyTorch's `state_dict`.
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>);
}

/// One thing that a module owns.
pub enum Node<'a> {
    /// A parameter with values of floats.
    Parameter(&'a mut Parameter),
    /// A buffer, such as running statistics or a part of a weight in few bits.
    Buffer(&'a mut Buffer),
    /// A linear layer, which can be [adapted](crate::adapt). Its own parameters and buffers are the
    /// nodes that follow.
    Linear(&'a mut Linear),
    /// The policy of a block, a [`Segment`](crate::Segment). What the block owns follows.
    Block(&'a mut Option<SavedPolicy>),
    /// A function that shows what several ranks can [share](crate::parallel::share_layers) of the
    /// module.
    Shared(&'a mut ShowShared<'a>),
}

/// A function that calls another one with each thing that ranks can share.
type ShowShared<'a> = dyn FnMut(&mut dyn FnMut(Shared<'_>)) + 'a;

/// The receiver of [`Nodes::visit_nodes`]: it knows the name of the module that is visited, and
/// calls a function for each node with the node's whole name.
pub struct Visitor<'a> {
    /// The name of the module.
    name: String,
    show: &'a mut dyn FnMut(&str, Node<'_>),
}

impl<'a> Visitor<'a> {
    /// A visitor of a whole model.
    pub fn new(show: &'a mut dyn FnMut(&str, Node<'_>)) -> Self {
        Visitor { name: String::new(), show }
    }

    /// Shows a field of the module: a parameter, a buffer, a module, or an option or a vector of
    /// these. The elements of a vector are called `{name}0`, `{name}1` and so on, or by an array of
    /// names. The nodes of a module with an empty name are called as if they were this module's.
    pub fn field<N, F: Field<N> + ?Sized>(&mut self, name: N, field: &mut F) {
        field.show(name, self);
    }

    /// Shows the parameters and buffers of a module that is used as it is, such as a teacher: it is
    /// stored, but its layers are not adapted, its blocks not recomputed, and ranks do not share
    /// it.
    pub fn values(&mut self, name: &str, module: &mut (impl Nodes + ?Sized)) {
        self.within(name, |visitor| {
            module.visit_nodes(&mut Visitor::new(&mut |name, node| match node {
                Node::Parameter(_) | Node::Buffer(_) => visitor.node(name, node),
                Node::Linear(_) | Node::Block(_) | Node::Shared(_) => {}
            }));
        });
    }

    /// Shows a single node of the module; an empty name stands for the module itself.
    pub fn node(&mut self, name: &str, node: Node<'_>) {
        self.within(name, |visitor| (visitor.show)(&visitor.name, node));
    }

    /// Runs `show` with the name of the module `name` in this one.
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

/// A field of a module under a name N: one string, or one for each part.
pub trait Field<N> {
    /// Shows the nodes of the field under `name`.
    fn show(&mut self, name: N, visitor: &mut Visitor<'_>);
}

impl<M: Nodes + ?Sized> Field<&str> for M {
    fn show(&mut self, name: &str, visitor: &mut Visitor<'_>) {
        visitor.within(name, |visitor| self.visit_nodes(visitor));
    }
}

/// A weight in few bits is shown as its buffers.
impl Field<&str> for Parameter {
    fn show(&mut self, name: &str, visitor: &mut Visitor<'_>) {
        match &mut self.quantized {
            Some(quantized) => visitor.field(name, &mut **quantized),
            None => visitor.node(name, Node::Parameter(self)),
        }
    }
}

/// The tensors of a weight in few bits are buffers, called by the parts of the format.
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

/// Elements are called `{name}0`, `{name}1` and so on.
impl<F: for<'n> Field<&'n str>> Field<&str> for Vec<F> {
    fn show(&mut self, name: &str, visitor: &mut Visitor<'_>) {
        for (index, field) in self.iter_mut().enumerate() {
            field.show(&format!("{name}{index}"), visitor);
        }
    }
}

/// Each element has a name of its own.
impl<N, F: Field<N>, const COUNT: usize> Field<[N; COUNT]> for Vec<F> {
    fn show(&mut self, names: [N; COUNT], visitor: &mut Visitor<'_>) {
        for (name, field) in names.into_iter().zip(self) {
            field.show(name, visitor);
        }
    }
}

/// Implements [`Nodes`] for a module from its fields, in the order of PyTorch's `state_dict`:
/// `parameters!(Block { norm, up as "mlp.0", convs as NAMES })`, and `parameters!(Tanh {})` for a
/// module that owns nothing. A field has the name that it has in Rust unless another follows: see
/// [`Visitor::field`]. With `, shared by METHOD` after the fields, that method shows what ranks can
/// share of the module itself: see [`Node::Shared`].
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
