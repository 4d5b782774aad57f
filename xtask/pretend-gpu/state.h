// State of the pretend driver, shared by its entry points, and the guard that each one begins with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace pretend {

// Values of `cudaError_enum`.
enum Code : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  ILLEGAL_ADDRESS = 700,
  NOT_SUPPORTED = 801,
};

// Physical memory. It goes when its owner and every mapping let go of it.
struct Physical {
  int device;
  std::vector<size_t> pages;  // numbers of the device's pages
  size_t mappings;
  bool is_owned;
};

// Reserved addresses, between two guards that never show anything.
struct Range {
  size_t size_bytes;
  uint64_t guarded_start;
  size_t guarded_bytes;
};

struct Mapping {
  size_t size_bytes;
  uint64_t handle;
  bool is_allowed;
};

// One entry of a stream's queue.
struct Work {
  enum Kind { COPY, PUT, FILL, RECORD, WAIT };
  explicit Work(Kind kind) : kind(kind) {}
  Kind kind;
  uint64_t target = 0;
  uint64_t source = 0;
  size_t size_bytes = 0;
  std::vector<unsigned char> data;  // of PUT, taken when it was enqueued
  unsigned char value = 0;
  uint64_t event = 0;
  uint64_t ticket = 0;     // of RECORD and WAIT: the nth record of the event
  uint64_t awaited = 0;    // of WAIT: the stream that the record is on
};

struct Event {
  uint64_t recorded = 0;  // tickets given
  uint64_t done = 0;      // tickets reached
  uint64_t stream = 0;    // of the last record
};

struct Device {
  size_t capacity_bytes = 0;
  size_t taken_bytes = 0;  // by somebody else
  int file = -1;           // the memory
  std::vector<bool> used;  // pages
  size_t used_count = 0;
  int retained = 0;
};

struct Fault {
  int code = 0;
  uint64_t nth = 0;
  bool is_forever = false;
};

struct State {
  bool is_initialised = false;
  int lost = SUCCESS;  // what every call returns once a device is lost
  size_t page_bytes = 2 << 20;
  size_t context_bytes = 0;
  std::vector<Device> devices;
  std::map<uint64_t, Range> ranges;
  std::map<uint64_t, Mapping> mappings;
  std::map<uint64_t, Physical> handles;
  std::map<uint64_t, size_t> host;
  std::map<uint64_t, std::deque<Work>> streams;
  std::map<uint64_t, Event> events;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, Fault> faults;
  std::mt19937_64 order;
  bool is_drawn = false;
  uint64_t next_name = 0x1000;
};

// The memory of a device that is in use, its context's too.
size_t used_bytes(const State& state, const Device& device);

// Frees physical memory that nobody has any more.
void settle(State& state, uint64_t handle);

// Runs all of a stream's queue, and what it waits for.
void drain(State& state, uint64_t stream);

// Runs every queue.
void drain_all(State& state);

// Whether bytes are page-locked.
bool is_locked(const State& state, uint64_t address, size_t size_bytes);

// The context that is current in the calling thread: the device's number plus one; 0 for none.
uint64_t current();
bool has_context(const State& state);

// Counts a call and holds the lock until it ends. `code` is what it has to return at once, if that
// is not success.
class Guard {
 public:
  explicit Guard(const char* function);
  int code = SUCCESS;
  State& state;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

}  // namespace pretend

// Begins an entry point.
#define ENTER(function)            \
  pretend::Guard guard(function);  \
  pretend::State& s = guard.state; \
  (void)s;                         \
  if (guard.code != pretend::SUCCESS) return guard.code

#define NEEDS_CONTEXT \
  if (!pretend::has_context(s)) return pretend::INVALID_CONTEXT

#define ENTRY extern "C" __attribute__((visibility("default"))) int
