// Looks at every access of a kernel to memory.
//
// The compiler calls a function before each of them: that is what `-fsanitize=thread` is used for,
// of which nothing but these calls is linked. A kernel may use its stack, its block's shared
// memory, and the bytes that its launch was given. Two threads that use the same byte, one of them
// to write it, need a barrier in between, and blocks have none; `__syncwarp` orders the lanes of a
// warp, shuffles order nothing (CUDA C++ Programming Guide, "Warp Shuffle Functions").

#include "access.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "cuda.h"
#include "sanitizer.h"

namespace pretend {

EXECUTOR_OWN Access access;

namespace {

enum class Kind { READ, WRITE, ATOMIC };

// When a byte was used by whom.
struct Use {
  unsigned block;  // from 1; 0 for never
  unsigned thread;
  unsigned block_epoch;
  unsigned warp_epoch;
};

// Who of those that used a byte last is known by name: all others came before that one, or were of
// the same warp, the same block, or anywhere.
enum class Others : uint8_t { NONE, OF_WARP, OF_BLOCK, ANYWHERE };

struct Byte {
  Use writer;
  Use reader;
  bool is_atomic;  // the write
  Others other_readers;
};

// Memory that is written, with what was done to each byte.
struct Region {
  uint64_t start;
  uint64_t end;
  bool is_shared;
  Byte* bytes;
};

struct Ground {
  const Launch* launch;
  size_t stack_bytes;
  std::vector<Region> regions;  // without overlap
  Byte* of_statics = nullptr;
  Byte* of_dynamic = nullptr;
  unsigned last_block = 0;  // the highest number of a block so far, in whatever order they ran
};

EXECUTOR_OWN Ground* ground = nullptr;

// Bounds of the library's memory, which the linker knows.
extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char __bss_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));
extern "C" char __start_executor[] __attribute__((visibility("hidden")));
extern "C" char __stop_executor[] __attribute__((visibility("hidden")));

uint64_t at(const char* symbol) { return reinterpret_cast<uint64_t>(symbol); }

Byte* bytes_of(uint64_t size_bytes) {
  // Zeros that cost nothing until they are used.
  void* memory = calloc(size_bytes, sizeof(Byte));
  if (memory == nullptr) abort();
  return static_cast<Byte*>(memory);
}

Use now() {
  return Use{access.block, access.thread, access.block_epoch, access.warp_epochs[access.thread]};
}

bool is_same_warp(const Use& one, const Use& two) {
  return one.block == two.block && one.thread / 32 == two.thread / 32;
}

bool is_same_thread(const Use& one, const Use& two) {
  return one.block == two.block && one.thread == two.thread;
}

// Whether a use of another thread is over for sure.
bool is_before(const Use& use, const Use& now) {
  if (use.block != now.block) return use.block == 0;
  if (use.block_epoch < now.block_epoch) return true;
  return is_same_warp(use, now) && use.warp_epoch < now.warp_epoch;
}

bool readers_are_before(const Byte& byte, const Use& now) {
  if (byte.other_readers == Others::ANYWHERE) return false;
  if (is_before(byte.reader, now)) {
    // Lanes of the reader's warp have all been at its barrier; other warps have not.
    return byte.other_readers != Others::OF_BLOCK || byte.reader.block_epoch < now.block_epoch;
  }
  return byte.other_readers == Others::NONE && is_same_thread(byte.reader, now);
}

void note_reader(Byte& byte, const Use& now) {
  if (is_same_thread(byte.reader, now)) {
    byte.reader = now;
  } else if (readers_are_before(byte, now)) {
    byte.reader = now;
    byte.other_readers = Others::NONE;
  } else {
    Others others = byte.reader.block != now.block        ? Others::ANYWHERE
                    : byte.reader.thread / 32 == now.thread / 32 ? Others::OF_WARP
                                                          : Others::OF_BLOCK;
    byte.other_readers = std::max(byte.other_readers, others);
    byte.reader = now;
  }
}

[[gnu::cold, gnu::noinline]] void race(const Region& region, uint64_t address, const Use& other,
                                       const char* what) {
  complain(LAUNCH_FAILED, "%s byte %llu of %s, as thread %u of block %u does: no barrier between",
           what, static_cast<unsigned long long>(address - region.start),
           region.is_shared ? "shared memory" : "memory that is written", other.thread,
           other.block - access.first_block);
  give_up();
}

