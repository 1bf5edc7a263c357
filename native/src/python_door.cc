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

// sum_memory(communicator, object, timeout_s, failure) -> what clary_all_reduce returns for the sum of all ranks, in
// place; None, with nothing sent, for memory that is not plain: who calls then says what is wrong with it.
PyObject* sumMemory(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
  Py_buffer view;
  if (PyObject_GetBuffer(given[1], &view, PyBUF_CONTIG | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  const int32_t dtype = dtypeOf(view);
  auto* communicator = taken<clary_communicator*>(given[0]);
  const double timeout = taken<double>(given[2]);
  auto* failure = taken<clary_failure*>(given[3]);
  PyObject* result = nullptr;
  if (PyErr_Occurred() == nullptr && dtype < 0) {
    Py_INCREF(Py_None);
    result = Py_None;
  } else if (PyErr_Occurred() == nullptr) {
    const auto elements = static_cast<uint64_t>(view.len / view.itemsize);
    PyThreadState* state = PyEval_SaveThread();
    const int64_t ticket =
        clary_all_reduce(communicator, view.buf, view.buf, elements, dtype, CLARY_SUM, 0, timeout, failure);
    PyEval_RestoreThread(state);
    result = PyLong_FromLongLong(ticket);
  }
  PyBuffer_Release(&view);
  return result;
}

template <auto Function>
constexpr PyMethodDef entry(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(door<Function>)), METH_FASTCALL, nullptr};
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
      {"sum_memory", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(sumMemory)), METH_FASTCALL, nullptr},
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
