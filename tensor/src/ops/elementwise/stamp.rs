//! Macros that turn the table of formulas into enums, loops, methods and names of kernels.

/// The loop of a formula. A section with `update` reads the first source in place.
macro_rules! run {
    ($way:ident, $scalars:ident [$($p:ident),*], $from:ident $to:ident, ($($x:ident),+),
     { loop |$sources:ident, $target:ident| $all:expr }) => {{
        let ([$($p,)* ..], $sources, $target) = ($scalars, $from, $to);
        $all
    }};
    ($way:ident, $scalars:ident [$($p:ident),*], $from:ident $to:ident, ($($x:ident),+),
     $y:block) => {{
        let [$($p,)* ..] = $scalars.map(T::from_f64);
        run!(@$way ($($x),+) $from $to |$($x),+| $y)
    }};
    (@update ($x:ident) $($rest:tt)+) => { run!(@call map_or_update $($rest)+) };
    (@update ($a:ident, $b:ident) $($rest:tt)+) => { run!(@call zip_or_update $($rest)+) };
    (@update ($a:ident, $b:ident, $c:ident) $($rest:tt)+) => {
        run!(@call zip3_or_update $($rest)+)
    };
    (@write ($x:ident) $($rest:tt)+) => { run!(@call map $($rest)+) };
    (@write ($a:ident, $b:ident) $($rest:tt)+) => { run!(@call zip $($rest)+) };
    (@write ($a:ident, $b:ident, $c:ident) $($rest:tt)+) => { run!(@call zip3 $($rest)+) };
    (@call $loop:ident $from:ident $to:ident $formula:expr) => { $loop($from, $to, $formula) };
}

