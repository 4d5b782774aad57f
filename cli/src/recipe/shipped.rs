//! Shipped recipes, in the folder `recipes` of this crate.

use std::path::Path;

/// A shipped recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// The name of the recipe: `lowtide train NAME`.
    pub name: &'static str,
    /// The recipe, with a description in a comment at its top.
    pub text: &'static str,
}

impl Shipped {
    /// The recipe of this name.
    pub fn find(name: &Path) -> Option<Shipped> {
        SHIPPED.iter().copied().find(|shipped| name == Path::new(shipped.name))
    }

    /// The description in a sentence or two.
    pub fn about(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("# "));
        lines.collect::<Vec<_>>().join(" ")
    }
}

macro_rules! shipped {
    ($($name:literal)*) => {
        /// Every shipped recipe.
        pub const SHIPPED: &[Shipped] = &[$(Shipped {
            name: $name,
            text: include_str!(concat!("../../recipes/", $name, ".toml")),
        }),*];
    };
}

shipped! {
    "digits"
    "digits-mlp"
    "digits-deep-cnn"
    "digits-resnet"
    "digits-vit"
    "digits-unet"
    "mnist"
    "cifar10-resnet"
    "folder-resnet"
    "text-gpt"
    "text-lstm"
    "text-seq2seq"
    "chat-gpt"
    "gpt2-124m"
    "resnet50"
    "vit-b16"
}
