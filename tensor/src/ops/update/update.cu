// Steps of optimizers, in one pass over the memory of a tensor, in place; the formulas are those of
// the processor, see `UpdateFormula`. A thread takes every n-th element.

struct Sgd {
  float decay;
  float keep;     // of the last direction
  float take;     // of the gradient
  float along_g;  // step size along the gradient
  float along_m;  // step size along the direction
};

// g += decay · p; m = keep · m + take · g; p -= along_g · g + along_m · m. m may be absent.
extern "C" __global__ void sgd_f32(float* parameter, float* momentum, const float* gradient,
                                   u64 len, Sgd sgd) {
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    float p = parameter[i];
    float g = gradient[i] + sgd.decay * p;
    float step = sgd.along_g * g;
    if (momentum != nullptr) {
      float m = sgd.keep * momentum[i] + sgd.take * g;
      momentum[i] = m;
      step += sgd.along_m * m;
    }
    parameter[i] = p - step;
  }
}

struct Adam {
  float beta1, take1;
  float beta2, take2;
  float coupled;     // decay that is added to the gradient: Adam
  float keep;        // of the parameter, beside the gradient: AdamW; else 1
  float rate;        // learning rate / (1 - beta1^t)
  float root_scale;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

// g += coupled · p; m = beta1 · m + take1 · g; v = beta2 · v + take2 · g²;
// p = keep · p - rate · m / (√v · root_scale + eps).
extern "C" __global__ void adam_f32(float* parameter, float* moment1, float* moment2,
                                    const float* gradient, u64 len, Adam adam) {
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    float p = parameter[i];
    float g = gradient[i] + adam.coupled * p;
    float m = adam.beta1 * moment1[i] + adam.take1 * g;
    float v = adam.beta2 * moment2[i] + adam.take2 * g * g;
    moment1[i] = m;
    moment2[i] = v;
    parameter[i] = adam.keep * p - adam.rate * m / (sqrtf(v) * adam.root_scale + adam.eps);
  }
}
