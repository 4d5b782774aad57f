// What the pretend driver and the library of kernels say to each other. The library is `kernels.so`
// beside the driver: the kernels, compiled for the processor, and `executor.cc`, which runs them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pretend {

// Bytes that a launch may use.
struct Extent {
  uint64_t address;
  uint64_t size_bytes;
  uint64_t is_written;
};

// A kernel of the library. Arguments lie one behind the other, each at a multiple of its alignment.
struct Kernel {
  const char* name;
  size_t parameter_count;
  const size_t* offsets;
  const size_t* sizes;
  void (*call)(const unsigned char* arguments);
};

struct Launch {
  const Kernel* kernel;
  unsigned blocks[3];
  unsigned threads[3];
  size_t shared_bytes;
  const unsigned char* arguments;
  const Extent* extents;
  size_t extent_count;
  uint64_t order;  // of threads and blocks: 0 forwards, 1 backwards, else the seed of a draw
};

// The library's two functions: `pretend_kernel` and `pretend_run`. The latter returns a code of the
// driver, and writes what is wrong with the kernel where that is not success.
using FindKernel = const Kernel* (*)(const char* name);
using RunKernel = int (*)(const Launch* launch, char* complaint, size_t complaint_bytes);

}  // namespace pretend
