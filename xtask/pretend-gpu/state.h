// State of the pretend driver, shared by its entry points, and the guard that each one begins with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "executor.h"
#include "sanitizer.h"

namespace pretend {

// Values of `cudaError_enum`.
enum Code : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700,
  MISALIGNED_ADDRESS = 716,
  LAUNCH_FAILED = 719,
  NO_BINARY_FOR_GPU = 209,
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

// What a kernel takes, by the image that it is in.
struct Parameter {
  size_t offset;
  size_t size_bytes;
};

struct Entry {
  std::string name;
  std::vector<Parameter> parameters;
  size_t argument_bytes = 0;
  size_t threads_max = 1024;
  size_t shared_bytes_max = 48 << 10;  // beside what the kernel declares
  uint64_t module = 0;
  const Kernel* kernel = nullptr;
};

// Its functions are named by the address of their entry: entries stay where they are.
struct Module {
  std::deque<Entry> entries;
};

// What the compiler is at.
struct Program {
  std::string name;
  std::string source;
  std::string log;
  std::string code;
};

// Before the architecture in the first line of code that is for one alone.
const char* const CODE_MARK = "// for ";

// The file of this name beside the driver, whole.
bool read_beside(const std::string& name, std::string& text);

// A launch on its way.
struct Started {
  const Kernel* kernel;
  uint64_t module;
  unsigned blocks[3];
  unsigned threads[3];
  size_t shared_bytes;
  std::vector<unsigned char> arguments;
  std::vector<Extent> extents;
  bool has_extents;
};

// What cuBLASLt knows a product by.
struct BlasPart {
  enum Kind { HANDLE, OPERATION, LAYOUT, PREFERENCE };
  Kind kind = HANDLE;
  int compute = 0;  // of an operation, as are the following ones
  int scale = 0;
  int transposed[2] = {0, 0};
  int epilogue = 1;
  uint64_t bias = 0;
  int type = 0;  // of a layout, as are the following ones
  uint64_t rows = 0;
  uint64_t columns = 0;
  int64_t leading = 0;
  int batch = 1;
  int64_t batch_stride = 0;
  size_t workspace_bytes = 0;  // of a preference, as is the next
  unsigned alignments[4] = {256, 256, 256, 256};
};

// A product on its way: columns of elements one after the other.
struct Multiplication {
  BlasPart operation;
  BlasPart a_layout;
  BlasPart b_layout;
  BlasPart y_layout;
  uint64_t a;
  uint64_t b;
  uint64_t y;
  double alpha;
  double beta;
  uint64_t workspace;
  size_t workspace_bytes;
};

// What NCCL knows a rank by.
struct NcclRank {
  uint64_t clique = 0;
  int index = 0;
  int device = 0;
  bool is_over = false;
  bool is_destroyed = false;
};

// A message, by who has said it.
struct NcclMessage {
  uint64_t rank;
  uint64_t stream;
  int peer;
  bool is_given;
  uint64_t address;
  size_t size_bytes;
  size_t nth;  // among those from one rank to another
};

// One side of a message, and the group that it is in.
struct NcclSide {
  uint64_t group;
  uint64_t address;
  size_t size_bytes;
  bool is_done;
};

struct NcclGroup {
  uint64_t stream;
  std::vector<NcclMessage> messages;
  bool is_running;
};

// Ranks that have one id.
struct NcclClique {
  int count = 0;
  int error = 0;
  std::map<int, int> devices;  // by rank
  std::map<std::tuple<int, int, bool>, std::vector<NcclSide>> sides;  // from, to, is given
};

// One entry of a stream's queue.
struct Work {
  enum Kind { COPY, PUT, FILL, FILL_WORDS, PRODUCT, LAUNCH, EXCHANGE, RECORD, WAIT };
  explicit Work(Kind kind) : kind(kind) {}
  Kind kind;
  uint64_t target = 0;
  uint64_t source = 0;
  size_t size_bytes = 0;
  std::vector<unsigned char> data;  // of PUT, taken when it was enqueued
  unsigned value = 0;
  std::shared_ptr<const Started> launch;
  std::shared_ptr<const Multiplication> product;
  uint64_t event = 0;      // of EXCHANGE: the group
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
  size_t load_bytes = 0;  // what each module and each handle of a library takes of a device
  int driver_version = 13000;
  int capability = 0;  // 10 times the major number and the minor one; 0 is not told
  std::vector<Device> devices;
  std::map<uint64_t, Range> ranges;
  std::map<uint64_t, Mapping> mappings;
  std::map<uint64_t, Physical> handles;
  std::map<uint64_t, size_t> host;
  std::map<uint64_t, std::deque<Work>> streams;
  std::map<uint64_t, Event> events;
  std::map<uint64_t, Module> modules;
  std::map<uint64_t, Program> programs;
  std::map<uint64_t, BlasPart> blas_parts;
  std::map<uint64_t, NcclClique> nccl_cliques;
  std::map<uint64_t, NcclRank> nccl_ranks;
  std::map<uint64_t, NcclGroup> nccl_groups;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, Fault> faults;
  std::mt19937_64 order;
  bool is_drawn = false;
  uint64_t thread_order = 0;  // of `Launch`
  std::string complaint;      // about a kernel that lost the device
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

// Adds an entry to a stream's queue.
int enqueue(State& state, uint64_t stream, Work work);

// Runs a launch.
void launch(State& state, const Work& work);

// Runs a product of cuBLASLt.
void multiply(State& state, const Work& work);

// Lets other threads call for a millisecond.
void let_others_call();

// Runs the first entry of a queue. False if there is none, or if it waits for what is not there.
bool step(State& state, uint64_t stream);

// Runs what can be run of a group of NCCL: whether all of it is done.
bool exchange(State& state, uint64_t group);

// What the calling thread said that its next launch may use; false if it said nothing.
bool take_extents(std::vector<Extent>& extents);

// Whether bytes can be used by the device.
bool is_memory(const State& state, uint64_t address, size_t size_bytes);

// Whether bytes are page-locked.
bool is_locked(const State& state, uint64_t address, size_t size_bytes);

// Opens bytes for work. A device's are closed otherwise; page-locked ones never are.
void open_for_work(const State& state, Opened& opened, uint64_t address, size_t size_bytes);

// The context that is current in the calling thread: the device's number plus one; 0 for none.
uint64_t current();
bool has_context(const State& state);

// Counts a call and holds the lock until it ends. `code` is what it has to return at once, if that
// is not success.
class Guard {
 public:
  // Whether a call needs the driver to be started, and all devices.
  enum Needs { DRIVER, NOTHING };
  explicit Guard(const char* function, Needs needs = DRIVER);
  int code = SUCCESS;
  // Whether the call returns the code and does nothing.
  bool is_over = false;
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
  if (guard.is_over) return guard.code

// Begins an entry point of a library that does without a device.
#define ENTER_LIBRARY(function)                           \
  pretend::Guard guard(function, pretend::Guard::NOTHING); \
  pretend::State& s = guard.state;                         \
  (void)s;                                                 \
  if (guard.is_over) return guard.code

#define NEEDS_CONTEXT \
  if (!pretend::has_context(s)) return pretend::INVALID_CONTEXT

#define ENTRY extern "C" __attribute__((visibility("default"))) int
