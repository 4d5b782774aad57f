// cuBLASLt: the plain definition of a matrix product, enqueued as work of a stream.

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

const int R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14;
const int COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77;
const int EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4, EPILOGUE_BIAS_GRADIENT_B = 512;

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

size_t element_bytes(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }

// Types that the library has together.
bool are_types(const BlasPart& op, int a, int b, int y) {
  if (a != b || (op.compute == COMPUTE_64F) != (op.scale == R_64F)) return false;
  if (op.compute == COMPUTE_64F) return a == R_64F && y == R_64F;
  if (op.compute == COMPUTE_32F_FAST_TF32) return a == R_32F && y == R_32F;
  return a != R_64F && (y == a || y == R_32F);
}

bool belong(const BlasPart& op, const BlasPart& a, const BlasPart& b, const BlasPart& y) {
  if (!are_types(op, a.type, b.type, y.type)) return false;
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
  return element_bytes(layout.type) * (static_cast<size_t>(last) + layout.rows);
}

unsigned char* at(uint64_t address, const BlasPart& layout, int64_t z, uint64_t row,
                  uint64_t column) {
  int64_t index = z * layout.batch_stride + static_cast<int64_t>(column) * layout.leading;
  size_t place = static_cast<size_t>(index + static_cast<int64_t>(row));
  return reinterpret_cast<unsigned char*>(address) + place * element_bytes(layout.type);
}

template <typename T>
T element(const unsigned char* place) {
  T value;
  memcpy(&value, place, sizeof(T));
  return value;
}

double read(const unsigned char* place, int type) {
  switch (type) {
    case R_64F: return element<double>(place);
    case R_16F: return static_cast<double>(element<_Float16>(place));
    case R_16BF: {
      uint32_t bits = static_cast<uint32_t>(element<uint16_t>(place)) << 16;
      return __builtin_bit_cast(float, bits);
    }
  }
  return element<float>(place);
}

template <typename T>
void put(unsigned char* place, T value) {
  memcpy(place, &value, sizeof(T));
}

// Rounded to the nearest, ties to even, by way of f32 as a kernel does.
void write(unsigned char* place, int type, double value) {
  float single = static_cast<float>(value);
  uint32_t bits = __builtin_bit_cast(uint32_t, single);
  switch (type) {
    case R_64F: return put(place, value);
    case R_16F: return put(place, static_cast<_Float16>(single));
    case R_16BF: {
      uint32_t rounded = single != single ? 0x7fc0u << 16 : bits + 0x7fff + (bits >> 16 & 1);
      return put(place, static_cast<uint16_t>(rounded >> 16));
    }
  }
  put(place, single);
}

// To 10 bits of mantissa, the nearest, ties to even.
double rounded(double value, int compute) {
  if (compute != COMPUTE_32F_FAST_TF32) return value;
  uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(value));
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  return __builtin_bit_cast(float, bits);
}

// Of the vector of the epilogue: a bias for each row, or sums for each column.
size_t vector_bytes(const Multiplication& m) {
  switch (m.operation.epilogue) {
    case EPILOGUE_BIAS: return m.y_layout.rows * element_bytes(m.y_layout.type);
    case EPILOGUE_BIAS_GRADIENT_B: return m.y_layout.columns * element_bytes(m.y_layout.type);
  }
  return 0;
}

// The sums of the second factor over K, a number for each column.
void write_column_sums(const Multiplication& m, uint64_t depth) {
  int type = m.y_layout.type, is_transposed = m.operation.transposed[1];
  auto* sums = reinterpret_cast<unsigned char*>(m.operation.bias);
  for (uint64_t column = 0; column < m.y_layout.columns; column++) {
    double sum = 0;
    for (uint64_t i = 0; i < depth; i++) {
      auto* b = is_transposed ? at(m.b, m.b_layout, 0, column, i) : at(m.b, m.b_layout, 0, i, column);
      sum += read(b, m.b_layout.type);
    }
    write(sums + column * element_bytes(type), type, sum);
  }
}

}  // namespace

