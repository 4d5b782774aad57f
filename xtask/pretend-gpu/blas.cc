// cuBLASLt: the plain definition of a matrix product in f32, enqueued as work of a stream.

#include <cstring>

#include "state.h"

namespace pretend {

namespace {

// Values of `cublasStatus_t`.
enum Status : int {
  DONE = 0,
  NOT_READY = 1,
  ALLOC_FAILED = 3,
  INVALID = 7,
  EXECUTION_FAILED = 13,
  UNSUPPORTED = 15,
};

const int R_32F = 0, COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77;

// `cublasLtMatmulHeuristicResult_t`. The pretend algorithm is the names of what it was chosen for.
struct Choice {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Choice) == 96, "the layout of the library");

BlasPart* part_of(State& s, uint64_t name, BlasPart::Kind kind) {
  auto found = s.blas_parts.find(name);
  if (found == s.blas_parts.end() || found->second.kind != kind) return nullptr;
  return &found->second;
}

int create(State& s, uint64_t* name, BlasPart part) {
  *name = s.next_name++;
  s.blas_parts[*name] = part;
  return DONE;
}

int destroy(State& s, uint64_t name, BlasPart::Kind kind) {
  if (part_of(s, name, kind) == nullptr) return INVALID;
  s.blas_parts.erase(name);
  return DONE;
}

template <typename T>
int set(T& field, const void* value, size_t size_bytes) {
  if (size_bytes != sizeof(T)) return INVALID;
  memcpy(&field, value, sizeof(T));
  return DONE;
}

// Rows and columns of a factor as the product takes it.
uint64_t height(const BlasPart& layout, int is_transposed) {
  return is_transposed ? layout.columns : layout.rows;
}
uint64_t width(const BlasPart& layout, int is_transposed) {
  return is_transposed ? layout.rows : layout.columns;
}

bool belong(const BlasPart& op, const BlasPart& a, const BlasPart& b, const BlasPart& y) {
  for (const BlasPart* layout : {&a, &b, &y}) {
    if (layout->leading < static_cast<int64_t>(layout->rows) || layout->batch != y.batch) {
      return false;
    }
  }
  return height(a, op.transposed[0]) == y.rows && width(b, op.transposed[1]) == y.columns &&
         width(a, op.transposed[0]) == height(b, op.transposed[1]);
}

// From the first element to the end of the last one.
size_t span_bytes(const BlasPart& layout) {
  if (layout.rows == 0 || layout.columns == 0 || layout.batch == 0) return 0;
  int64_t last = (layout.batch - 1) * layout.batch_stride +
                 static_cast<int64_t>(layout.columns - 1) * layout.leading;
  return 4 * (static_cast<size_t>(last) + layout.rows);
}

float* at(uint64_t address, const BlasPart& layout, int64_t z, uint64_t row, uint64_t column) {
  int64_t index = z * layout.batch_stride + static_cast<int64_t>(column) * layout.leading;
  return reinterpret_cast<float*>(address) + index + static_cast<int64_t>(row);
}

// To 10 bits of mantissa, the nearest, ties to even.
float rounded(float value, int compute) {
  if (compute == COMPUTE_32F) return value;
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

void multiply(State& s, const Work& work) {
  const Multiplication& m = *work.product;
  bool is_lost = !is_memory(s, m.a, span_bytes(m.a_layout)) ||
                 !is_memory(s, m.b, span_bytes(m.b_layout)) ||
                 !is_memory(s, m.y, span_bytes(m.y_layout)) ||
                 !is_memory(s, m.workspace, m.workspace_bytes);
  if (is_lost) {
    s.lost = ILLEGAL_ADDRESS;
    s.complaint = "cublasLtMatmul: memory that is gone";
    return;
  }
  Opened opened;
  open_for_work(s, opened, m.a, span_bytes(m.a_layout));
  open_for_work(s, opened, m.b, span_bytes(m.b_layout));
  open_for_work(s, opened, m.y, span_bytes(m.y_layout));
  open_for_work(s, opened, m.workspace, m.workspace_bytes);
  // Whatever a kernel leaves there.
  if (m.workspace_bytes > 0) memset(reinterpret_cast<void*>(m.workspace), 0xEE, m.workspace_bytes);
  const int *t = m.operation.transposed, compute = m.operation.compute;
  uint64_t depth = width(m.a_layout, t[0]);
  for (int64_t z = 0; z < m.y_layout.batch; z++) {
    for (uint64_t column = 0; column < m.y_layout.columns; column++) {
      for (uint64_t row = 0; row < m.y_layout.rows; row++) {
        double sum = 0;
        for (uint64_t i = 0; i < depth; i++) {
          float a = *(t[0] ? at(m.a, m.a_layout, z, i, row) : at(m.a, m.a_layout, z, row, i));
          float b = *(t[1] ? at(m.b, m.b_layout, z, column, i) : at(m.b, m.b_layout, z, i, column));
          sum += double(rounded(a, compute)) * rounded(b, compute);
        }
        float* y = at(m.y, m.y_layout, z, row, column);
        *y = m.alpha * static_cast<float>(sum) + (m.beta == 0 ? 0 : m.beta * *y);
      }
    }
  }
}

}  // namespace pretend

using namespace pretend;

// A lack of memory has another code here than in the driver.
#define ENTER_BLAS(function)                               \
  pretend::Guard guard(function, pretend::Guard::NOTHING); \
  pretend::State& s = guard.state;                         \
  (void)s;                                                 \
  if (guard.is_over) return guard.code == OUT_OF_MEMORY ? ALLOC_FAILED : guard.code

#define NEEDS_PART(part, name, kind)                          \
  BlasPart* part = part_of(s, name, BlasPart::kind);          \
  if (part == nullptr) return INVALID

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 120800; }

