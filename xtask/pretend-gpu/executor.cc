// Runs kernels on the processor: a block at a time, a fiber for each of its threads, each until it
// waits for others. The order of threads and blocks is the launch's to choose.

#include "executor.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "access.h"
#include "cuda.h"
#include "sanitizer.h"

namespace pretend {

namespace {

// The sanitizer writes its reports on the stack of who is at fault.
const size_t STACK_BYTES = IS_SANITIZED ? 256 << 10 : 64 << 10;
const size_t SHARED_BYTES_MAX = 228 << 10;
const unsigned THREADS_MAX = 1024;

enum class State : uint8_t { READY, AT_BARRIER, AT_WARP, DONE };

struct Thread {
  State state;
  bool is_started;
  int line;        // of what it waits at
  unsigned mask;   // of the lanes that it waits for
  uint64_t given;  // to the warp
  uint64_t shown;  // what it gave to the exchange that was released last
  unsigned group;  // the lanes that took part in that
  char* stack;
  void* top;
};

struct Executor {
  std::vector<Thread> threads;
  Thread* now = nullptr;
  unsigned alive = 0;
  const Launch* launch = nullptr;
  void* scheduler = nullptr;
  const void* scheduler_stack = nullptr;  // as the sanitizer knows it, like its size
  size_t scheduler_stack_bytes = 0;
  char* stacks = nullptr;
  std::vector<char*> free_stacks;
  alignas(16) unsigned char shared[SHARED_BYTES_MAX];
  std::mt19937_64 draw;
  bool any = false;       // of the barrier that is being reached
  bool any_before = false;
};

// On the heap: what lies in the library's own memory is the kernels' shared memory.
EXECUTOR_OWN Executor* executor = nullptr;

Executor& it() {
  if (executor == nullptr) {
    executor = new Executor;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* stacks = mmap(nullptr, STACK_BYTES * THREADS_MAX, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (stacks == MAP_FAILED) abort();
    executor->stacks = static_cast<char*>(stacks);
  }
  return *executor;
}

std::map<std::string, Kernel>& kernels() {
  static EXECUTOR_OWN std::map<std::string, Kernel>* all = nullptr;
  if (all == nullptr) all = new std::map<std::string, Kernel>;
  return *all;
}

// Saves what the calling convention of x86-64 asks a function to keep, and goes on with another
// stack.
extern "C" void pretend_switch(void** from, void* to);
__asm__(
    ".text\n"
    ".type pretend_switch,@function\n"
    "pretend_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
    "  ret\n"
    ".size pretend_switch, . - pretend_switch\n");

void leave() {
  Executor& e = *executor;
  Thread& own = *e.now;
  void* kept = nullptr;
  bool comes_back = own.state != State::DONE;
  start_switch(comes_back ? &kept : nullptr, e.scheduler_stack, e.scheduler_stack_bytes);
  pretend_switch(&own.top, e.scheduler);
  finish_switch(kept, &e.scheduler_stack, &e.scheduler_stack_bytes);
}

void begin() {
  finish_switch(nullptr, &executor->scheduler_stack, &executor->scheduler_stack_bytes);
  executor->launch->kernel->call(executor->launch->arguments);
  executor->now->state = State::DONE;
  leave();
  abort();  // nobody goes on with a thread that is done
}

void prime(Thread& thread) {
  // Whoever had it may have given up with its variables on it.
  open_bytes(reinterpret_cast<uint64_t>(thread.stack), STACK_BYTES);
  void** top = reinterpret_cast<void**>(thread.stack + STACK_BYTES);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&begin);
  for (int kept = 0; kept < 6; kept++) *--top = nullptr;
  thread.top = top;
}

void enter(unsigned index) {
  Executor& e = it();
  Thread& thread = e.threads[index];
  if (!thread.is_started) {
    thread.stack = e.free_stacks.back();
    e.free_stacks.pop_back();
    thread.is_started = true;
    prime(thread);
  }
  const unsigned* size = e.launch->threads;
  here.thread = uint3{index % size[0], index / size[0] % size[1], index / (size[0] * size[1])};
  e.now = &thread;
  access.thread = index;
  access.stack = reinterpret_cast<uint64_t>(thread.stack);
  void* kept = nullptr;
  start_switch(&kept, thread.stack, STACK_BYTES);
  pretend_switch(&e.scheduler, thread.top);
  finish_switch(kept, nullptr, nullptr);
  access.stack = 0;
  if (thread.state == State::DONE) {
    e.free_stacks.push_back(thread.stack);
    e.alive -= 1;
  }
}

// Lets the lanes of a warp go on whose partners have all come.
bool release_warp(Executor& e, size_t first) {
  size_t end = first + 32 < e.threads.size() ? first + 32 : e.threads.size();
  unsigned alive = 0, waiting = 0, asked = 0;
  int line = 0;
  for (size_t i = first; i < end; i++) {
    Thread& thread = e.threads[i];
    if (thread.state != State::DONE) alive |= 1u << (i - first);
    if (thread.state != State::AT_WARP) continue;
    if (waiting != 0 && line != thread.line) {
      complain(LAUNCH_FAILED, "lanes of a warp wait for each other at lines %d and %d", line,
               thread.line);
      return false;
    }
    line = thread.line;
    waiting |= 1u << (i - first);
    asked |= thread.mask;
  }
  if (waiting == 0 || (asked & alive) != waiting) return false;
  for (size_t i = first; i < end; i++) {
    Thread& thread = e.threads[i];
    if ((waiting >> (i - first) & 1) == 0) continue;
    // Each of these runs, and looks, before any of them is released again.
    thread.state = State::READY;
    thread.shown = thread.given;
    thread.group = waiting;
  }
  return true;
}

// Lets all go on when all wait at the same barrier.
bool release_block(Executor& e) {
  size_t waiting = 0;
  int line = 0;
  for (Thread& thread : e.threads) {
    if (thread.state != State::AT_BARRIER) continue;
    if (waiting != 0 && line != thread.line) {
      complain(LAUNCH_FAILED, "threads of a block wait at the barriers of lines %d and %d", line,
               thread.line);
      return false;
    }
    line = thread.line;
    waiting += 1;
  }
  if (waiting == 0 || waiting != e.alive) return false;
  if (waiting != e.threads.size()) {
    complain(LAUNCH_FAILED, "the barrier of line %d is reached by %zu of %zu threads", line,
             waiting, e.threads.size());
    return false;
  }
  for (Thread& thread : e.threads) thread.state = State::READY;
  e.any_before = e.any;
  e.any = false;
  access.block_epoch += 1;
  return true;
}

std::vector<unsigned> order_of(Executor& e, unsigned count) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (e.launch->order == 1) std::reverse(order.begin(), order.end());
  if (e.launch->order > 1) std::shuffle(order.begin(), order.end(), e.draw);
  return order;
}

void run_block(Executor& e, unsigned block) {
  const unsigned* size = e.launch->threads;
  unsigned count = size[0] * size[1] * size[2];
  e.threads.assign(count, Thread{});
  e.alive = count;
  e.any = e.any_before = false;
  e.free_stacks.clear();
  for (unsigned i = 0; i < count; i++) e.free_stacks.push_back(e.stacks + i * STACK_BYTES);
  begin_block(count, block);
  std::vector<unsigned> order = order_of(e, count);
  while (e.alive > 0) {
    bool goes_on = false;
    for (unsigned index : order) {
      if (e.threads[index].state != State::READY) continue;
      goes_on = true;
      enter(index);
      if (access.code != SUCCESS) return;
    }
    for (size_t first = 0; first < count; first += 32) goes_on |= release_warp(e, first);
    goes_on |= release_block(e);
    if (!goes_on && e.alive > 0) complain(LAUNCH_FAILED, "threads wait for others that never come");
    if (access.code != SUCCESS) return;
  }
}

}  // namespace

