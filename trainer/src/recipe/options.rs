//! Structs of options that know their keys, with what is said of them.

/// A key of a recipe: its name, and its documentation.
pub(super) type Key = (&'static str, &'static str);

/// Structs with a default and a description for each field.
macro_rules! options {
    ($($(#[$about:meta])* $name:ident {
        $($(#[doc = $doc:literal])* $(#[serde($serde:meta)])?
        $field:ident: $type:ty = $default:expr,)*
    })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $doc])* $(#[serde($serde)])? pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }

        impl $name {
            /// Its keys.
            pub(super) const KEYS: &[crate::recipe::options::Key] =
                &[$((stringify!($field), concat!($($doc),*)),)*];
        }
    )*};
}

pub(super) use options;
