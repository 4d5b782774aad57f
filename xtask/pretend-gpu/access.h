// Which memory a kernel uses, and whether it may: bounds, and the order between threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor.h"

// For what the executor itself keeps in the library's memory.
#define EXECUTOR_OWN __attribute__((section("executor")))

namespace pretend {

// Values of `cudaError_enum`.
const int SUCCESS = 0;
const int ILLEGAL_ADDRESS = 700;
const int MISALIGNED_ADDRESS = 716;
const int LAUNCH_FAILED = 719;

// The thread that runs now, and what is wrong with the launch.
struct Access {
  unsigned thread;       // in its block
  unsigned block;        // counted from 1 through all launches
  unsigned first_block;  // of this launch
  unsigned block_epoch;  // barriers of the block so far
  unsigned warp_epochs[1024];
  uint64_t stack;        // of the running fiber; 0 while none runs
  int code;
  char complaint[512];
};
extern Access access;

void begin_launch(const Launch& launch, size_t stack_bytes, uint64_t dynamic_shared);
void begin_block(unsigned thread_count, unsigned index);
void end_launch();

// Notes what is wrong; the first time counts.
void complain(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Ends the running thread.
void give_up();

}  // namespace pretend