EXECUTOR_OWN Here here;

void give_up() { leave(); }

unsigned lane() { return access.thread % 32; }

void barrier(int line) {
  executor->now->state = State::AT_BARRIER;
  executor->now->line = line;
  leave();
}

bool any(bool is_true, int line) {
  executor->any |= is_true;
  barrier(line);
  return executor->any_before;
}

static void wait_for(unsigned mask, int line) {
  Thread& now = *executor->now;
  if ((mask >> lane() & 1) == 0) {
    complain(LAUNCH_FAILED, "line %d: the mask does not name the lane itself", line);
    give_up();
  }
  now.state = State::AT_WARP;
  now.mask = mask;
  now.line = line;
  leave();
}

void warp_barrier(unsigned mask, int line) {
  wait_for(mask, line);
  access.warp_epochs[access.thread] += 1;
}

uint64_t exchange(unsigned mask, uint64_t value, unsigned source, int line) {
  Thread& now = *executor->now;
  now.given = value;
  wait_for(mask, line);
  if (source >= 32 || (now.group >> source & 1) == 0) {
    complain(LAUNCH_FAILED, "line %d: lane %u asks lane %u, which takes no part", line, lane(),
             source);
    give_up();
  }
  return executor->threads[access.thread / 32 * 32 + source].shown;
}

unsigned ballot(unsigned mask, bool is_true, int line) {
  Thread& now = *executor->now;
  now.given = is_true;
  wait_for(mask, line);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; i++) {
    if ((now.group >> i & 1) == 0) continue;
    bits |= static_cast<unsigned>(executor->threads[access.thread / 32 * 32 + i].shown) << i;
  }
  return bits;
}

void* dynamic_shared() { return executor->shared; }

Registration::Registration(const Kernel& kernel) { kernels()[kernel.name] = kernel; }

}  // namespace pretend

using namespace pretend;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const Kernel* pretend_kernel(const char* name) {
  auto kernel = kernels().find(name);
  return kernel == kernels().end() ? nullptr : &kernel->second;
}

EXPORT int pretend_run(const Launch* launch, char* complaint, size_t complaint_bytes) {
  Executor& e = it();
  e.launch = launch;
  e.draw.seed(launch->order);
  here.block_size = dim3{launch->threads[0], launch->threads[1], launch->threads[2]};
  here.grid_size = dim3{launch->blocks[0], launch->blocks[1], launch->blocks[2]};
  uint64_t shared = reinterpret_cast<uint64_t>(e.shared);
  begin_launch(*launch, STACK_BYTES, shared);
  open_bytes(shared, SHARED_BYTES_MAX);
  close_bytes(shared + launch->shared_bytes, SHARED_BYTES_MAX - launch->shared_bytes);
  unsigned x = launch->blocks[0], y = launch->blocks[1];
  for (unsigned index : order_of(e, x * y * launch->blocks[2])) {
    here.block = uint3{index % x, index / x % y, index / (x * y)};
    run_block(e, index);
    if (access.code != SUCCESS) break;
  }
  end_launch();
  snprintf(complaint, complaint_bytes, "%s", access.complaint);
  return access.code;
}