void use_byte(const Region& region, uint64_t address, Kind kind) {
  Byte& byte = region.bytes[address - region.start];
  Use now = pretend::now();
  if (region.is_shared) {
    // What an earlier block left is not there for this one.
    if (byte.writer.block != now.block && byte.reader.block != now.block) byte = Byte{};
    if (kind == Kind::READ && byte.writer.block == 0) {
      complain(LAUNCH_FAILED, "reads byte %llu of shared memory, which nobody wrote",
               static_cast<unsigned long long>(address - region.start));
      give_up();
    }
  }
  bool writer_matters = !(kind == Kind::ATOMIC && byte.is_atomic);
  if (writer_matters && !is_same_thread(byte.writer, now) && !is_before(byte.writer, now)) {
    race(region, address, byte.writer, kind == Kind::READ ? "reads" : "writes");
  }
  if (kind == Kind::READ) {
    note_reader(byte, now);
    return;
  }
  if (byte.reader.block != 0 && !readers_are_before(byte, now)) {
    race(region, address, byte.reader, "writes what is read:");
  }
  byte = Byte{};
  byte.writer = now;
  byte.is_atomic = kind == Kind::ATOMIC;
}

const Region* region_of(uint64_t address, size_t size_bytes) {
  for (const Region& region : ground->regions) {
    if (address >= region.start && address + size_bytes <= region.end) return &region;
  }
  return nullptr;
}

[[gnu::cold, gnu::noinline]] void stray(uint64_t address, size_t size_bytes, Kind kind) {
  const Launch& launch = *ground->launch;
  const char* what = kind == Kind::READ ? "reads" : "writes";
  // What it lies nearest to is most likely what was meant.
  long long best = INT64_MAX;
  size_t nearest = 0;
  for (size_t i = 0; i < launch.extent_count; i++) {
    const Extent& extent = launch.extents[i];
    long long before = static_cast<long long>(extent.address - address);
    long long behind = static_cast<long long>(address - extent.address - extent.size_bytes);
    long long distance = std::max({before, behind, 0LL});
    if (distance < best) best = distance, nearest = i;
  }
  if (best == INT64_MAX) {
    complain(ILLEGAL_ADDRESS, "%s %zu bytes at %#llx, without any memory", what, size_bytes,
             static_cast<unsigned long long>(address));
  } else {
    const Extent& extent = launch.extents[nearest];
    bool is_inside = address >= extent.address &&
                     address + size_bytes <= extent.address + extent.size_bytes;
    complain(ILLEGAL_ADDRESS, "%s %zu bytes at %lld of the %llu of its memory %zu%s", what,
             size_bytes, static_cast<long long>(address - extent.address),
             static_cast<unsigned long long>(extent.size_bytes), nearest,
             is_inside ? ", which is to be read only" : "");
  }
  give_up();
}

void use(uint64_t address, size_t size_bytes, Kind kind) {
  if (access.stack == 0) return;
  if (address - access.stack < ground->stack_bytes) return;
  bool is_own = address >= at(__start_executor) && address < at(__stop_executor);
  if (kind == Kind::READ && (is_own || (address >= at(__ehdr_start) && address < at(__bss_start)))) {
    return;
  }
  if (const Region* region = region_of(address, size_bytes)) {
    for (size_t i = 0; i < size_bytes; i++) use_byte(*region, address + i, kind);
    return;
  }
  const Launch& launch = *ground->launch;
  for (size_t i = 0; i < launch.extent_count; i++) {
    const Extent& extent = launch.extents[i];
    bool is_inside = address >= extent.address &&
                     address + size_bytes <= extent.address + extent.size_bytes;
    if (is_inside && (kind == Kind::READ || extent.is_written != 0)) return;
  }
  stray(address, size_bytes, kind);
}

// The start of what the compiler tells of every kind of undefined behaviour.
struct Place {
  const char* file;
  unsigned line;
  unsigned column;
};

void undefined(const void* data, int code, const char* what) {
  if (access.stack == 0) return;
  const Place* place = static_cast<const Place*>(data);
  const char* name = strrchr(place->file, '/');
  complain(code, "%s at %s:%u", what, name == nullptr ? place->file : name + 1, place->line);
  give_up();
}

// What the sanitizer found in a kernel ends the device, anywhere else the process.
void found(const char* report) {
  if (access.stack == 0) abort();
  const char* what = strstr(report, "AddressSanitizer: ");
  if (what == nullptr) what = report;
  complain(ILLEGAL_ADDRESS, "%.*s", static_cast<int>(strcspn(what, "\n")), what);
}

}  // namespace

