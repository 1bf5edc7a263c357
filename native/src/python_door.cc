// The C interface as a Python module: what `ctypes` does, in a quarter of its time.
//
// Functions carry the names of the C interface without `clary_` and take the same arguments, as numbers; for an address
// also None, and objects with the buffer protocol. They release the interpreter lock while they are in the library.
// Built against the limited API (CMake), so that one build serves every version from 3.10 on (docs/adr/0008); callers
// have ctypes where it does not load.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "clary/collectives.h"
#include "tensor_door.hpp"

namespace {

// Where the memory of an object with the buffer protocol lies; nullptr with an error. Who calls keeps the object.
void* addressOf(PyObject* object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) return nullptr;
  void* address = view.buf;
  PyBuffer_Release(&view);
  return address;
}

// A number as the C interface takes it. An error is left to be found by PyErr_Occurred.
template <typename Value>
Value taken(PyObject* given) {
  if constexpr (std::is_pointer_v<Value>) {
    if (given == Py_None) return nullptr;
    return static_cast<Value>(PyLong_Check(given) ? PyLong_AsVoidPtr(given) : addressOf(given));
  } else if constexpr (std::is_same_v<Value, double>) {
    return PyFloat_AsDouble(given);
  } else if constexpr (std::is_same_v<Value, uint64_t>) {
    return PyLong_AsUnsignedLongLong(given);
  } else {
    const long long number = PyLong_AsLongLong(given);
    if (number < std::numeric_limits<Value>::min() || number > std::numeric_limits<Value>::max()) {
      PyErr_SetString(PyExc_OverflowError, "a number does not fit the C interface of the collectives core");
    }
    return static_cast<Value>(number);
  }
}

template <typename Result, typename... Values, size_t... Places>
PyObject* call(Result (*function)(Values...), PyObject* const* given, std::index_sequence<Places...>) {
  const std::tuple<Values...> values{taken<Values>(given[Places])...};
  if (PyErr_Occurred() != nullptr) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  if constexpr (std::is_void_v<Result>) {
    std::apply(function, values);
    PyEval_RestoreThread(state);
    Py_RETURN_NONE;
  } else {
    const Result result = std::apply(function, values);
    PyEval_RestoreThread(state);
    return PyLong_FromLongLong(result);
  }
}

template <typename Result, typename... Values>
constexpr size_t arity(Result (*)(Values...)) {
  return sizeof...(Values);
}

template <auto Function>
PyObject* door(PyObject*, PyObject* const* given, Py_ssize_t count) {
  constexpr size_t kWanted = arity(Function);
  if (count != static_cast<Py_ssize_t>(kWanted)) {
    return PyErr_Format(PyExc_TypeError, "expected %zu arguments, got %zd", kWanted, count);
  }
  return call(Function, given, std::make_index_sequence<kWanted>());
}

// address_of(object) -> int. The object must not be resized while the address is used.
PyObject* addressOfMemory(PyObject*, PyObject* object) {
  void* address = addressOf(object);
  return address == nullptr && PyErr_Occurred() != nullptr ? nullptr : PyLong_FromVoidPtr(address);
}

// The element type of a buffer's format, -1 for all that `collective.buffers` must look at twice.
int32_t dtypeOf(const Py_buffer& view) {
  if (view.format == nullptr || view.format[0] == '\0' || view.format[1] != '\0') return -1;
  switch (view.format[0]) {
    case 'f':
      return CLARY_FLOAT32;
    case 'd':
      return CLARY_FLOAT64;
    case 'e':
      return CLARY_FLOAT16;
    case '?':
      return CLARY_BOOL;
    case 'b':
      return CLARY_INT8;
    case 'B':
      return CLARY_UINT8;
    case 'h':
      return CLARY_INT16;
    case 'i':
      return CLARY_INT32;
    case 'l':
    case 'q':
      return view.itemsize == 8 ? CLARY_INT64 : CLARY_INT32;
    default:
      return -1;
  }
}

