// What the compiler's address sanitizer is told where it is on: which stack runs, and which bytes
// nobody may use now. Elsewhere it is nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace pretend {

#ifdef __SANITIZE_ADDRESS__

const bool IS_SANITIZED = true;

// To the byte where the bytes before or behind them are closed, too.
inline void close_bytes(uint64_t address, size_t size_bytes) {
  __asan_poison_memory_region(reinterpret_cast<void*>(address), size_bytes);
}
inline void open_bytes(uint64_t address, size_t size_bytes) {
  __asan_unpoison_memory_region(reinterpret_cast<void*>(address), size_bytes);
}

// Around a change of stacks. `kept` is the leaving one's to keep; null if it does not come back.
inline void start_switch(void** kept, const void* stack, size_t size_bytes) {
  __sanitizer_start_switch_fiber(kept, stack, size_bytes);
}
inline void finish_switch(void* kept, const void** from, size_t* size_bytes) {
  __sanitizer_finish_switch_fiber(kept, from, size_bytes);
}

// Who is told what is found. The sanitizer goes on after that.
inline void tell(void (*found)(const char* report)) { __asan_set_error_report_callback(found); }

#else

const bool IS_SANITIZED = false;

inline void close_bytes(uint64_t, size_t) {}
inline void open_bytes(uint64_t, size_t) {}
inline void start_switch(void**, const void*, size_t) {}
inline void finish_switch(void*, const void**, size_t*) {}
inline void tell(void (*)(const char*)) {}

#endif

// Bytes that are open as long as this lives, of memory that is closed otherwise.
class Opened {
 public:
  Opened() = default;
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  void add(uint64_t address, size_t size_bytes) {
    if (!IS_SANITIZED || size_bytes == 0) return;
    open_bytes(address, size_bytes);
    extents_.emplace_back(address, size_bytes);
  }
  ~Opened() {
    // The sanitizer's grain is 8 bytes; around those that were open all are closed.
    for (auto [address, size_bytes] : extents_) {
      uint64_t start = address / 8 * 8, end = (address + size_bytes + 7) / 8 * 8;
      close_bytes(start, end - start);
    }
  }

 private:
  std::vector<std::pair<uint64_t, size_t>> extents_;
};

}  // namespace pretend
