//! Structs of options that know their keys and descriptions.

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
            /// Name and description of each key.
            pub(super) const KEYS: &[crate::recipe::options::Key] =
                &[$((stringify!($field), concat!($($doc),*)),)*];
        }
    )*};
}

/// A kind of data or of model, for the help.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) keys: &'static [Key],
    /// Values of the keys that have a default.
    pub(super) defaults: toml::Table,
}

/// Declares a table of a recipe that has one of several kinds, with the options of each kind. After
/// `each` comes a method that returns a field that all options have.
macro_rules! kinds {
    ($(#[$about:meta])* $table:ident {
        $($(#[doc = $doc:literal])* $kind:ident($options:ident) = $name:literal,)*
    } $(#[doc = $field_doc:literal])* each $method:ident($field:ident: $type:ty)) => {
        crate::recipe::options::kinds! {
            $(#[$about])*
            $table { $($(#[doc = $doc])* $kind($options) = $name,)* }
        }

        impl $table {
            $(#[doc = $field_doc])*
            pub fn $method(&mut self) -> &mut $type {
                match self {
                    $($table::$kind(options) => &mut options.$field,)*
                }
            }
        }
    };
    ($(#[$about:meta])* $table:ident {
        $($(#[doc = $doc:literal])* $kind:ident($options:ident) = $name:literal,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "kind")]
        pub enum $table {
            $($(#[doc = $doc])* #[serde(rename = $name)] $kind($options),)*
        }

        impl $table {
            /// The kind's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $($table::$kind(_) => $name,)*
                }
            }

            /// All kinds of the table.
            pub(super) fn kinds() -> Vec<crate::recipe::options::Kind> {
                vec![$(crate::recipe::options::Kind {
                    name: $name,
                    about: concat!($($doc),*),
                    keys: $options::KEYS,
                    defaults: toml::Table::try_from($options::default()).expect("plain values"),
                },)*]
            }
        }
    };
}

pub(super) use {kinds, options};
