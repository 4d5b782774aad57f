// Steps of optimizers, in one pass over the memory of a tensor, in place. Formulas as
// `torch.optim.SGD`, `torch.optim.Adam` and `torch.optim.AdamW` (PyTorch documentation). The
// gradient is multiplied by `scale` first, and by what `factor` points to, where it does: what was
// found on the device needs no way over the host. A thread takes every n-th element.

__device__ inline float scale_of(float scale, const float* factor) {
  return factor != nullptr ? scale * *factor : scale;
}

struct Sgd {
  float rate;
  float keep;   // of the last direction; in the first step 0, which has none
  float take;   // of the gradient
  float ahead;  // of the direction, added to the gradient: Nesterov; without it the direction alone
  float decay;
  float scale;
};

// v = keep · v + take · g; p -= rate · (g + ahead · v), or rate · v where ahead is 0.
// Without v: p -= rate · g.
extern "C" __global__ void sgd_f32(float* parameter, float* momentum, const float* gradient,
                                   const float* factor, u64 len, Sgd sgd) {
  float scale = scale_of(sgd.scale, factor);
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    float p = parameter[i];
    float g = scale * gradient[i] + sgd.decay * p;
    if (momentum != nullptr) {
      float v = sgd.take * g;
      if (sgd.keep != 0.0f) v += sgd.keep * momentum[i];
      momentum[i] = v;
      g = sgd.ahead != 0.0f ? g + sgd.ahead * v : v;
    }
    parameter[i] = p - sgd.rate * g;
  }
}

struct Adam {
  float rate;  // learning rate / (1 - beta1^t)
  float beta1, take1;
  float beta2, take2;
  float root_scale;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float coupled;  // decay that is added to the gradient: Adam
  float keep;     // of the parameter, beside the gradient: AdamW; else 1
  float scale;
};

// m = beta1 · m + take1 · g; v = beta2 · v + take2 · g²;
// p = keep · p - rate · m / (√v · root_scale + eps).
extern "C" __global__ void adam_f32(float* parameter, float* moment1, float* moment2,
                                    const float* gradient, const float* factor, u64 len,
                                    Adam adam) {
  float scale = scale_of(adam.scale, factor);
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    float p = parameter[i];
    float g = scale * gradient[i] + adam.coupled * p;
    float m = adam.beta1 * moment1[i] + adam.take1 * g;
    float v = adam.beta2 * moment2[i] + adam.take2 * g * g;
    moment1[i] = m;
    moment2[i] = v;
    parameter[i] = adam.keep * p - adam.rate * m / (sqrtf(v) * adam.root_scale + adam.eps);
  }
}