// Of the name that the library has beside the driver.
extern "C" __attribute__((visibility("default"))) size_t cublasLtGetCudartVersion() {
  return 12080;
}

ENTRY cublasLtCreate(uint64_t* handle) {
  ENTER_BLAS("cublasLtCreate");
  if (!has_context(s)) return NOT_READY;
  Device& device = s.devices[current() - 1];
  if (used_bytes(s, device) + s.load_bytes > device.capacity_bytes) return ALLOC_FAILED;
  BlasPart part;
  part.kind = BlasPart::HANDLE;
  return create(s, handle, part);
}

ENTRY cublasLtDestroy(uint64_t handle) {
  ENTER_BLAS("cublasLtDestroy");
  return destroy(s, handle, BlasPart::HANDLE);
}

ENTRY cublasLtMatmulDescCreate(uint64_t* name, int compute, int scale) {
  ENTER_BLAS("cublasLtMatmulDescCreate");
  if (scale != R_32F || (compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_TF32)) {
    return UNSUPPORTED;
  }
  BlasPart part;
  part.kind = BlasPart::OPERATION;
  part.compute = compute;
  return create(s, name, part);
}

ENTRY cublasLtMatmulDescSetAttribute(uint64_t name, int attribute, const void* value, size_t size) {
  ENTER_BLAS("cublasLtMatmulDescSetAttribute");
  NEEDS_PART(part, name, OPERATION);
  const int TRANSPOSE_A = 3, TRANSPOSE_B = 4;
  if (attribute != TRANSPOSE_A && attribute != TRANSPOSE_B) return UNSUPPORTED;
  return set(part->transposed[attribute - TRANSPOSE_A], value, size);
}

ENTRY cublasLtMatmulDescDestroy(uint64_t name) {
  ENTER_BLAS("cublasLtMatmulDescDestroy");
  return destroy(s, name, BlasPart::OPERATION);
}

ENTRY cublasLtMatrixLayoutCreate(uint64_t* name, int type, uint64_t rows, uint64_t columns,
                                 int64_t leading) {
  ENTER_BLAS("cublasLtMatrixLayoutCreate");
  if (type != R_32F) return UNSUPPORTED;
  BlasPart part;
  part.kind = BlasPart::LAYOUT;
  part.rows = rows;
  part.columns = columns;
  part.leading = leading;
  return create(s, name, part);
}

ENTRY cublasLtMatrixLayoutSetAttribute(uint64_t name, int attribute, const void* value,
                                       size_t size) {
  ENTER_BLAS("cublasLtMatrixLayoutSetAttribute");
  NEEDS_PART(part, name, LAYOUT);
  const int BATCH_COUNT = 5, BATCH_STRIDE = 6;
  if (attribute == BATCH_COUNT) return set(part->batch, value, size);
  if (attribute == BATCH_STRIDE) return set(part->batch_stride, value, size);
  return UNSUPPORTED;
}