void multiply(State& s, const Work& work) {
  const Multiplication& m = *work.product;
  bool is_lost = !is_memory(s, m.a, span_bytes(m.a_layout)) ||
                 !is_memory(s, m.b, span_bytes(m.b_layout)) ||
                 !is_memory(s, m.y, span_bytes(m.y_layout)) ||
                 !is_memory(s, m.operation.bias, vector_bytes(m)) ||
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
  open_for_work(s, opened, m.operation.bias, vector_bytes(m));
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
          auto* a = t[0] ? at(m.a, m.a_layout, z, i, row) : at(m.a, m.a_layout, z, row, i);
          auto* b = t[1] ? at(m.b, m.b_layout, z, column, i) : at(m.b, m.b_layout, z, i, column);
          sum += rounded(read(a, m.a_layout.type), compute) *
                 rounded(read(b, m.b_layout.type), compute);
        }
        unsigned char* y = at(m.y, m.y_layout, z, row, column);
        int type = m.y_layout.type;
        double value = m.alpha * sum + (m.beta == 0 ? 0 : m.beta * read(y, type));
        if (m.operation.epilogue == EPILOGUE_BIAS) {
          auto* bias = reinterpret_cast<const unsigned char*>(m.operation.bias);
          value += read(bias + row * element_bytes(type), type);
        }
        write(y, type, value);
      }
    }
  }
  if (m.operation.epilogue == EPILOGUE_BIAS_GRADIENT_B) write_column_sums(m, depth);
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
  bool is_single = compute == COMPUTE_32F || compute == COMPUTE_32F_FAST_TF32;
  if (!(is_single && scale == R_32F) && !(compute == COMPUTE_64F && scale == R_64F)) {
    return UNSUPPORTED;
  }
  BlasPart part;
  part.kind = BlasPart::OPERATION;
  part.compute = compute;
  part.scale = scale;
  return create(s, name, part);
}

ENTRY cublasLtMatmulDescSetAttribute(uint64_t name, int attribute, const void* value, size_t size) {
  ENTER_BLAS("cublasLtMatmulDescSetAttribute");
  NEEDS_PART(part, name, OPERATION);
  const int TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS_POINTER = 8;
  if (attribute == EPILOGUE) {
    int code = set(part->epilogue, value, size);
    bool is_known = part->epilogue == EPILOGUE_DEFAULT || part->epilogue == EPILOGUE_BIAS ||
                    part->epilogue == EPILOGUE_BIAS_GRADIENT_B;
    return code != DONE || is_known ? code : UNSUPPORTED;
  }
  if (attribute == BIAS_POINTER) return set(part->bias, value, size);
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
  if (type != R_32F && type != R_64F && type != R_16F && type != R_16BF) return UNSUPPORTED;
  BlasPart part;
  part.kind = BlasPart::LAYOUT;
  part.type = type;
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
  // Sums beside a product are of f32, and of one matrix.
  bool has_sums = op->epilogue == EPILOGUE_BIAS_GRADIENT_B;
  if (has_sums && (op->compute == COMPUTE_64F || y->batch > 1)) return UNSUPPORTED;
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

ENTRY cublasLtMatmul(uint64_t handle, uint64_t op_name, const void* alpha, uint64_t a,
                     uint64_t a_name, uint64_t b, uint64_t b_name, const void* beta, uint64_t c,
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
  if (op->epilogue != EPILOGUE_DEFAULT && op->bias % element_bytes(y_layout->type) != 0) {
    return INVALID;
  }
  auto scalar = [op](const void* place) {
    return read(static_cast<const unsigned char*>(place), op->scale);
  };
  auto product = std::make_shared<Multiplication>();
  *product = Multiplication{*op, *a_layout, *b_layout, *y_layout, a, b, y, scalar(alpha),
                            scalar(beta), workspace, workspace_bytes};
  Work work(Work::PRODUCT);
  work.product = std::move(product);
  return enqueue(s, stream, std::move(work)) == SUCCESS ? DONE : EXECUTION_FAILED;
}
