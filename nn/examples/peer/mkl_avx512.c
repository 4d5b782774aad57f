/* Answers for MKL whether the processor is Intel's, which it asks before it uses AVX-512: loaded
   before PyTorch's libraries (LD_PRELOAD), it shows what the same PyTorch does on such a one. */
int mkl_serv_intel_cpu_true(void) { return 1; }