ENTRY cublasLtMatrixLayoutDestroy(uint64_t name) {
  ENTER_BLAS("cublasLtMatrixLayoutDestroy");
  return destroy(s, name, BlasPart::LAYOUT);
}

ENTRY cublasLtMatmulPreferenceCreate(uint64_t* name) {
  ENTER_BLAS("cublasLtMatmulPreferenceCreate");
  BlasPart part;
  part.kind = BlasPart::PREFERENCE;
  return create(s, name, part);
}

ENTRY cublasLtMatmulPreferenceSetAttribute(uint64_t name, int attribute, const void* value,
                                           size_t size) {
  ENTER_BLAS("cublasLtMatmulPreferenceSetAttribute");
  NEEDS_PART(part, name, PREFERENCE);
  const int WORKSPACE_BYTES = 1, ALIGNMENT_A = 5, ALIGNMENT_D = 8;
  if (attribute == WORKSPACE_BYTES) return set(part->workspace_bytes, value, size);
  if (attribute < ALIGNMENT_A || attribute > ALIGNMENT_D) return UNSUPPORTED;
  return set(part->alignments[attribute - ALIGNMENT_A], value, size);
}

ENTRY cublasLtMatmulPreferenceDestroy(uint64_t name) {
  ENTER_BLAS("cublasLtMatmulPreferenceDestroy");
  return destroy(s, name, BlasPart::PREFERENCE);
}

ENTRY cublasLtMatmulAlgoGetHeuristic(uint64_t handle, uint64_t op_name, uint64_t a_name,
                                     uint64_t b_name, uint64_t c_name, uint64_t y_name,
                                     uint64_t wish_name, int wanted, Choice* choice, int* count) {
  ENTER_BLAS("cublasLtMatmulAlgoGetHeuristic");
  NEEDS_PART(own, handle, HANDLE);
  NEEDS_PART(op, op_name, OPERATION);
  NEEDS_PART(a, a_name, LAYOUT);
  NEEDS_PART(b, b_name, LAYOUT);
  NEEDS_PART(y, y_name, LAYOUT);
  NEEDS_PART(wish, wish_name, PREFERENCE);
  (void)own;
  if (wanted < 1 || c_name != y_name || !belong(*op, *a, *b, *y)) return INVALID;
  *choice = Choice{};
  for (int i = 0; i < 4; i++) choice->algorithm[i] = wish->alignments[i];
  choice->algorithm[4] = op_name;
  choice->algorithm[5] = a_name;
  choice->algorithm[6] = b_name;
  choice->algorithm[7] = y_name;
  choice->workspace_bytes = wish->workspace_bytes;
  *count = 1;
  return DONE;
}

ENTRY cublasLtMatmul(uint64_t handle, uint64_t op_name, const float* alpha, uint64_t a,
                     uint64_t a_name, uint64_t b, uint64_t b_name, const float* beta, uint64_t c,
                     uint64_t c_name, uint64_t y, uint64_t y_name, const uint64_t* algorithm,
                     uint64_t workspace, size_t workspace_bytes, uint64_t stream) {
  ENTER_BLAS("cublasLtMatmul");
  if (s.lost != SUCCESS || !has_context(s)) return EXECUTION_FAILED;
  NEEDS_PART(own, handle, HANDLE);
  NEEDS_PART(op, op_name, OPERATION);
  NEEDS_PART(a_layout, a_name, LAYOUT);
  NEEDS_PART(b_layout, b_name, LAYOUT);
  NEEDS_PART(y_layout, y_name, LAYOUT);
  (void)own;
  const uint64_t names[4] = {op_name, a_name, b_name, y_name}, places[4] = {a, b, c, y};
  for (int i = 0; i < 4; i++) {
    // A real kernel for more than the address has would read wrong, or fault.
    if (algorithm[4 + i] != names[i] || places[i] % algorithm[i] != 0) return INVALID;
  }
  if (c != y || c_name != y_name || workspace % 256 != 0) return INVALID;
  auto product = std::make_shared<Multiplication>();
  *product = Multiplication{*op,    *a_layout, *b_layout, *y_layout,       a, b, y, *alpha,
                            *beta, workspace, workspace_bytes};
  Work work(Work::PRODUCT);
  work.product = std::move(product);
  return enqueue(s, stream, std::move(work)) == SUCCESS ? DONE : EXECUTION_FAILED;
}
