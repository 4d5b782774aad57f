//! `Parameters` of modules whose fields have the names of a family.

/// Implements `Parameters` from fields and their names, which are known when the program runs; what
/// ranks can share of the module itself is shown by a method of it.
macro_rules! named {
    (
        $module:ty,
        |$self:ident| { $($field:expr => $name:expr),* $(,)? }
        $(, shared by $shared:ident)?
    ) => {
        impl lowtide_nn::Parameters for $module {
            fn visit(
                &mut $self,
                visitor: &mut dyn FnMut(&str, &mut lowtide_nn::Parameter),
            ) {
                use lowtide_nn::fields::Field;
                $($field.visit_as($name, visitor);)*
            }

            fn visit_buffers(
                &mut $self,
                visitor: &mut dyn FnMut(&str, &mut lowtide_nn::Buffer),
            ) {
                use lowtide_nn::fields::Field;
                $($field.visit_buffers_as($name, visitor);)*
            }

            fn visit_linears(
                &mut $self,
                visitor: &mut dyn FnMut(&str, &mut lowtide_nn::Linear),
            ) {
                use lowtide_nn::fields::Field;
                $($field.visit_linears_as($name, visitor);)*
            }

            fn visit_policies(
                &mut $self,
                visitor: &mut dyn FnMut(&mut Option<lowtide_autograd::SavedPolicy>),
            ) {
                use lowtide_nn::fields::Field;
                $($field.visit_policies_as($name, visitor);)*
            }

            fn visit_shared(
                &mut $self,
                visitor: &mut dyn FnMut(lowtide_nn::Shared<'_>),
            ) {
                use lowtide_nn::fields::Field;
                $($self.$shared(visitor);)?
                $($field.visit_shared_as($name, visitor);)*
            }
        }
    };
}

pub(crate) use named;
