//! Initial values, distributed as PyTorch's.

/// The bound of the uniform distribution that PyTorch's linear and convolution layers start
/// from, weights and bias alike: `kaiming_uniform_(a = √5)` comes to `1 / √fan_in`
/// (`torch.nn.Linear.reset_parameters`).
pub fn default_bound(fan_in: usize) -> f64 {
    1.0 / (fan_in.max(1) as f64).sqrt()
}