/// The method of a formula of one operand, and its in-place form.
macro_rules! method {
    ($op:expr, [$($p:ident),*],) => {};
    ($op:expr, [$($p:ident),*], $(#[$doc:meta])+ $method:ident, $in_place:ident) => {
        impl Tensor {
            $(#[$doc])+
            ///
            /// # Errors
            /// The errors of [`Tensor::add`].
            #[track_caller]
            pub fn $method(&self $(, $p: f64)*) -> Result<Tensor> {
                let op = Op::with($op, &[$($p),*]);
                Tensor::elementwise(stringify!($method), op, &[self], None)
            }

            #[doc = concat!("[`Tensor::", stringify!($method), "`] in place.")]
            ///
            /// # Errors
            /// The errors of [`Tensor::add_`].
            #[track_caller]
            pub fn $in_place(&mut self $(, $p: f64)*) -> Result<()> {
                let op = Op::with($op, &[$($p),*]);
                self.elementwise_(stringify!($method), op, &[], None)
            }
        }
    };
}

/// The method of a gradient, of `dy = self` and of the function's operand or result.
macro_rules! gradient_method {
    ($op:expr, [$($p:ident),*], $method:ident, $in_place:ident, $of:ident) => {
        impl Tensor {
            #[doc = concat!("The gradient for `dy = self` through the function that gives its ")]
            #[doc = concat!("name, from its `", stringify!($of), "`, in one pass. Floats only.")]
            ///
            /// # Errors
            /// `Shape` unless both shapes are the same, and the errors of [`Tensor::add`].
            #[track_caller]
            pub fn $method(&self, $of: &Tensor $(, $p: f64)*) -> Result<Tensor> {
                self.check_shape(stringify!($method), *$of.shape())?;
                let op = Op::with($op, &[$($p),*]);
                Tensor::elementwise(stringify!($method), op, &[self, $of], None)
            }

            #[doc = concat!("[`Tensor::", stringify!($method), "`] in place on `self = dy`.")]
            ///
            /// # Errors
            /// `Shape` unless both shapes are the same, and the errors of [`Tensor::add_`].
            #[track_caller]
            pub fn $in_place(&mut self, $of: &Tensor $(, $p: f64)*) -> Result<()> {
                self.check_shape(stringify!($method), *$of.shape())?;
                let op = Op::with($op, &[$($p),*]);
                self.elementwise_(stringify!($method), op, &[$of], None)
            }
        }
    };
}

/// The entry of a function in the list for tests; none for a formula without methods.
#[cfg(feature = "testing")]
macro_rules! listed {
    ($numbered:expr, [$($p:ident),*], $gradient:expr,) => { None };
    ($numbered:expr, [$($p:ident),*], $gradient:expr, $method:ident, $in_place:ident) => {
        Some(Function {
            name: stringify!($method),
            in_place_name: stringify!($in_place),
            scalars: &[$(stringify!($p)),*],
            is_numbered: $numbered,
            run: |x, scalars| {
                let [$($p),*] = *scalars else { panic!("a number for each scalar") };
                x.$method($($p),*)
            },
            run_in_place: |x, scalars| {
                let [$($p),*] = *scalars else { panic!("a number for each scalar") };
                x.$in_place($($p),*)
            },
            gradient: $gradient,
        })
    };
}

/// The entry of a gradient in the list for tests.
#[cfg(feature = "testing")]
macro_rules! listed_gradient {
    () => { None };
    ([$($p:ident),*], $method:ident, $in_place:ident, $of:ident) => {
        Some(FunctionGradient {
            name: stringify!($method),
            in_place_name: stringify!($in_place),
            of: stringify!($of),
            scalars: &[$(stringify!($p)),*],
            run: |dy, of, scalars| {
                let [$($p),*] = *scalars else { panic!("a number for each scalar") };
                dy.$method(of $(, $p)*)
            },
            run_in_place: |dy, of, scalars| {
                let [$($p),*] = *scalars else { panic!("a number for each scalar") };
                dy.$in_place(of $(, $p)*)
            },
        })
    };
}

/// The table of formulas.
macro_rules! formulas {
    ($($class:ident, $loop:ident, [$($bound:tt)+], $way:ident { $(
        $($(#[$doc:meta])+ pub fn $method:ident, $in_place:ident =)?
        $name:ident $([$($p:ident),+])? ($($x:ident),+)
          $cost:literal $([$kernel:ident])? { $($y:tt)+ }
        $(=> pub fn $g:ident, $g_in_place:ident = ($dy:ident, $of:ident $(; $($gp:ident),+)?)
          $g_cost:literal $([$g_kernel:ident])? { $($dx:tt)+ })?
    )* })*) => {
        $(
            /// A section of the table of formulas.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(super) enum $class { $($name),* }

            impl From<$class> for Formula {
                fn from(formula: $class) -> Formula {
                    Formula::$class(formula)
                }
            }

            impl $class {
                pub(super) fn source_count(self) -> usize {
                    match self { $($class::$name => [$(stringify!($x)),+].len()),* }
                }

                /// Arithmetic operations for each element.
                pub(super) fn flops(self) -> f64 {
                    match self { $($class::$name => $cost),* }
                }

                /// The number of the formula in `elementwise.cu`; `None` if the file lacks the
                /// formula.
                #[cfg(feature = "cuda")]
                pub(super) fn kernel_number(self) -> Option<u32> {
                    match self {
                        $($class::$name => number!($($kernel)?),)*
                    }
                }
            }

            /// `to[i] = formula(sources[..][i])`.
            #[inline(always)]
            pub(super) fn $loop<T: $($bound)+, F: Fused>(
                formula: $class,
                scalars: [f64; 2],
                from: &[&[T]],
                to: &mut [T],
            ) {
                match formula {
                    $($class::$name => {
                        run!($way, scalars [$($($p),+)?], from to, ($($x),+), { $($y)+ })
                    })*
                }
            }

            $(method! {
                $class::$name, [$($($p),+)?], $($(#[$doc])+ $method, $in_place)?
            })*
            $($(gradient_method! {
                Gradient::$name, [$($($gp),+)?], $g, $g_in_place, $of
            })?)*
        )*

        /// The functions of one operand that have methods.
        #[cfg(feature = "testing")]
        pub(super) static FUNCTIONS: &[Option<Function>] = &[$($(
            listed! {
                !stringify!($($kernel)?).is_empty(), [$($($p),+)?],
                listed_gradient!($([$($($gp),+)?], $g, $g_in_place, $of)?),
                $($method, $in_place)?
            },
        )*)*];

        /// Gradients. Each takes `dy` and the operand or result of the formula with the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Gradient { $($($(#[doc = stringify!($g)] $name,)?)*)* }

        impl From<Gradient> for Formula {
            fn from(formula: Gradient) -> Formula {
                Formula::Gradient(formula)
            }
        }

        impl Gradient {
            pub(super) fn flops(self) -> f64 {
                match self { $($($(Gradient::$name => $g_cost,)?)*)* }
            }

            /// The number of the formula in `elementwise.cu`; `None` if the file lacks the formula.
            #[cfg(feature = "cuda")]
            pub(super) fn kernel_number(self) -> Option<u32> {
                match self { $($($(Gradient::$name => number!($($g_kernel)?),)?)*)* }
            }
        }

        /// `to[i] = dx` of `dy = from[0][i]` and the operand or result `from[1][i]`.
        #[inline(always)]
        pub(super) fn gradient<T: SimdFloat, F: Fused>(
            formula: Gradient,
            scalars: [f64; 2],
            from: &[&[T]],
            to: &mut [T],
        ) {
            match formula {
                $($($(Gradient::$name => {
                    run!(write, scalars [$($($gp),+)?], from to, ($dy, $of), { $($dx)+ })
                })?)*)*
            }
        }
    };
}

/// The place of a name in its enum in `elementwise.cu`, looked up by the compiler.
#[cfg(feature = "cuda")]
macro_rules! number {
    () => {
        None
    };
    ($name:ident) => {
        Some(
            const {
                use crate::cuda::kernels::kernel_number;
                use crate::ops::elementwise::cuda::FORMULAS;
                kernel_number(FORMULAS, stringify!($name))
            },
        )
    };
}
