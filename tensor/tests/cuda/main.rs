//! Tensors on the pretend device, or on any, next to the same on the processor; see `gpu`.

mod alike;
mod attention;
mod blas;
mod channels;
mod compiled;
mod compiler;
mod conv2d;
mod copies;
mod cross_entropy;
mod elementwise;
mod gpu;
mod gradients;
mod indexing;
mod linear_loss;
mod max_pool2d;
mod norm;
mod products;
mod random;
mod reduce;
mod rows;
mod shortage;
mod simulation;
mod storage;
mod twins;