// An object's plain memory, held while this lives. Without one `isPlain` is false: who calls then says what is wrong.
class PlainMemory {
 public:
  PlainMemory(PyObject* object, int flags) {
    if (PyObject_GetBuffer(object, &view_, flags | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      return;
    }
    isHeld_ = true;
    dtype_ = dtypeOf(view_);
  }
  ~PlainMemory() {
    if (isHeld_) PyBuffer_Release(&view_);
  }
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

  bool isPlain() const { return isHeld_ && dtype_ >= 0; }
  int32_t dtype() const { return dtype_; }
  void* address() const { return view_.buf; }
  uint64_t elements() const { return static_cast<uint64_t>(view_.len / view_.itemsize); }
  // Whether this is room for `size` chunks of the elements of `one`, and shares no byte with it.
  bool holds(const PlainMemory& one, int32_t size) const {
    const auto* begin = static_cast<const char*>(view_.buf);
    const auto* other = static_cast<const char*>(one.view_.buf);
    return size > 0 && dtype_ == one.dtype_ && view_.len % size == 0 && view_.len / size == one.view_.len &&
           (begin + view_.len <= other || other + one.view_.len <= begin);
  }

 private:
  Py_buffer view_{};
  bool isHeld_ = false;
  int32_t dtype_ = -1;
};

// sum_memory(communicator, object, timeout_s, failure) -> what clary_all_reduce returns for the sum of all ranks, in
// place; None, with nothing sent, for memory that is not plain: who calls then says what is wrong with it.
PyObject* sumMemory(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
  auto* communicator = taken<clary_communicator*>(given[0]);
  const double timeout = taken<double>(given[2]);
  auto* failure = taken<clary_failure*>(given[3]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const PlainMemory memory(given[1], PyBUF_CONTIG);
  if (!memory.isPlain()) Py_RETURN_NONE;
  return clary::unlocked([&] {
    return clary_all_reduce(communicator, memory.address(), memory.address(), memory.elements(), memory.dtype(),
                            CLARY_SUM, 0, timeout, failure);
  });
}

// What the two short ways below take: communicator, source, target, number of ranks, timeout_s, failure.
struct Chunked {
  explicit Chunked(PyObject* const* given)
      : communicator(taken<clary_communicator*>(given[0])),
        size(taken<int32_t>(given[3])),
        timeout(taken<double>(given[4])),
        failure(taken<clary_failure*>(given[5])) {}
  static constexpr Py_ssize_t kCount = 6;
  clary_communicator* communicator;
  int32_t size;
  double timeout;
  clary_failure* failure;
};

// gather_memory(communicator, source, target, size, timeout_s, failure) -> what clary_all_gather returns; None, with
// nothing sent, for memory that is not plain, overlaps or does not fit: who calls then says what is wrong with it.
PyObject* gatherMemory(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != Chunked::kCount) return PyErr_Format(PyExc_TypeError, "expected 6 arguments, got %zd", count);
  const Chunked asked(given);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const PlainMemory source(given[1], PyBUF_CONTIG_RO);
  const PlainMemory target(given[2], PyBUF_CONTIG);
  if (!source.isPlain() || !target.isPlain() || !target.holds(source, asked.size)) Py_RETURN_NONE;
  return clary::unlocked([&] {
    return clary_all_gather(asked.communicator, source.address(), target.address(), nullptr, source.elements(),
                            source.dtype(), 0, asked.timeout, asked.failure);
  });
}

// sum_scatter_memory(communicator, source, target, size, timeout_s, failure) -> what clary_reduce_scatter returns for
// the sum; None as above.
PyObject* sumScatterMemory(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != Chunked::kCount) return PyErr_Format(PyExc_TypeError, "expected 6 arguments, got %zd", count);
  const Chunked asked(given);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const PlainMemory source(given[1], PyBUF_CONTIG_RO);
  const PlainMemory target(given[2], PyBUF_CONTIG);
  if (!source.isPlain() || !target.isPlain() || !source.holds(target, asked.size)) Py_RETURN_NONE;
  return clary::unlocked([&] {
    return clary_reduce_scatter(asked.communicator, source.address(), nullptr, target.address(), target.elements(),
                                target.dtype(), CLARY_SUM, 0, asked.timeout, asked.failure);
  });
}

// A method that takes its arguments as an array.
using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef fast(const char* name, Fast function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

template <auto Function>
PyMethodDef entry(const char* name) {
  return fast(name, door<Function>);
}

PyMethodDef* methods() {
  static PyMethodDef all[] = {
      entry<clary_all_reduce>("all_reduce"),
      entry<clary_all_gather>("all_gather"),
      entry<clary_reduce_scatter>("reduce_scatter"),
      entry<clary_broadcast>("broadcast"),
      entry<clary_reduce>("reduce"),
      entry<clary_all_to_all>("all_to_all"),
      entry<clary_gather>("gather"),
      entry<clary_scatter>("scatter"),
      entry<clary_barrier>("barrier"),
      entry<clary_send>("send"),
      entry<clary_receive>("receive"),
      entry<clary_wait>("wait"),
      entry<clary_is_done>("is_done"),
      entry<clary_watch>("watch"),
      entry<clary_next_watched>("next_watched"),
      fast("sum_memory", sumMemory),
      fast("gather_memory", gatherMemory),
      fast("sum_scatter_memory", sumScatterMemory),
      fast("know_tensors", clary::knowTensors),
      fast("reduce_tensor", clary::reduceTensor),
      fast("broadcast_tensor", clary::broadcastTensor),
      fast("gather_tensor", clary::gatherTensor),
      fast("scatter_tensor", clary::scatterTensor),
      {"address_of", addressOfMemory, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  return all;
}

}  // namespace

PyMODINIT_FUNC PyInit__door() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                   "_door",
                                   "The collectives core, called without ctypes; see core.py.",
                                   -1,
                                   methods(),
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr};
  return PyModule_Create(&definition);
}