void complain(int code, const char* format, ...) {
  if (access.code != SUCCESS) return;
  access.code = code;
  char text[256];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  char thread[64] = "";
  const uint3 &t = here.thread, &b = here.block;
  if (access.stack != 0) snprintf(thread, sizeof thread, "thread (%u, %u, %u) of ", t.x, t.y, t.z);
  snprintf(access.complaint, sizeof access.complaint, "%s: %sblock (%u, %u, %u): %s",
           ground->launch->kernel->name, thread, b.x, b.y, b.z, text);
}

void atomic(const void* address, size_t size_bytes) {
  use(reinterpret_cast<uint64_t>(address), size_bytes, Kind::ATOMIC);
}

void begin_launch(const Launch& launch, size_t stack_bytes, uint64_t dynamic_shared) {
  if (ground == nullptr) {
    ground = new Ground;
    ground->of_statics = bytes_of(at(_end) - at(__bss_start));
    ground->of_dynamic = bytes_of(228 << 10);
  }
  tell(&found);
  // Blocks of earlier launches have lower numbers.
  unsigned first_block = ground->last_block + 1;
  access = Access{};
  access.block = access.first_block = first_block;
  ground->launch = &launch;
  ground->stack_bytes = stack_bytes;
  ground->regions = {
      {at(__bss_start), at(_end), true, ground->of_statics},
      {dynamic_shared, dynamic_shared + launch.shared_bytes, true, ground->of_dynamic},
  };
  // Two arguments may be of the same bytes.
  std::vector<Extent> written;
  for (size_t i = 0; i < launch.extent_count; i++) {
    if (launch.extents[i].is_written == 1) written.push_back(launch.extents[i]);
  }
  std::sort(written.begin(), written.end(),
            [](const Extent& one, const Extent& two) { return one.address < two.address; });
  for (size_t i = 0; i < written.size();) {
    uint64_t start = written[i].address, end = start + written[i].size_bytes;
    for (i += 1; i < written.size() && written[i].address < end; i++) {
      end = std::max(end, written[i].address + written[i].size_bytes);
    }
    ground->regions.push_back(Region{start, end, false, bytes_of(end - start)});
  }
}

void begin_block(unsigned thread_count, unsigned index) {
  access.block = access.first_block + index;
  ground->last_block = std::max(ground->last_block, access.block);
  access.block_epoch = 0;
  std::fill_n(access.warp_epochs, thread_count, 0u);
}

void end_launch() {
  for (size_t i = 2; i < ground->regions.size(); i++) free(ground->regions[i].bytes);
  ground->regions.clear();
}

}  // namespace pretend

using namespace pretend;

#define CALLED extern "C"
#define SIZE(n)                                                                             \
  CALLED void __tsan_read##n(uint64_t address) { use(address, n, Kind::READ); }             \
  CALLED void __tsan_write##n(uint64_t address) { use(address, n, Kind::WRITE); }           \
  CALLED void __tsan_unaligned_read##n(uint64_t address) { use(address, n, Kind::READ); }   \
  CALLED void __tsan_unaligned_write##n(uint64_t address) { use(address, n, Kind::WRITE); }
SIZE(1)
SIZE(2)
SIZE(4)
SIZE(8)
SIZE(16)

CALLED void __tsan_read_range(uint64_t address, size_t n) { use(address, n, Kind::READ); }
CALLED void __tsan_write_range(uint64_t address, size_t n) { use(address, n, Kind::WRITE); }
CALLED void __tsan_func_entry(void*) {}
CALLED void __tsan_func_exit() {}
CALLED void __tsan_init() {}

CALLED void __ubsan_handle_type_mismatch_v1_abort(void* data, void*) {
  undefined(data, MISALIGNED_ADDRESS, "an address that is not aligned");
}
CALLED void __ubsan_handle_out_of_bounds_abort(void* data, void*) {
  undefined(data, ILLEGAL_ADDRESS, "an index outside its array");
}
CALLED void __ubsan_handle_divrem_overflow_abort(void* data, void*, void*) {
  undefined(data, LAUNCH_FAILED, "a division without a result");
}
CALLED void __ubsan_handle_shift_out_of_bounds_abort(void* data, void*, void*) {
  undefined(data, LAUNCH_FAILED, "a shift by too much");
}
